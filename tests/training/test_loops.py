"""Steps in a training loop: clipping, schedules, closures, accumulation."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import lr_scheduler

from tests.training.runs import EVERY, assert_same, every_with, gradients, loss_of, make, net

pytestmark = pytest.mark.slow


@EVERY
def test_steps_use_clipped_gradients(kind: str, engine: str) -> None:
    model, plain = net(), net()
    optimizer, by_hand = make(kind, model.parameters()), make(kind, plain.parameters())
    for number in range(4):
        gradients(model.parameters(), number)
        gradients(plain.parameters(), number)
        grads = [p.grad for p in plain.parameters()]
        if number % 2:
            clip_grad_value_(model.parameters(), 0.5)
            for g in grads:
                g.copy_(g.clip(-0.5, 0.5))
        else:
            total = clip_grad_norm_(model.parameters(), 0.5)
            for g in grads:
                g.copy_(g * (0.5 / (total + 1e-6)).clamp(max=1.0))
        optimizer.step()
        by_hand.step()
    assert_same(optimizer, by_hand)


SCHEDULES = {
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=6),
    "warmup": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: min(1.0, (epoch + 1) / 4)),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(
        o, max_lr=0.02, total_steps=8, cycle_momentum=False
    ),
    "sequence": lambda o: lr_scheduler.SequentialLR(
        o,
        [lr_scheduler.ConstantLR(o, 0.5, 2), lr_scheduler.ExponentialLR(o, 0.9)],
        milestones=[3],
    ),
}


@pytest.mark.filterwarnings("ignore:The epoch parameter")  # torch's own SequentialLR gives it
@pytest.mark.parametrize("as_tensor", [False, True])
@every_with("schedule", SCHEDULES, ["AdamW8bit"])  # a schedule only sees the groups
def test_schedules_of_the_learning_rate(
    kind: str, schedule: str, as_tensor: bool, engine: str
) -> None:
    model, plain = net(), net()
    lr = torch.tensor(0.01) if as_tensor else 0.01
    optimizer = make(kind, model.parameters(), lr=lr)
    scheduler = SCHEDULES[schedule](optimizer)
    by_hand = make(kind, plain.parameters())
    rates = []
    for number in range(5):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        by_hand.param_groups[0]["lr"] = rates[-1]
        gradients(model.parameters(), number)
        gradients(plain.parameters(), number)
        optimizer.step()
        by_hand.step()
        scheduler.step()
    assert isinstance(optimizer.param_groups[0]["lr"], torch.Tensor) == as_tensor
    assert len(set(rates)) > 1
    assert_same(optimizer, by_hand)


@pytest.mark.parametrize("as_tensor", [False, True])
@EVERY
def test_a_resumed_schedule_goes_on(kind: str, as_tensor: bool) -> None:
    def begin() -> tuple:
        model = net()
        lr = torch.tensor(0.01) if as_tensor else 0.01
        optimizer = make(kind, model.parameters(), lr=lr, seed=2)
        return model, optimizer, lr_scheduler.CosineAnnealingLR(optimizer, T_max=6)

    def train(model, optimizer, scheduler, steps: range) -> None:
        for number in steps:
            gradients(model.parameters(), number)
            optimizer.step()
            scheduler.step()

    uninterrupted, first, second = begin(), begin(), begin()
    train(*uninterrupted, range(5))
    train(*first, range(3))
    buffer = io.BytesIO()
    torch.save([part.state_dict() for part in first], buffer)
    buffer.seek(0)
    for part, saved in zip(second, torch.load(buffer, weights_only=True), strict=True):
        part.load_state_dict(saved)
    train(*second, range(3, 5))
    assert_same(second[1], uninterrupted[1])


@EVERY
def test_a_plateau_lowers_the_learning_rate(kind: str) -> None:
    model = net()
    optimizer = make(kind, model.parameters())
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    for number in range(3):
        gradients(model.parameters(), number)
        optimizer.step()
        scheduler.step(1.0)
    assert optimizer.param_groups[0]["lr"] == 0.0025


@EVERY
def test_a_closure_gives_loss_and_gradients(kind: str, engine: str) -> None:
    model, plain = net(), net()
    optimizer, usual = make(kind, model.parameters()), make(kind, plain.parameters())
    for number in range(3):

        def closure(number: int = number) -> torch.Tensor:
            assert torch.is_grad_enabled()
            optimizer.zero_grad()
            loss = loss_of(model, number)
            loss.backward()
            return loss

        actual = optimizer.step(closure)
        usual.zero_grad()
        loss = loss_of(plain, number)
        loss.backward()
        usual.step()
        assert torch.equal(actual, loss)
    assert_same(optimizer, usual)


@every_with("to_none", [False, True])
def test_accumulated_gradients(kind: str, to_none: bool, engine: str) -> None:
    model, plain = net(), net()
    optimizer, once = make(kind, model.parameters()), make(kind, plain.parameters())
    for number in range(0, 6, 2):
        optimizer.zero_grad(set_to_none=to_none)
        loss_of(model, number).backward()
        loss_of(model, number + 1).backward()
        optimizer.step()
        sums = []
        for number_of_batch in (number, number + 1):
            plain.zero_grad()
            loss_of(plain, number_of_batch).backward()
            sums.append([p.grad.clone() for p in plain.parameters()])
        for p, first, second in zip(plain.parameters(), *sums, strict=True):
            p.grad = first + second
        once.step()
    assert_same(optimizer, once)


@EVERY
def test_hooks_and_copies_of_the_whole_loop(kind: str) -> None:
    model = net()
    optimizer = make(kind, model.parameters(), lr=torch.tensor(0.01))
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)
    counted = []
    gradients(model.parameters(), 0)
    optimizer.step()
    scheduler.step()
    model2, optimizer2, scheduler2 = copy.deepcopy((model, optimizer, scheduler))
    for trained, opt, sched in ((model, optimizer, scheduler), (model2, optimizer2, scheduler2)):
        opt.register_step_post_hook(lambda *_: counted.append(1))
        gradients(trained.parameters(), 1)
        opt.step()
        sched.step()
    assert len(counted) == 2
    assert scheduler2.optimizer is optimizer2
    assert_same(optimizer, optimizer2)
