"""Options of other libraries are accepted, or refused with the replacement."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from qmaps import optim
from qmaps.errors import BadTypeError, BadValueError
from qmaps.optim.options import TORCH_OPTIONS
from qmaps.optim.other_libraries import BITSANDBYTES, INSTEAD, NEUTRAL, TAGS, TORCHAO

PAGE = Path(__file__).parents[2] / "docs" / "bitsandbytes-and-torchao.md"


def test_the_documentation_prints_the_table() -> None:
    actual = re.findall(
        r"^\| `(\w+)` \| (bitsandbytes|torchao) \| (.*) \|$", PAGE.read_text(), re.M
    )
    actual = [row for row in actual if row[0] in INSTEAD]
    assert actual == [
        (name, library, replacement) for name, (library, _, replacement) in INSTEAD.items()
    ]


def test_the_documentation_lists_the_values_that_are_accepted() -> None:
    text = PAGE.read_text()
    for name, value in {**NEUTRAL, "optim_bits": 8}.items():
        assert f"`{name}={value}`" in text


@pytest.mark.parametrize("name", INSTEAD)
def test_each_is_refused_with_its_replacement(name: str) -> None:
    library, _, replacement = INSTEAD[name]
    for cls in (optim.AdamW, optim.Lion4bit):
        with pytest.raises(BadTypeError) as caught:
            cls([nn.Parameter(torch.zeros(3))], **{name: 1})  # type: ignore[arg-type]
        assert str(caught.value) == (
            f"{name}=1 is not an option of {cls.__name__}; {library} has it. In qmaps: "
            f"{replacement.replace('`', '')}"
        )


DOES_THAT = [
    *((optim.AdamW, {name: value}) for name, value in NEUTRAL.items()),
    (optim.Lion4bit, NEUTRAL),
    (optim.AdamW8bit, {"optim_bits": 8}),
    (optim.Adafactor8bit, {"optim_bits": 8}),
    (optim.AdamW4bit, {"optim_bits": 4}),
    (optim.AdamW, {"optim_bits": 32}),
    (optim.AdamW8bit, {"decoupled_weight_decay": True}),
    (optim.LAMB8bit, {"amsgrad": False, "max_unorm": 0.0}),
    (optim.LARS, {"dampening": 0.0, "max_unorm": 0}),
    (optim.Muon, {"use_gram_newton_schulz": False}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("cls", "option"), [(optim.LAMB, "amsgrad"), (optim.Muon, "use_gram_newton_schulz")]
)
def test_checkpoints_of_another_rule_are_refused(cls: Any, option: str) -> None:
    optimizer = cls([nn.Parameter(torch.zeros(3, 3))], lr=0.1)
    saved = optimizer.state_dict()
    saved["param_groups"][0][option] = True
    with pytest.raises(BadValueError) as caught:
        optimizer.load_state_dict(saved)
    assert str(caught.value) == f"state_dict has {option}=True; only False is supported"


@pytest.mark.parametrize(("cls", "neutral"), DOES_THAT, ids=str)
def test_values_that_ask_for_nothing_change_nothing(cls: Any, neutral: dict[str, object]) -> None:
    def moved(*places: str) -> list[object]:
        p = nn.Parameter(torch.linspace(-1, 1, 8192).view(64, 128))
        in_group = neutral if "group" in places else {}
        as_arguments = neutral if "arguments" in places else {}
        optimizer = cls([{"params": [p], **in_group}], lr=0.1, **as_arguments)
        (group,) = optimizer.param_groups
        assert not (neutral.keys() - {"max_unorm", *TAGS}) & group.keys()
        p.grad = torch.linspace(1, -2, 8192).view(64, 128)
        optimizer.step()
        return p.tolist()

    assert moved("arguments") == moved("group") == moved()


@pytest.mark.parametrize(
    ("cls", "options", "message"),
    [
        (optim.AdamW8bit, {"optim_bits": 32}, "optim_bits=32 is not an option of AdamW8bit; "
         "bitsandbytes has it. In qmaps: state_quantizers='8bit', or classes such as AdamW8bit"),
        (optim.AdamW, {"optim_bits": 32, "state_quantizers": "8bit"}, "optim_bits=32 is not an "
         "option of AdamW; bitsandbytes has it. In qmaps: state_quantizers='8bit', or classes such "
         "as AdamW8bit"),
        (optim.AdamW, {"is_paged": True}, "is_paged=True is not an option of AdamW; bitsandbytes "
         "has it. In qmaps: none; CPUOffloadOptimizer keeps states in the CPU's memory"),
        (optim.AdamW, {"decoupled_weight_decay": False}, "decoupled_weight_decay=False is not "
         "supported: AdamW decouples weight decay, and Adam does either"),
        (optim.Muon, {"use_gram_newton_schulz": True},
         "use_gram_newton_schulz=True is not an option of Muon"),
    ],
)  # fmt: skip
def test_values_that_ask_for_something_else_are_refused(
    cls: Any, options: dict[str, object], message: str
) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        cls([nn.Parameter(torch.zeros(3, 3))], **options)
    assert str(caught.value) == message


def defaults(library: str) -> Iterator[tuple[Any, str, object]]:
    """Default of every option of the library's classes with a namesake in qmaps."""
    theirs = import_module(f"{library}.optim")
    for name in optim.__all__:
        cls, namesake = getattr(optim, name), getattr(theirs, name, None)
        if inspect.isclass(cls) and inspect.isclass(namesake) and name != "CPUOffloadOptimizer":
            for option, parameter in inspect.signature(namesake.__init__).parameters.items():
                if parameter.default is not parameter.empty:
                    yield cls, option, parameter.default


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("library", [BITSANDBYTES, TORCHAO])
def test_a_script_that_spells_out_their_defaults_runs(library: str) -> None:
    pytest.importorskip(library)
    tested = set()
    for cls, option, value in defaults(library):
        tested.add(option)
        if option == "optim_bits" and issubclass(cls, optim.FixedWidth):
            continue  # 32 there "for compatibility": bitsandbytes' own AdamW8bit refuses 8
        cls([{"params": [nn.Parameter(torch.zeros(3))]}], **{option: value})
        cls([nn.Parameter(torch.zeros(3))], **{option: value})
    assert len(tested) >= 6


def options(library: str) -> Iterator[tuple[type[optim.QuantizedOptimizer], str]]:
    """Every option of the library's optimizers with a namesake in qmaps."""
    theirs = import_module(f"{library}.optim")
    for name in optim.__all__:
        cls = getattr(optim, name)
        namesake = getattr(theirs, name, None)
        if inspect.isclass(cls) and inspect.isclass(namesake):
            for option in inspect.signature(namesake.__init__).parameters:
                if option not in {"self", "params", "kwargs", *TORCH_OPTIONS}:
                    yield cls, option


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("library", [BITSANDBYTES, TORCHAO])
def test_no_option_of_theirs_is_without_an_answer(library: str) -> None:
    pytest.importorskip(library)
    tested = set()
    for cls, option in options(library):
        value = 64 if option == "block_size" else None
        tested.add(option)
        try:
            cls([nn.Parameter(torch.zeros(3))], **{option: value})
        except BadTypeError as error:
            if "is not an option of" in str(error):
                assert INSTEAD[option][0] == library, (cls, option)
        except (TypeError, ValueError):
            pass  # known, and None is no value of it
    assert len(tested) >= 6
