"""Master copies: 16-bit parameters step like float32 ones, and are their rounding."""

from __future__ import annotations

import copy
import io
import itertools
from typing import Any

import pytest
import torch
from torch import nn

from qmaps import capture
from qmaps.engines.bfloat16 import SPLITS
from qmaps.engines.masters import MASTER
from qmaps.engines.native import core
from qmaps.engines.native.plan import NativePlan
from qmaps.optim import AdamW, AdamW8bit, QuantizedOptimizer
from tests.training.runs import EVERY, assert_same, gradients, loss_of, make, net, parts

pytestmark = pytest.mark.slow

DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


def params_of(optimizer: QuantizedOptimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def assert_masters(optimizer: QuantizedOptimizer, exact: QuantizedOptimizer) -> None:
    """Copies and states are those of a float32 run, parameters their rounding."""
    for p, q in zip(params_of(optimizer), params_of(exact), strict=True):
        state = dict(optimizer.state[p])
        master = state.pop(MASTER)
        assert master.dtype == torch.float32
        assert torch.equal(master, q)
        assert torch.equal(p, q.to(p.dtype))
        assert state.keys() == exact.state[q].keys()
        for name, value in state.items():
            for x, y in zip(parts(value), parts(exact.state[q][name]), strict=True):
                assert torch.equal(x, y), name


def both(kind: str, dtype: torch.dtype) -> tuple[Any, ...]:
    """A narrow model with master copies, and a wide one with the same values."""
    model, wide = net(dtype), net(dtype).float()
    return (
        model,
        wide,
        make(kind, model.parameters(), master_weights=True),
        make(kind, wide.parameters()),
    )


def step_both(model: nn.Module, wide: nn.Module, *optimizers: Any, number: int) -> None:
    gradients(model.parameters(), number)
    for p, q in zip(model.parameters(), wide.parameters(), strict=True):
        q.grad = p.grad.float()
    for optimizer in optimizers:
        optimizer.step()


@DTYPES
@EVERY
def test_copies_go_as_float32_parameters_do(kind: str, dtype: torch.dtype, engine: str) -> None:
    pair = both(kind, dtype)
    for number in range(4):
        step_both(*pair, number=number)
        assert_masters(*pair[2:])


@pytest.mark.skipif(core is None, reason="the native engine is not built here")
@pytest.mark.parametrize("kind", ["AdamW8bit", "LAMB8bit"])
@DTYPES
def test_the_native_engine_steps_copies(
    kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    run = NativePlan.run
    monkeypatch.setattr(
        NativePlan, "run", lambda p, *arguments: (counts.append(len(p._params)), run(p, *arguments))
    )
    copied = []
    copy_ = torch._foreach_copy_
    monkeypatch.setattr(
        torch, "_foreach_copy_", lambda to, of: (copied.append(len(to)), copy_(to, of))
    )
    monkeypatch.setenv("QMAPS_BACKEND", "native")
    pair = both(kind, dtype)
    for number in range(3):
        step_both(*pair, number=number)
    # The float32 run's steps between.
    assert counts == [4] * 6
    # The engine rounds to bfloat16 by itself.
    assert copied == ([] if dtype == torch.bfloat16 else [4] * 3)
    assert_masters(*pair[2:])


@pytest.mark.parametrize("form", [True, *SPLITS])
def test_small_updates_arrive(form: bool | str, engine: str) -> None:
    exact, lossy = (nn.Parameter(torch.ones(100, dtype=torch.bfloat16)) for _ in range(2))
    optimizer = AdamW(
        [{"params": [exact], "master_weights": form}, {"params": [lossy]}], lr=2.0**-12,
        weight_decay=0,
    )  # fmt: skip
    for _ in range(64):
        exact.grad, lossy.grad = torch.ones_like(exact), torch.ones_like(lossy)
        optimizer.step()
    # Adam's steps under a constant gradient are the learning rate; half a unit is 2**-9.
    assert bool((lossy == 1).all())
    assert bool((exact == 1 - 64 * 2.0**-12).all())


@EVERY
def test_wide_parameters_ignore_the_option(kind: str, engine: str) -> None:
    model, plain = net(), net()
    optimizer = make(kind, model.parameters(), master_weights=True)
    without_copies = make(kind, plain.parameters())
    for number in range(2):
        gradients(model.parameters(), number)
        gradients(plain.parameters(), number)
        optimizer.step()
        without_copies.step()
    assert_same(optimizer, without_copies)


@EVERY
def test_any_strides(kind: str, engine: str) -> None:
    dense = torch.randn(6, 4, 3, 3, generator=torch.Generator().manual_seed(1)).bfloat16()
    p = nn.Parameter(dense.to(memory_format=torch.channels_last))
    q = nn.Parameter(dense.float())
    optimizer, exact = make(kind, [p], master_weights=True), make(kind, [q])
    for number in range(3):
        gradients([q], number)
        q.grad = q.grad.bfloat16().float()
        p.grad = torch.empty_like(p).copy_(q.grad)
        optimizer.step()
        exact.step()
    assert p.is_contiguous(memory_format=torch.channels_last)
    assert optimizer.state[p][MASTER].is_contiguous()
    assert_masters(optimizer, exact)


def train(model: nn.Module, optimizer: QuantizedOptimizer, steps: range) -> None:
    for number in steps:
        optimizer.zero_grad()
        loss_of(model, number).backward()
        optimizer.step()


@EVERY
def test_saved_and_resumed_bit_for_bit(kind: str, engine: str) -> None:
    def begin(**options: Any) -> tuple[nn.Module, QuantizedOptimizer]:
        model = net(torch.bfloat16)
        return model, make(kind, model.parameters(), **options)

    uninterrupted = begin(master_weights=True)
    train(*uninterrupted, range(6))
    first = begin(master_weights=True)
    train(*first, range(3))
    buffer = io.BytesIO()
    torch.save([part.state_dict() for part in first], buffer)
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=True)
    # The option comes from the checkpoint, as all do.
    second = begin()
    for part, state in zip(second, saved, strict=True):
        part.load_state_dict(state)
    copied = copy.deepcopy(second)
    for part in (second, copied):
        train(*part, range(3, 6))
        assert_same(part[1], uninterrupted[1])
    # Without the copies it would have gone otherwise.
    third = begin(master_weights=True)
    for state in saved[1]["state"].values():
        del state[MASTER]
    for part, state in zip(third, saved, strict=True):
        part.load_state_dict(state)
    train(*third, range(3, 6))
    pairs = zip(params_of(third[1]), params_of(uninterrupted[1]), strict=True)
    assert any(not torch.equal(third[1].state[p][MASTER], uninterrupted[1].state[q][MASTER])
               for p, q in pairs)  # fmt: skip


def test_memory_counts_copies() -> None:
    model = net(torch.bfloat16)
    optimizer = make("AdamW8bit", model.named_parameters(), master_weights=True)
    plain = make("AdamW8bit", net(torch.bfloat16).named_parameters())
    before = optimizer.memory()
    numel = sum(p.numel() for p in model.parameters())
    assert before.nbytes == plain.memory().nbytes + 4 * numel
    assert before.nbytes_in_32_bits == 12 * numel
    rows = [row for row in before if row.state == MASTER]
    assert [row.nbytes for row in rows] == [4 * p.numel() for p in model.parameters()]
    assert {(row.quantizer, row.why, row.predicted) for row in rows} == {
        (None, "master_weights=True", True)
    }
    train(model, optimizer, range(1))
    after = optimizer.memory()
    assert after.nbytes == before.nbytes == optimizer.state_nbytes
    assert not after.predicted


def test_an_option_that_changes_between_steps(engine: str) -> None:
    model, wide, optimizer, exact = both("AdamW8bit", torch.bfloat16)
    group = optimizer.param_groups[0]
    for number, wanted in enumerate([True, True, False, True, True]):
        group["master_weights"] = wanted
        step_both(model, wide, optimizer, exact, number=number)
        if not wanted:
            assert not any(MASTER in state for state in optimizer.state.values())
        if number >= 2:
            # Without a copy a step begins and ends at the parameter; a new copy begins there.
            for p, q in zip(model.parameters(), wide.parameters(), strict=True):
                assert torch.equal(p, q.to(p.dtype))
                q.data = q.data if wanted else p.detach().float()
        if number == 1:
            for p, q in zip(model.parameters(), wide.parameters(), strict=True):
                q.data = p.detach().float()
    assert_masters(optimizer, exact)


def test_checkpoints_that_do_not_fit_change_nothing() -> None:
    model = net(torch.bfloat16)
    optimizer = make("AdamW8bit", model.named_parameters(), master_weights=True)
    train(model, optimizer, range(2))
    saved = optimizer.state_dict()

    def message(target: QuantizedOptimizer, state: dict[str, Any]) -> str:
        train(net(next(iter(params_of(target))).dtype), target, range(0))
        before = copy.deepcopy(target.state_dict())
        with pytest.raises((ValueError, TypeError)) as caught:
            target.load_state_dict(state)
        after = target.state_dict()
        assert str(before) == str(after)
        return str(caught.value)

    wide = net()
    target = make("AdamW8bit", wide.named_parameters())
    train(wide, target, range(1))
    assert message(target, saved) == (
        "state_dict has a master copy of parameter '0.weight', which is float32 with "
        "master_weights=True in this optimizer; only bfloat16 and float16 parameters with "
        "master_weights=True have master copies"
    )
    narrow = make("AdamW8bit", net(torch.bfloat16).named_parameters())
    without = copy.deepcopy(saved)
    without["param_groups"][0]["master_weights"] = False
    assert message(narrow, without) == (
        "state_dict has a master copy of parameter '0.weight', which is bfloat16 with "
        "master_weights=False in this optimizer; only bfloat16 and float16 parameters with "
        "master_weights=True have master copies"
    )
    cut = copy.deepcopy(saved)
    cut["state"][1][MASTER] = torch.zeros(7)
    assert message(narrow, cut) == (
        "state_dict has master_param of shape (7,) for parameter '0.bias' of shape (40,)"
    )
    cut["state"][1][MASTER] = "none"
    assert message(narrow, cut) == (
        "master_param of parameter '0.bias' in state_dict must be a tensor, got str"
    )


def test_rounding_and_copies_exclude_each_other() -> None:
    p = nn.Parameter(torch.zeros(3))
    both_ways = {"stochastic_rounding": True, "master_weights": True}
    for params, options in (([p], both_ways), ([{"params": [p], **both_ways}], {})):
        with pytest.raises(ValueError) as caught:
            AdamW8bit(params, **options)
        assert str(caught.value) == (
            "stochastic_rounding=True cannot be combined with master_weights=True: master weights "
            "already keep small updates"
        )
    with pytest.raises(TypeError) as caught:
        AdamW8bit([p], master_weights=1)
    assert str(caught.value) == ("master_weights=1 must be False, True, 'bf16+8' or 'bf16+16'")
    with pytest.raises(ValueError) as caught:
        AdamW8bit([p], master_weights="bf16+4")
    assert str(caught.value) == (
        "master_weights='bf16+4' must be False, True, 'bf16+8' or 'bf16+16'"
    )


@EVERY
def test_a_scaler_and_skipped_steps_leave_copies_alone(kind: str, engine: str) -> None:
    model, plain = net(torch.bfloat16), net(torch.bfloat16)
    options = {"master_weights": True, "nonfinite": "skip"}
    optimizer = make(kind, model.parameters(), **options)
    expected = make(kind, plain.parameters(), master_weights=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=100)
    for number in range(4):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, number)).backward()
        if number == 2:
            model[0].weight.grad[0, 0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        if number != 2:
            expected.zero_grad()
            loss_of(plain, number).backward()
            expected.step()
    assert_same(optimizer, expected)
    before = [p.detach().clone() for p in model.parameters()]
    next(iter(model.parameters())).grad[0, 0] = float("nan")
    optimizer.step()
    assert optimizer.skipped_steps == 1
    for p, value in itertools.zip_longest(model.parameters(), before):
        assert torch.equal(p, value)
    assert_same(optimizer, expected)


def test_captures_hold_copies(tmp_path: Any) -> None:
    model = net(torch.bfloat16)
    optimizer = make("AdamW8bit", model.named_parameters(), master_weights=True)
    with capture.StateRecorder(optimizer, tmp_path, names=model):
        train(model, optimizer, range(2))
    states = capture.load(tmp_path)
    assert states.states("0.weight") == [MASTER, "exp_avg", "exp_avg_sq"]
    assert torch.equal(states.tensor("0.weight", MASTER), optimizer.state[model[0].weight][MASTER])
