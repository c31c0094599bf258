"""Steps in Triton's interpreter have the bits of the reference; `test_grid.py` has the rest."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from qmaps import optim
from qmaps.ops.backends import use_backend
from tests.engines.triton.steps import Pair
from tests.engines.triton.test_trace import Own

pytestmark = pytest.mark.usefixtures("interpreter")


def check(pair: Pair, steps: int = 2, unsupported: int = 0) -> None:
    for step in range(steps):
        pair.step(step)
        pair.check()
    counts = pair.ours.engine_counts()
    assert counts.get("triton", 0) == len(pair.params[0]) - unsupported, counts


def test_whole_ragged_and_unaligned_tiles() -> None:
    check(Pair(optim.AdamW, (1025, 6), "float32", state_quantizers="8bit"))


def test_four_bits_of_parameters_rounded_stochastically() -> None:
    options: dict[str, Any] = {"state_quantizers": "4bit", "stochastic_rounding": True}
    check(Pair(optim.AdamW, (300,), "bfloat16", **options))


def test_bfloat16_rounded_to_nearest() -> None:
    check(Pair(optim.SGD, (300,), "bfloat16", state_quantizers="8bit", momentum=0.9))


def test_random_numbers_of_philox() -> None:
    check(Pair(optim.Lion, (301,), "float16", state_quantizers={"exp_avg": "B128/DE@3s+sr"}))


def test_master_weights() -> None:
    pair = Pair(optim.Lion, (70,), "float16", state_quantizers="8bit", master_weights=True)
    check(pair)


def test_an_optimizer_of_ones_own() -> None:
    class Signed(Own):
        def change(self, p: Any, g: Any, m: Any, s: Any) -> None:
            m.mul_(0.9).add_(g * 0.1)
            p.sub_(torch.where(m.abs() > 1e-3, torch.sign(m), m / (m.abs() + 1e-3)) * s["lr"])

    check(Pair(Signed, (70,), "float32", state_quantizers="8bit"))


def test_untraceable_rules_step_on_the_reference() -> None:
    class Centered(Own):
        def change(self, p: Any, g: Any, m: Any, s: Any) -> None:
            m.mul_(0.9).add_(g * 0.1)
            p.sub_((m - m.mean()) * s["lr"])

    pair = Pair(Centered, (70,), "float32", state_quantizers="8bit")
    check(pair, steps=1, unsupported=1)
    reason = "reference: its rule cannot be traced: it calls mean"
    assert pair.ours.engine_counts(reasons=True) == {reason: 1}


def test_groups_and_counts_of_their_own() -> None:
    pair = Pair(optim.NAdam, (40, 50), "float32", state_quantizers="8bit")
    pair.step(0)
    for params, optimizer in zip(pair.params, (pair.ours, pair.theirs), strict=True):
        more = torch.nn.Parameter(torch.ones(60))
        params.append(more)
        optimizer.add_param_group({"params": [more], "lr": 0.5, "weight_decay": 0.1})
    check(pair, steps=2)


def test_counters_that_others_change() -> None:
    pair = Pair(optim.AdamW, (40,), "float32", state_quantizers="8bit")
    check(pair, steps=2)
    for params, optimizer in zip(pair.params, (pair.ours, pair.theirs), strict=True):
        optimizer.state[params[0]]["step"].fill_(1000)
    check(pair, steps=1)
    assert float(pair.ours.state[pair.params[0][0]]["step"]) == 1001


def test_a_branch_that_a_later_step_takes() -> None:
    pair = Pair(optim.SGD, (40,), "float32", state_quantizers="8bit", momentum=0.9)
    pair.step(0)
    for optimizer in (pair.ours, pair.theirs):
        optimizer.param_groups[0]["weight_decay"] = 0.5
    check(pair, steps=2)


def test_skipped_steps() -> None:
    pair = Pair(optim.SGD, (40,), "float32", nonfinite="skip", momentum=0.9)
    pair.step(0)
    before = pair.params[0][0].clone()
    pair.params[0][0].grad = torch.full((40,), torch.inf)
    pair.ours.step()
    assert torch.equal(pair.params[0][0], before)
    assert pair.ours.skipped_steps == 1


def test_a_checkpoint_of_another_engine() -> None:
    pair = Pair(optim.AdamW, (70,), "float32", state_quantizers="4bit")
    with use_backend("reference"):
        pair.ours.step()
        pair.step(0)
    pair.ours.load_state_dict(pair.theirs.state_dict())
    check(pair, steps=1)
