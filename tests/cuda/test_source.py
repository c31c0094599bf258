"""Sources of kernels agree with Python, or do not compile."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qmaps.cuda import layout, source
from qmaps.cuda.source import NUMBERS, kernels, source_of
from qmaps.engines import step_scalars
from qmaps.engines.kernels.declarations import Flags
from tests.cuda.emulation import EmulatedEngine, build

pytestmark = pytest.mark.slow


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Build sources without the cache, from a test's changes."""
    monkeypatch.setattr(source, "source_of", source_of.__wrapped__)
    return monkeypatch


@pytest.fixture
def folder(device: EmulatedEngine) -> Path:
    """Folder of the other tests' headers, each named by its complete source."""
    return device.folder


def compiled(file: str, folder: Path) -> None:
    build(source.source_of(file), "", folder)


@pytest.mark.parametrize("file", sorted(set(kernels().values())))
def test_structures_are_those_of_cpp(file: str, folder: Path) -> None:
    compiled(file, folder)


def test_every_number_and_structure_is_compared() -> None:
    text = "".join(map(source_of, sorted(set(kernels().values()))))
    for name, value in NUMBERS.items():
        assert f"static_assert({name} == {value}," in text, name
    for name, dtype in layout.STRUCTURES.items():
        assert f"static_assert(sizeof({name}) == {dtype.itemsize}," in text, name
        for field in dtype.names:
            assert f"static_assert(__builtin_offsetof({name}, {field}) ==" in text, (name, field)
    assert len(NUMBERS) > 15
    # NVRTC 12 has no offsetof.
    guard = "#if !defined(__CUDACC_VER_MAJOR__) || __CUDACC_VER_MAJOR__ >= 13\n"
    assert text.count("__builtin_offsetof") > 50
    for part in text.split(guard)[1:]:
        assert "__builtin_offsetof" not in part[part.index("#endif") :]
    assert "__builtin_offsetof" not in text.split(guard)[0]


def test_a_number_that_differs_does_not_compile(anew: pytest.MonkeyPatch, folder: Path) -> None:
    anew.setitem(NUMBERS, "kMaxScalars", 23)
    with pytest.raises(AssertionError, match="kMaxScalars differs from"):
        compiled("prologue.cuh", folder)


def test_a_field_in_another_place_does_not_compile(anew: pytest.MonkeyPatch, folder: Path) -> None:
    names = list(layout.NOISE.names)
    names[0], names[1] = names[1], names[0]
    moved = np.dtype([(name, layout.NOISE[name]) for name in names])
    anew.setitem(layout.STRUCTURES, "Noise", moved)
    with pytest.raises(AssertionError, match="Noise differs from"):
        compiled("prologue.cuh", folder)


def test_a_kind_of_constant_without_a_case_does_not_compile(
    anew: pytest.MonkeyPatch, folder: Path
) -> None:
    kinds = list(step_scalars.KINDS)
    anew.setattr(source, "KINDS", kinds)
    compiled("prologue.cuh", folder)
    kinds.append(type("Halved", (), {}))
    with pytest.raises(AssertionError, match="kHalved"):
        compiled("prologue.cuh", folder)


def test_enumerations_are_made_from_python() -> None:
    text = source_of("prologue.cuh")
    assert f"kNonFinite = {Flags.NON_FINITE.value}, kNegative = {Flags.NEGATIVE.value}" in text
    assert [kind.kind for kind in step_scalars.KINDS] == list(range(len(step_scalars.KINDS)))
    for kind in step_scalars.KINDS:
        assert f"k{kind.__name__} = {kind.kind}" in text
