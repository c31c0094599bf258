"""Checkpoints of runs with resets (`reset_every`)."""

from __future__ import annotations

import pytest
import torch

from qmaps.capture.conversion import convert_state_dict
from qmaps.errors import CaptureError
from qmaps.optim import AdamW, AdamW8bit
from tests.capture.conversion.nets import resumed, trained

NOTE = (
    "the states of 4 parameters were reset (reset_every); their step is the number of steps since "
    "then"
)


def test_another_library_counts_from_the_last_reset() -> None:
    """Bias corrections continue; its next steps equal ours without further resets."""
    net, ours = trained(AdamW, reset_every=3, state_quantizers=None)
    saved = ours.state_dict()
    assert int(saved["state"][0]["step"]) == 5
    assert int(saved["state"][0]["reset_step"]) == 3
    converted, report = convert_state_dict(saved, "torch")
    assert all(float(state["step"]) == 2 for state in converted["state"].values())
    assert all("reset_step" not in state for state in converted["state"].values())
    assert "reset_every" not in converted["param_groups"][0]
    assert report.notes == (NOTE,)
    weights = resumed(net, torch.optim.AdamW, converted, foreach=False)
    saved["param_groups"][0]["reset_every"] = None
    assert torch.allclose(weights, resumed(net, AdamW, saved), rtol=1e-5, atol=1e-7)
    wrong = {**converted, "state": {
        number: {**state, "step": torch.tensor(5.0)} for number, state in converted["state"].items()
    }}  # fmt: skip
    assert not torch.allclose(weights, resumed(net, torch.optim.AdamW, wrong), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("target", ["bitsandbytes", "torchao"])
def test_every_other_format(target: str) -> None:
    _, ours = trained(AdamW8bit, reset_every=4)
    converted, report = convert_state_dict(ours.state_dict(), target)
    assert all(int(state["step"]) == 1 for state in converted["state"].values())
    assert NOTE in report.notes


def test_qmaps_keeps_both_numbers() -> None:
    net, ours = trained(AdamW8bit, reset_every=3)
    saved = ours.state_dict()
    converted, report = convert_state_dict(saved, "qmaps")
    assert int(converted["state"][0]["step"]) == 5
    assert int(converted["state"][0]["reset_step"]) == 3
    assert report.notes == ()
    weights = resumed(net, AdamW8bit, converted)
    assert weights.equal(resumed(net, AdamW8bit, saved))


def test_a_reset_that_is_still_to_come_is_refused() -> None:
    _, ours = trained(AdamW8bit, reset_every=3)
    saved = ours.state_dict()
    saved["state"][0]["reset_step"] = torch.tensor(7.0)
    with pytest.raises(CaptureError) as caught:
        convert_state_dict(saved, "torch")
    assert str(caught.value) == (
        "the states of '0.weight' cannot be converted: reset_step=7 is above step=5"
    )
