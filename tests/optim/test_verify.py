"""`qmaps.optim.verify`: engines against the reference."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from qmaps.errors import BadValueError
from qmaps.optim import verify as module
from qmaps.optim.verify import Speed, Verification, verify


def test_without_a_gpu_or_triton_the_native_engine_is_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(module, "QUANTIZERS", ("B256/DE@8s",))
    monkeypatch.setattr(module, "RULES", module.RULES[:2])
    report = verify(seconds=100)
    assert report.equal
    assert {check.engine for check in report.checks} == {"native"}
    assert report.remark.startswith("No GPU was found, and no interpreter (triton is not installed")
    assert report.speeds == []
    assert "| native | AdamW, 8bit, float32 | 19439 | equal |" in str(report)


def test_a_difference_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = module._trained

    def wrong(engine: str, *args: object) -> object:
        results, optimizer = trained(engine, *args)  # type: ignore[arg-type]
        if engine == "native":
            results["parameter 1"].view(torch.int32)[5] ^= 1
        return results, optimizer

    monkeypatch.setattr(module, "_trained", wrong)
    device = torch.device("cpu")
    check = module._step_check("native", device, "AdamW", {}, "8bit", "float32", small=True)()
    assert check.problem == "1 of 301 elements of parameter 1 differ"
    report = Verification({}, "", [check], [Speed(1000, {"copy": 0.01, "8bit": 0.5})], 1.0)
    assert not report.equal
    assert "**1 of 1 checks found other bits**, in 1 s." in str(report)
    assert "| 1000 | 0.010 | 0.500 | 1 |" in str(report)


def test_seconds_must_be_above_0() -> None:
    with pytest.raises(BadValueError, match=r"^seconds=0 must be above 0$"):
        verify(seconds=0)
