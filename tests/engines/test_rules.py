"""Rules, their scalars and enumerations are the same for Python, C++ and CUDA."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from qmaps import optim
from qmaps.engines import native
from qmaps.engines.kernels import declarations
from qmaps.engines.kernels.declarations import ENUMERATIONS, FOLDER, Factoring
from qmaps.engines.rules import KernelRule, check_build, ordered, rules, scalar_names
from qmaps.errors import BackendError, BadValueError
from qmaps.normalize.scale_format import SUFFIXES
from qmaps.normalize.scale_kind import ScaleKind
from qmaps.ops.backends import use_backend
from tests.optim.families import FUSED_FAMILIES, same_bits

needs_native = pytest.mark.skipif(native.core is None, reason=native.reason)
WITH_RULE = [
    *(family.full for family in FUSED_FAMILIES),
    *(optim.AdamWFactor, optim.Adafactor, optim.SM3),
]


def optimizer_of(cls: type[Any]) -> Any:
    param = torch.linspace(-1, 1, 5000).reshape(50, 100).requires_grad_()
    return cls([param], lr=0.1, min_quantized_size=0, state_quantizers="8bit")


def stepped(cls: type[Any]) -> torch.Tensor:
    optimizer = optimizer_of(cls)
    (param,) = optimizer.param_groups[0]["params"]
    with use_backend("native"):
        for number in range(3):
            param.grad = torch.sin(param.detach() * 7 + number)
            optimizer.step()
    return param.detach()


def test_a_rule_as_its_header_declares_it() -> None:
    assert rules()["adafactor", "exp_avg factored"] == KernelRule(
        name="adafactor",
        states=("exp_avg", "factored"),
        scalars=scalar_names("adafactor"),
        type="Adafactor<true, true>",
        takes_norms=True,
        factoring=Factoring.PRODUCT,
    )
    assert scalar_names("adam")[:3] == ("decay", "weight_decay", "beta1")
    assert scalar_names("adamw") == scalar_names("adamw_factor") == (
        "decay", "beta1", "beta2", "step_size", "root_correction", "eps", "sign", "rest1", "rest2",
    )  # fmt: skip


@needs_native
def test_the_compiled_module_has_the_rules_of_the_headers() -> None:
    check_build(native.core)
    assert {row[:2] for row in native.core.rules()} == set(rules())
    assert len(native.core.enumerators()) == sum(len(kind) for kind in ENUMERATIONS)


@needs_native
@pytest.mark.parametrize(
    "change",
    [
        lambda row: (*row[:2], row[2].replace("beta1, beta2", "beta2, beta1"), *row[3:]),
        lambda row: ("other", *row[1:]),
        lambda row: (*row[:5], 2),
    ],
)
def test_another_build_is_refused(change: Any) -> None:
    rows = [change(row) if row[0] == "adam" else row for row in native.core.rules()]
    built = SimpleNamespace(rules=lambda: rows, enumerators=native.core.enumerators)
    with pytest.raises(BackendError) as caught:
        check_build(built)
    assert str(caught.value) == (
        "the native engine was built from other sources; build it again with pip install, or with "
        "pip install --editable in a source tree"
    )


@needs_native
@pytest.mark.parametrize(
    ("rules", "enumerators"),
    [
        (
            lambda rows: [*rows, ("other", "exp_avg", "sign", "Other", False, 0)],
            lambda rows: rows,
        ),
        (
            lambda rows: [row[:2] for row in rows],
            lambda rows: rows,
        ),
        (
            lambda rows: rows,
            lambda rows: [(*row[:2], 3 - row[2]) if row[0] == "Flags" else row for row in rows],
        ),
    ],
)
def test_a_build_with_other_lists_is_refused(rules: Any, enumerators: Any) -> None:
    core = native.core
    built = SimpleNamespace(
        rules=lambda: rules(core.rules()), enumerators=lambda: enumerators(core.enumerators())
    )
    with pytest.raises(BackendError) as caught:
        check_build(built)
    assert str(caught.value) == (
        "the native engine was built from other sources; build it again with pip install, or with "
        "pip install --editable in a source tree"
    )


@pytest.mark.slow
@needs_native
def test_another_build_is_refused_at_first_use() -> None:
    # In the place of the module, before anything of qmaps is imported: one with a rule less.
    program = (
        "import sys, importlib.util\n"
        "name = 'qmaps.engines.kernels.declarations'\n"
        f"spec = importlib.util.spec_from_file_location(name, {declarations.__file__!r})\n"
        "sys.modules[name] = module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "read = module.read_rules\n"
        "module.read_rules = lambda: read()[1:]\n"
        "import qmaps\n"
        "qmaps.quantizer\n"
        "import qmaps.ops.backends\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert "qmaps.errors.BackendError: the native engine was built from other sources; " in (
        done.stderr
    )


@pytest.mark.parametrize("cls", WITH_RULE, ids=lambda cls: cls.__name__)
def test_constants_are_the_scalars_of_the_rule(cls: type[Any]) -> None:
    optimizer = optimizer_of(cls)
    scalars = optimizer.step_scalars(optimizer.param_groups[0])
    assert sorted(scalars) == sorted(scalar_names(cls.native_rule))


def test_every_rule_belongs_to_an_optimizer() -> None:
    assert {name for name, _ in rules()} == {cls.native_rule for cls in WITH_RULE}


@needs_native
@pytest.mark.parametrize("cls", [optim.AdamW, optim.AdEMAMix], ids=lambda cls: cls.__name__)
def test_scalars_bind_by_name(cls: type[Any]) -> None:
    class Permuted(cls):
        def step_scalars(self, group: dict[str, Any]) -> dict[str, Any]:
            return dict(reversed(super().step_scalars(group).items()))

    assert (
        list(optimizer_of(Permuted).step_scalars(optimizer_of(cls).param_groups[0]))[-1] == "decay"
    )
    assert same_bits(stepped(Permuted), stepped(cls))


@needs_native
def test_scalars_of_other_names_are_refused() -> None:
    class Renamed(optim.AdamW):
        def step_scalars(self, group: dict[str, Any]) -> dict[str, Any]:
            actual = super().step_scalars(group)
            return {"epsilon" if name == "eps" else name: actual[name] for name in actual}

    with pytest.raises(BadValueError) as caught:
        stepped(Renamed)
    assert str(caught.value) == "scalars of rule 'adamw' must be " + ", ".join(
        scalar_names("adamw")
    )
    scalars = {"weight_decay": 0.0, "eps": 1.0, "step_size": 2.0}
    for wrong in (scalars, {**scalars, "sign": 1.0, "more": 0.0}):
        with pytest.raises(BadValueError) as caught:
            ordered("adagrad", wrong)
        assert str(caught.value) == (
            "scalars of rule 'adagrad' must be weight_decay, eps, step_size, sign"
        )
    with pytest.raises(BadValueError) as caught:
        ordered("other", scalars)
    assert str(caught.value) == "rule 'other' is not known to the engines"


OTHER = """// qmaps.optim.Other

QMAPS_SCALARS(other, weight_decay, beta1,
              sign)

struct Other {};

QMAPS_RULE(other, "exp_avg factored", kSmallest, kTakesNorms, Other)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FOLDER, tmp_path / "rules"))


def test_a_header_in_the_folder_is_enough(folder: Path) -> None:
    before = declarations.read_rules(folder)
    assert before == declarations.read_rules()
    (folder / "other.hpp").write_text(OTHER)
    (added,) = set(declarations.read_rules(folder)) - set(before)
    assert added == KernelRule(
        "other", ("exp_avg", "factored"), ("weight_decay", "beta1", "sign"), "Other", True,
        Factoring.SMALLEST,
    )  # fmt: skip
    lines = declarations.rules_text(folder).splitlines()
    assert '#include "qmaps/engines/kernels/rules/other.hpp"' in lines
    assert "    ENTRY(Other) \\" in lines
    assert [header.name for header in declarations.headers(folder)][:4] == [
        "factored.hpp", "layerwise.hpp", "terms.hpp", "adafactor.hpp",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("kSmallest", "kLargest", r"other.hpp: QMAPS_RULE\(other, .*\) cannot be read: 'kLargest'"),
        ("RULE(other", "RULE(adam", r"other.hpp: QMAPS_RULE\(adam, .*the rule is declared twice"),
        ('"exp_avg factored"', "exp_avg", "names between quotation marks"),
        ("QMAPS_SCALARS(other", "QMAPS_SCALARS(another", "cannot be read: 'other'"),
        ("Other)\n", "Other);\n", "other.hpp: a declaration does not begin or end its line"),
    ],
)
def test_bad_headers_are_refused(folder: Path, old: str, new: str, message: str) -> None:
    text = OTHER.replace(old, new)
    if "RULE(adam" in text:
        text += text[text.index("QMAPS_RULE") :]  # twice
    (folder / "other.hpp").write_text(text)
    with pytest.raises(ValueError, match=message):
        declarations.read_rules(folder)


def test_the_build_runs_it_without_torch(tmp_path: Path) -> None:
    for what, text in (
        ("rules", declarations.rules_text()),
        ("enumerations", declarations.enumerations_text()),
    ):
        path = tmp_path / "generated" / f"{what}.hpp"
        command = [sys.executable, "-I", "-S", declarations.__file__, what, str(path)]
        subprocess.run(command, check=True)
        assert path.read_text().endswith(text)


def test_formats_of_scales_are_declared_once() -> None:
    """C++ has the numbers and the bytes of `ScaleKind`; they match the stored tensors."""
    text = declarations.enumerations()
    for kind in ScaleKind:
        assert re.search(rf"\b{declarations.in_cpp('SCALE_' + kind.name)} = {kind.value}\b", text)
    assert f"bytes[] = {{{', '.join(str(kind.nbytes) for kind in ScaleKind)}}};" in text
    for cls in SUFFIXES.values():
        if cls.kind not in (None, ScaleKind.FLOAT32):  # x8 holds codes of a grid of float32
            assert cls.kind.nbytes == cls.dtype.itemsize
