"""Impossible step counters, and counters that stop."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from qmaps import optim
from tests.capture.lint.saved import findings_of, trained


def with_step(step: Any) -> dict[str, Any]:
    saved = trained(torch.optim.AdamW).state_dict()
    saved["state"][0]["step"] = step
    return saved


@pytest.mark.parametrize(
    ("step", "shown"),
    [
        (torch.tensor(math.inf), "tensor(inf)"),
        (torch.tensor(math.nan), "tensor(nan)"),
        (torch.tensor(-3.0), "tensor(-3.)"),
        (torch.tensor(2.5), "tensor(2.5000)"),
        (-1, "-1"),
        (True, "True"),
        ("12", "'12'"),
        (torch.ones(2), "<float32 tensor of shape (2,)>"),
    ],
    ids=str,
)
def test_numbers_that_are_no_steps(step: Any, shown: str, tmp_path: Path) -> None:
    (finding,) = findings_of(with_step(step), tmp_path)
    assert (finding.level, finding.check, finding.parameter, finding.state) == (
        *("error", "step"),
        *("0.weight", "step"),
    )
    assert finding.message == f"step={shown} is no number of steps, an integer of at least 0"


@pytest.mark.parametrize("step", [3, torch.tensor(3), torch.tensor(2.0**25), torch.ones(1)])
def test_numbers_that_are(step: Any, tmp_path: Path) -> None:
    assert findings_of(with_step(step), tmp_path) == []


@pytest.mark.parametrize("name", ["step", "step_count"])
def test_counters_of_groups(name: str, tmp_path: Path) -> None:
    saved = trained(torch.optim.AdamW).state_dict()
    saved["param_groups"][0][name] = 300
    assert findings_of(saved, tmp_path) == []
    saved["param_groups"][0][name] = math.nan
    (finding,) = findings_of(saved, tmp_path)
    assert (finding.level, finding.check, finding.parameter) == ("error", "step", "")
    assert finding.message == f"group 0: {name}=nan is no number of steps, an integer of at least 0"


def test_a_missing_step_beside_others(tmp_path: Path) -> None:
    saved = trained(torch.optim.AdamW).state_dict()
    del saved["state"][2]["step"]
    (finding,) = findings_of(saved, tmp_path)
    assert (finding.level, finding.check, finding.parameter) == ("error", "step", "1.weight")
    assert finding.message == "it has no step; others with the same states have one"
    saved["param_groups"][0]["step"] = 3  # some packages count in the group
    assert findings_of(saved, tmp_path) == []


def test_no_step_anywhere(tmp_path: Path) -> None:
    saved = trained(torch.optim.AdamW).state_dict()
    for state in saved["state"].values():
        del state["step"]
    (finding,) = findings_of(saved, tmp_path)
    assert (finding.level, finding.check, finding.parameter) == ("error", "step", "")
    assert finding.message == (
        "0.weight and 3 more have moments and no step, neither in states nor in a group "
        "(step, step_count, k)"
    )
    saved["param_groups"][0] |= {"k": math.nan, "weight_sum": 1.0}
    (finding,) = findings_of(saved, tmp_path)
    assert finding.message == "group 0: k=nan is no number of steps, an integer of at least 0"
    saved["param_groups"][0]["k"] = 3
    assert findings_of(saved, tmp_path) == []


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.RMSprop, optim.AdamW8bit])
def test_a_step_that_was_lost(make: Any, tmp_path: Path) -> None:
    saved = trained(make).state_dict()
    saved["state"][0]["step"] = torch.tensor(0.0)
    (finding,) = findings_of(saved, tmp_path)
    assert (finding.level, finding.parameter) == ("error", "0.weight")
    assert finding.message.endswith(" is not 0; the number of steps was lost")
    for name in ("exp_avg_sq", "square_avg"):
        saved["state"][0].pop(name, None)
    saved["state"][0].pop("exp_avg", None)
    assert findings_of(saved, tmp_path) == []


def cast(dtype: torch.dtype, step: float) -> dict[str, Any]:
    saved = trained(torch.optim.AdamW).state_dict()
    for state in saved["state"].values():
        state["step"] = torch.tensor(step)
        state |= {name: value.to(dtype) for name, value in state.items()}
    return saved


@pytest.mark.parametrize(
    ("dtype", "step", "level", "message"),
    [
        (torch.bfloat16, 3.0, "error", "step=3 in bfloat16 counts no further than 256, which makes "
         "later updates 0.48 times as large, for good"),
        (torch.bfloat16, 8000.0, "warning", "step=8000 in bfloat16 counts no further than 256"),
        (torch.float16, 3.0, "error", "step=3 in float16 counts no further than 2048, which makes "
         "later updates 0.93 times as large, for good"),
    ],
)  # fmt: skip
def test_a_checkpoint_cast_to_16_bits(
    dtype: torch.dtype, step: float, level: str, message: str, tmp_path: Path
) -> None:
    findings = [
        finding for finding in findings_of(cast(dtype, step), tmp_path) if finding.check == "step"
    ]
    assert len(findings) == 4
    assert {(finding.level, finding.message) for finding in findings} == {(level, message)}


def test_torch_stops_counting_there() -> None:
    p = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.AdamW([p])
    for number in range(260):
        p.grad = torch.ones(2)
        optimizer.step()
        if not number:
            saved = optimizer.state_dict()
            saved["state"][0]["step"] = saved["state"][0]["step"].bfloat16()
            optimizer.load_state_dict(saved)
    assert float(optimizer.state[p]["step"]) == 256
