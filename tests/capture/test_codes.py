"""States of integers and booleans: codes and masks of other libraries are not values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import qmaps
from qmaps.analyze import update_error
from qmaps.capture import CapturedStates, StateRecorder, load
from qmaps.capture.lint import lint_file
from qmaps.errors import CaptureError

DTYPES = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool]
WHY = (
    "states of integers or booleans are left out, because they are codes or masks and not values: "
)


def moments(*shape: int) -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {"exp_avg": torch.randn(*shape), "exp_avg_sq": torch.rand(*shape)}


def fails(call: Callable[[], object]) -> str:
    with pytest.raises(CaptureError) as error:
        call()
    return str(error.value)


@pytest.mark.parametrize("dtype", DTYPES)
def test_codes_are_no_values(dtype: torch.dtype) -> None:
    codes = torch.arange(8192).remainder(2).to(dtype)
    count = torch.tensor(3, dtype=dtype)
    tensors = {**moments(80, 80), "ustate.codes": codes, "0.count": count}
    states = CapturedStates.from_tensors({"w": tensors})
    kind = str(dtype).removeprefix("torch.")
    assert states.states("w") == ["exp_avg", "exp_avg_sq", "ustate.codes", "0.count"]
    assert states.values("w") == ["exp_avg", "exp_avg_sq"]
    assert states.codes == [f"w: ustate.codes ({kind})"]
    assert [state for _, state, _ in states.items()] == ["exp_avg", "exp_avg_sq"]
    message = (
        f"state 'ustate.codes' of parameter 'w' in 'memory' is {kind}: codes or a mask, not "
        "values; only floating-point states can be analyzed"
    )
    assert fails(lambda: states.tensor("w", "ustate.codes")) == message
    assert fails(lambda: states.opened("w", "ustate.codes")) == message
    with pytest.warns(UserWarning, match=WHY) as caught:
        frame = qmaps.sweep.run(states, ["B256/DE@8s", "8bit"])
    assert [str(w.message) for w in caught] == [f"{WHY}w: ustate.codes ({kind})"]
    assert set(frame["state"]) == {"exp_avg", "exp_avg_sq", "update"}
    changed = CapturedStates.from_tensors(
        {"w": {**moments(80, 80), "ustate.codes": 1 - codes.int()}}
    )
    assert states.fingerprint() != changed.fingerprint()  # codes belong to the identity


def test_analyses_name_moments_that_are_codes() -> None:
    packed = {name: (100 * x).to(torch.uint8) for name, x in moments(80, 80).items()}
    states = CapturedStates.from_tensors(dict.fromkeys("abcd", packed))
    reason = (
        "'memory' has no Adam states (exp_avg and exp_avg_sq); its states are no tensors at all; "
        f"{WHY}a: exp_avg (uint8), a: exp_avg_sq (uint8), b: exp_avg (uint8), ..."
    )
    assert fails(lambda: qmaps.recommend(states)) == reason
    assert fails(lambda: update_error(states, ["8bit"])) == reason
    assert fails(lambda: qmaps.sweep.run(states, "8bit")) == (
        "no state has more than min_quantized_size=4096 elements, so there is nothing to quantize; "
        f"{WHY}a: exp_avg (uint8), a: exp_avg_sq (uint8), b: exp_avg (uint8), ..."
    )
    small = CapturedStates.from_tensors(
        {"norm": moments(80), "w": {"exp_avg::quantized": packed["exp_avg"]}}
    )
    assert fails(lambda: qmaps.recommend(small)) == (
        "no parameter has more than min_quantized_size=4096 elements, so there is nothing to "
        f"quantize; {WHY}w: exp_avg::quantized (uint8)"
    )


def test_parameters_whose_moments_are_codes_are_left_out_with_a_warning() -> None:
    m, v = moments(80, 80).values()
    mixed = {"exp_avg": (100 * m).to(torch.int8), "exp_avg_sq": v}
    states = CapturedStates.from_tensors({"w": moments(80, 80), "mixed": mixed})
    with pytest.warns(UserWarning, match=WHY) as caught:
        recommendation = qmaps.recommend(states, candidates=["8bit"], bits=8.3, steps=2)
    assert {str(w.message) for w in caught} == {f"{WHY}mixed: exp_avg (int8)"}
    assert set(recommendation.tensors["parameter"]) == {"w"}


def test_a_capture_keeps_codes_and_lint_does_not_judge_them(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.ones(80, 80))
    optimizer = torch.optim.AdamW([weight])
    with StateRecorder(optimizer, tmp_path):
        weight.grad = torch.randn(80, 80)
        optimizer.step()
        optimizer.state[weight]["square_avg"] = torch.zeros(80, 80, dtype=torch.uint8)
        optimizer.step()
    states = load(tmp_path)
    (lazy,) = (lazy for _, state, lazy in states.lazies() if state == "square_avg")
    assert lazy.read().dtype == torch.uint8
    assert [f.check for f in lint_file(tmp_path) if f.state == "square_avg"] == []
