"""Steps count once, and optimizers with hidden steps are refused."""

from __future__ import annotations

import gc
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import qmaps
from qmaps.capture import StateRecorder, load
from qmaps.errors import BadTypeError, CaptureError


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> Iterator[int]:
    for number in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 80)).square().mean().backward()
        optimizer.step()
        yield number


def subclass(parent: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """A subclass of a subclass, each with a `step` that calls its parent's, and fails on demand."""
    parent([nn.Parameter(torch.ones(1))])  # torch wraps the step of the parent as well

    class Middle(parent):  # type: ignore[misc, valid-type]
        def step(self, closure: Any = None) -> Any:
            loss = super().step(closure)
            if self.__dict__.pop("fails", False):
                raise RuntimeError("an error in the step")
            return loss

    Middle([nn.Parameter(torch.ones(1))])

    class Clipped(Middle):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    return Clipped


def test_a_step_that_calls_its_parents_step_is_one_step(tmp_path: Path) -> None:
    model = nn.Linear(80, 8)
    optimizer = subclass(torch.optim.AdamW)(model.parameters())
    with StateRecorder(optimizer, tmp_path, names=model, gradients=2):
        assert list(trained(model, optimizer, 3)) == [0, 1, 2]
        optimizer.fails = True  # the step leaves no trace in the count
        with pytest.raises(RuntimeError, match="an error in the step"):
            optimizer.step()
        assert list(trained(model, optimizer, 1)) == [0]
    assert load(tmp_path).steps == [1, 2, 3, 4]
    assert load(tmp_path, step=1).window() == [2, 3, 4]


def test_a_monitor_counts_such_a_step_once() -> None:
    model = nn.Linear(80, 80)
    optimizer = subclass(qmaps.optim.AdamW8bit)(model.parameters())
    with qmaps.Monitor(optimizer, None, every=2) as monitor:
        measured = [monitor.rows[0]["step"] for n in trained(model, optimizer, 6) if n % 2]
    assert measured == [2, 4, 6]
    (row,) = (row for row in monitor.rows if row["state"] == "exp_avg")
    assert row["sqnr_db"] > 20


class HandMade(torch.optim.Optimizer):
    """A wrapper with its own hooks, as in the Lookahead of two packages."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.fast = inner
        self.param_groups, self.state, self.defaults = inner.param_groups, inner.state, {}
        self._optimizer_step_pre_hooks: dict[int, Any] = OrderedDict()
        self._optimizer_step_post_hooks: dict[int, Any] = OrderedDict()

    def step(self, closure: Any = None) -> Any:
        return self.fast.step(closure)


class PlainDicts(HandMade):
    """A wrapper with plain dicts for hooks; nothing can be registered."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner)
        self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = {}, {}


class Forwarding(torch.optim.Optimizer):
    """A wrapper that forwards hooks to the inner optimizer and never runs its own."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.fast = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fast, name)

    def step(self, closure: Any = None) -> Any:
        return self.fast.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.fast.zero_grad(set_to_none)


@pytest.mark.parametrize("wrapper", [HandMade, PlainDicts, Forwarding])
def test_a_wrapper_without_hooks_names_the_optimizer_inside(
    wrapper: type[HandMade | Forwarding], tmp_path: Path
) -> None:
    model = nn.Linear(80, 80)
    wrapped = wrapper(torch.optim.AdamW(model.parameters()))
    name = wrapper.__name__
    with pytest.raises(BadTypeError) as error:
        StateRecorder(wrapped, tmp_path / "states")
    assert str(error.value) == (
        f"optimizer must run the hooks of torch.optim.Optimizer; {name} does not, because its "
        "constructor does not call the base class's; give the optimizer inside it, its attribute "
        "'fast'"
    )
    assert not (tmp_path / "states").exists()
    with StateRecorder(wrapped.fast, tmp_path / "states"):
        list(trained(model, wrapped, 2))
    assert load(tmp_path / "states").steps == [1, 2]
    with pytest.raises(BadTypeError) as error:
        qmaps.Monitor(wrapper(qmaps.optim.AdamW8bit(model.parameters())), None)
    assert str(error.value) == (
        f"optimizer must be one of qmaps.optim, got {name}; give the optimizer inside it, its "
        "attribute 'fast'"
    )


def test_hooks_that_a_wrapper_shares_count_its_steps(tmp_path: Path) -> None:
    class Sharing(Forwarding):
        """A wrapper that runs hooks in its own steps, too."""

    model = nn.Linear(80, 80)
    wrapped = Sharing(torch.optim.AdamW(model.parameters()))
    wrapped._patch_step_function()
    with StateRecorder(wrapped, tmp_path):
        list(trained(model, wrapped, 3))
    assert load(tmp_path).steps == [1, 2, 3]


class InParts(torch.optim.Optimizer):
    """A wrapper that steps parameters one by one, like torch-optstate's."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.optimizer = inner

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def step(self) -> None:  # type: ignore[override]
        (group,) = self.optimizer.param_groups
        every = group["params"]
        for param in every:
            group["params"] = [param]
            self.optimizer.step()
        group["params"] = every


@pytest.mark.filterwarnings("ignore:.* parameters were removed from the groups of AdamW8bit")
@pytest.mark.parametrize("watch", ["recorder", "monitor", "environment"])
def test_steps_in_parts_are_refused(watch: str, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(80, 80, bias=False), nn.Linear(80, 80, bias=False))
    optimizer = qmaps.optim.AdamW8bit(model.parameters())
    kind, handle = "Monitor", None
    if watch == "recorder":
        StateRecorder(optimizer, tmp_path)
        kind = "StateRecorder"
    elif watch == "monitor":
        qmaps.Monitor(InParts(optimizer), tmp_path / "monitor.csv")
    else:  # the monitor is made within the first part
        (tmp_path / "settings.json").write_text(f'{{"out": "{tmp_path / "monitor.csv"}"}}')
        handle = qmaps.capture.monitor.switch_on(tmp_path / "settings.json")
    try:
        with pytest.raises(CaptureError) as error:
            list(trained(model, InParts(optimizer), 2))
    finally:
        if handle is not None:
            handle.remove()
    assert str(error.value) == (
        "AdamW8bit.step() has 1 of 1 parameters that an earlier step left out; "
        f"{kind} supports no wrappers that step an optimizer in parts, such as torch-optstate's"
    )
    assert not list(tmp_path.glob("step-*"))


@pytest.mark.parametrize("watch", ["recorder", "monitor"])
def test_parameters_may_be_removed_while_training(watch: str, tmp_path: Path) -> None:
    model = nn.Sequential(*(nn.Linear(80, 80, bias=False) for _ in range(4)))
    optimizer = qmaps.optim.AdamW8bit(model.parameters())
    csv = tmp_path / "monitor.csv"
    watcher = (
        StateRecorder(optimizer, tmp_path, names=model)
        if watch == "recorder"
        else qmaps.Monitor(optimizer, csv, every=1, window=1)
    )
    with watcher:
        list(trained(model, optimizer, 3))
        # Neither the first nor the last; torch's zero_grad frees its gradient no longer.
        pruned = weakref.ref(model[1].weight)
        del optimizer.param_groups[0]["params"][1]
        del optimizer.state[model[1].weight]
        model[1] = nn.Identity()
        with pytest.warns(UserWarning, match="^1 of 4 parameters were removed") as caught:
            list(trained(model, optimizer, 3))
        del optimizer.param_groups[0]["params"][0]
        list(trained(model, optimizer, 1))
        gc.collect()
        assert pruned() is None
    assert [str(warning.message) for warning in caught] == [
        "1 of 4 parameters were removed from the groups of AdamW8bit; "
        f"{type(watcher).__name__} goes on without them from the next step on"
    ]
    if watch == "recorder":
        assert load(tmp_path).steps == [1, 2, 3, 5, 6]
        assert len(load(tmp_path).parameters()) == 3
    else:
        steps = [line.split(",")[0] for line in csv.read_text().splitlines()[1:]]
        assert list(dict.fromkeys(steps)) == ["2", "3", "5", "6"]
