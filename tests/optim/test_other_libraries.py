"""Options of other libraries: known here, or refused with what stands for them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import nn

from qmaps import optim
from qmaps.errors import BadTypeError
from qmaps.optim.other_libraries import BITSANDBYTES, INSTEAD, NAMES, TORCHAO
from qmaps.optim.torch_options import TORCH_OPTIONS

PAGE = Path(__file__).parents[2] / "docs" / "bitsandbytes-and-torchao.md"


def test_the_documentation_prints_the_table() -> None:
    found = re.findall(r"^\| `(\w+)` \| (bitsandbytes|torchao) \| (.*) \|$", PAGE.read_text(), re.M)
    found = [row for row in found if row[0] not in NAMES]
    assert found == [(name, library, here) for name, (library, here) in INSTEAD.items()]


def test_the_documentation_names_every_class() -> None:
    rows = re.findall(r"^\| (.*) \| (bitsandbytes|torchao) \| (.*) \|$", PAGE.read_text(), re.M)
    for name, (library, _) in NAMES.items():
        printed = "32bit" if name.endswith("32bit") else f"`{name}`"  # one row for every rule
        assert any(printed in wrote and own == library for wrote, own, _ in rows), name


@pytest.mark.parametrize("name", INSTEAD)
def test_each_is_refused_with_what_stands_for_it(name: str) -> None:
    library, here = INSTEAD[name]
    for cls in (optim.AdamW, optim.Lion4bit):
        with pytest.raises(BadTypeError) as caught:
            cls([nn.Parameter(torch.zeros(3))], **{name: 1})  # type: ignore[arg-type]
        assert str(caught.value) == (
            f"{name}=1 is not an option of {cls.__name__}; {library} has it. In qmaps: "
            f"{here.replace('`', '')}"
        )


def options(library: str) -> Iterator[tuple[type[optim.QuantizedOptimizer], str]]:
    """Every option of the library's optimizers that have a namesake here."""
    theirs = import_module(f"{library}.optim")
    for name in optim.__all__:
        cls = getattr(optim, name)
        other = getattr(theirs, name, None)
        if inspect.isclass(cls) and inspect.isclass(other):
            for option in inspect.signature(other.__init__).parameters:
                if option not in {"self", "params", "kwargs", *TORCH_OPTIONS}:
                    yield cls, option


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("library", [BITSANDBYTES, TORCHAO])
def test_no_option_of_theirs_is_without_an_answer(library: str) -> None:
    pytest.importorskip(library)
    seen = set()
    for cls, option in options(library):
        given = 64 if option == "block_size" else None
        seen.add(option)
        try:
            cls([nn.Parameter(torch.zeros(3))], **{option: given})
        except BadTypeError as error:
            if "is not an option of" in str(error):
                assert INSTEAD[option][0] == library, (cls, option)
        except (TypeError, ValueError):
            pass  # known, and None is no value of it
    assert len(seen) >= 6
