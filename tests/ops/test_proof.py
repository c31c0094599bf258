"""The first use of a GPU: an engine is compared with the reference before it is trusted."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from qmaps.engines.native.plan import NativeEngine
from qmaps.engines.reference_plan import ReferencePlan
from qmaps.errors import BackendWarning, BadValueError
from qmaps.ops import proof
from qmaps.optim.presets import pair_of

CPU = torch.device("cpu")


class Reference:
    """An engine that takes the reference's steps, and then changes one bit or fails."""

    def __init__(self, change: str = "") -> None:
        self.change, self.steps = change, 0

    def unsupported_reason(self, rule: Any, parameter: Any) -> str:
        return ""

    def plan(self, rule: Any, parameters: Any) -> Any:
        engine = self

        class Plan(ReferencePlan):
            def run(self, inputs: Any) -> None:  # type: ignore[override]
                engine.steps += 1
                if engine.change == "fails":
                    raise RuntimeError("no kernel image is available\nfor this device")
                super().run(inputs)
                if engine.change == "code":
                    parameters[0].storage["exp_avg"].packed[3] ^= 1

        return Plan(rule, parameters)


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setenv("QMAPS_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv(proof.SWITCH, raising=False)
    monkeypatch.setattr(proof.triton, "version", lambda: "3.9.0")
    proof.PROVEN.clear()
    yield tmp_path / "devices"
    proof.PROVEN.clear()


@pytest.mark.parametrize("name", ["8bit", "4bit"])
def test_the_formats_of_a_preset_are_compared(name: str) -> None:
    assert pair_of(name).spec in {f"{first} + {second}" for first, second, _ in proof.SPECS}


def test_equal_bits_are_recorded(monkeypatch: pytest.MonkeyPatch, places: Path) -> None:
    engine = Reference()
    monkeypatch.setattr(proof, "_steps", lambda name, device: engine)
    assert proof.trusted("triton", CPU)
    (record,) = places.iterdir()
    assert '"equal": true' in record.read_text()
    steps = engine.steps
    proof.PROVEN.clear()  # as in another process
    assert proof.trusted("triton", CPU)
    assert engine.steps == steps > 0
    record.write_text("{}")  # damaged
    proof.PROVEN.clear()
    assert proof.trusted("triton", CPU)
    assert engine.steps == 2 * steps


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("code", " of 1500 elements of the parameter differ (B256/DE-sym@8s + B256/geo"),
        ("fails", "RuntimeError: no kernel image is available. The reference runs there"),
    ],
)
def test_a_difference_leaves_the_device_to_the_reference(
    monkeypatch: pytest.MonkeyPatch, places: Path, change: str, words: str
) -> None:
    monkeypatch.setattr(proof, "_steps", lambda name, device: Reference(change))
    with pytest.warns(BackendWarning) as warned:
        assert not proof.trusted("triton", CPU)
    assert words in str(warned[0].message)
    assert "`qmaps verify`" in str(warned[0].message)
    assert not places.exists()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # one warning in a process
        assert not proof.trusted("triton", CPU)


def test_the_check_can_be_switched_off(monkeypatch: pytest.MonkeyPatch, places: Path) -> None:
    monkeypatch.setattr(proof, "_steps", lambda name, device: Reference("code"))
    monkeypatch.setenv(proof.SWITCH, "0")
    assert proof.trusted("triton", CPU)
    monkeypatch.setenv(proof.SWITCH, "no")
    proof.PROVEN.clear()
    with pytest.raises(BadValueError, match=r"^QMAPS_CHECK_DEVICES='no' must be 0 or 1$"):
        proof.trusted("triton", CPU)


def test_a_use_without_a_check_decides_nothing(
    monkeypatch: pytest.MonkeyPatch, places: Path
) -> None:
    monkeypatch.setattr(proof, "_steps", lambda name, device: Reference("code"))
    with monkeypatch.context() as within:
        within.setattr(proof.triton, "capturing", lambda device: True)
        assert proof.trusted("triton", CPU)
    with monkeypatch.context() as within:
        within.setenv(proof.SWITCH, "0")
        assert proof.trusted("triton", CPU)
    with pytest.warns(BackendWarning):
        assert not proof.trusted("triton", CPU)
    # `qmaps verify` compares an engine that has failed, too.
    monkeypatch.setenv(proof.SWITCH, "0")
    assert proof.trusted("triton", CPU)


def test_the_native_engine_passes() -> None:
    assert list(proof.differences(NativeEngine(), CPU)) == []


def test_numbers_of_every_kind() -> None:
    x = proof.every_exponent(4096, 3)
    exponents = (x.view(torch.int32) >> 23) & 255
    assert set(range(255)) - set(exponents.tolist()) == set()
    assert bool(x.isfinite().all())
    assert bool(((x != 0) & (x.abs() < 2.0**-126)).any())  # subnormal numbers
    assert proof.differing(torch.tensor([0.0, torch.nan]), torch.tensor([-0.0, torch.nan])) == 1
