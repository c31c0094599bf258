"""Hooks and parameter groups: torch's class and ours make the same calls."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from qmaps import lpmm
from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.capture import StateRecorder
from qmaps.optim import AdamW, AdamW4bit, AdamW8bit, CPUOffloadOptimizer

Log = list[Any]
TWO = (torch.optim.AdamW, AdamW8bit)
THREE = (*TWO, CPUOffloadOptimizer)


def trained(cls: Any, steps: int = 2) -> tuple[list[nn.Parameter], Any]:
    """Two parameters; the first is quantized."""
    params = [nn.Parameter(torch.ones(80, 70)), nn.Parameter(torch.ones(9))]
    optimizer = cls(params, lr=1e-2)
    for _ in range(steps):
        step(params, optimizer)
    return params, optimizer


def step(params: list[nn.Parameter], optimizer: Any) -> None:
    for number, param in enumerate(params):
        param.grad = torch.full_like(param, number + 1.0)
    optimizer.step()


def outline(saved: dict[str, Any]) -> dict[Any, Any]:
    """The part of a state_dict that is independent of the storage of states."""
    states = {
        key: sorted(value) if isinstance(value, dict) else value
        for key, value in saved["state"].items()
    }
    params = [group["params"] for group in saved["param_groups"]]
    more = {key: value for key, value in saved.items() if key not in ("state", "param_groups")}
    more.pop("qmaps", None)
    return {"state": states, "params": params, **more}


def alike(play: Callable[[Any, Log], object], classes: tuple[Any, ...] = TWO) -> Log:
    """The log of a play with torch's class, checked against the play with ours."""
    logs: list[Log] = []
    for cls in classes:
        log: Log = []
        log.append(play(cls, log))
        logs.append(log)
    theirs, *ours = logs
    assert ours == [theirs] * len(ours)
    return theirs


def test_hooks_of_state_dict_are_called_in_order_with_the_returned_dict() -> None:
    def play(cls: Any, log: Log) -> object:
        _, optimizer = trained(cls)
        optimizer.register_state_dict_pre_hook(lambda o: log.append(("before", o is optimizer)))
        optimizer.register_state_dict_pre_hook(lambda _: log.append("earlier"), prepend=True)

        def add(_: Any, saved: dict[str, Any]) -> None:
            log.append(outline(saved))
            saved["epoch"] = 3

        def replace(_: Any, saved: dict[str, Any]) -> dict[str, Any]:
            log.append(outline(saved))
            return {**saved, "note": "new"}

        def first(_: Any, saved: dict[str, Any]) -> None:
            log.append(outline(saved))
            saved["state"].pop(1)

        optimizer.register_state_dict_post_hook(add)
        optimizer.register_state_dict_post_hook(replace)
        handle = optimizer.register_state_dict_post_hook(first, prepend=True)
        log.append(outline(optimizer.state_dict()))
        handle.remove()
        return outline(optimizer.state_dict())

    log = alike(play, THREE)
    assert log[0] == "earlier"
    assert log[-1]["note"] == "new"


def test_a_hook_sees_no_quantized_tensor_and_the_object_that_is_returned() -> None:
    _, optimizer = trained(AdamW8bit)
    state_dicts: list[dict[str, Any]] = []
    handle = optimizer.register_state_dict_post_hook(lambda _, saved: state_dicts.append(saved))
    saved = optimizer.state_dict()
    assert state_dicts[0] is saved
    assert sorted(saved) == ["param_groups", "qmaps", "state"]
    assert not isinstance(saved["state"][0]["exp_avg"], QuantizedTensor)
    handle.remove()
    assert str(optimizer.state_dict()) == str(saved)
    # A hook may return another object of any type; state_dict returns this object.
    optimizer.register_state_dict_post_hook(lambda *_: {"nothing": "left"})
    assert optimizer.state_dict() == {"nothing": "left"}


@pytest.mark.parametrize("value", [5, None, {"a": 1}, "text", [1, 2]], ids=str)
def test_entries_under_other_keys_are_saved_and_loaded(value: object) -> None:
    def play(cls: Any, log: Log) -> object:
        params, optimizer = trained(cls)
        optimizer.register_state_dict_pre_hook(lambda o: o.state.update(extra=value))
        saved = optimizer.state_dict()
        log.append(outline(saved))
        buffer = io.BytesIO()
        torch.save(saved, buffer)
        buffer.seek(0)
        _, loaded = trained(cls, 1)
        loaded.load_state_dict(torch.load(buffer, weights_only=True))
        log.append(loaded.state["extra"])
        step(params, optimizer)
        return outline(loaded.state_dict())

    assert alike(play)[1] == value


def test_entries_of_other_tensors_and_other_kinds() -> None:
    def play(cls: Any, log: Log) -> object:
        params, optimizer = trained(cls)
        optimizer.state[params[1]] = None
        log.append(outline(optimizer.state_dict()))
        stray = torch.zeros(3)
        optimizer.state[stray] = {"exp_avg": torch.zeros(3)}
        with pytest.raises(KeyError) as caught:
            optimizer.state_dict()
        return caught.value.args == (id(stray),)

    assert alike(play)[-1] is True


def test_other_readers_of_states_skip_such_entries(tmp_path: Any) -> None:
    _, optimizer = trained(AdamW8bit)
    before = optimizer.state_nbytes, str(optimizer.memory())
    optimizer.state["extra"] = 5  # type: ignore[index,assignment]
    assert (optimizer.state_nbytes, str(optimizer.memory())) == before
    recorder = StateRecorder(optimizer, tmp_path / "states")
    step(optimizer.param_groups[0]["params"], optimizer)
    recorder.close()


def test_hooks_of_load_state_dict() -> None:
    def play(cls: Any, log: Log) -> object:
        saved = trained(cls, 3)[1].state_dict()
        _, optimizer = trained(cls)

        def change(_: Any, state_dict: dict[str, Any]) -> dict[str, Any]:
            log.append(outline(state_dict))
            return {**state_dict, "state": {0: state_dict["state"][0]}}

        def first(_: Any, state_dict: dict[str, Any]) -> None:
            log.append(state_dict is saved)
            state_dict["seen"] = True

        optimizer.register_load_state_dict_pre_hook(change)
        optimizer.register_load_state_dict_pre_hook(first, prepend=True)
        optimizer.register_load_state_dict_post_hook(lambda o: log.append(len(o.state)))
        optimizer.register_load_state_dict_post_hook(lambda _: log.append("x"), prepend=True)
        optimizer.load_state_dict(saved)
        return "seen" in saved, outline(optimizer.state_dict())

    log = alike(play, THREE)
    assert log[0] is False  # a copy
    assert log[2:4] == ["x", 1]


def test_hooks_of_steps() -> None:
    def play(cls: Any, log: Log) -> object:
        params, optimizer = trained(cls)
        handles = [
            register_optimizer_step_pre_hook(lambda *_: log.append("all before")),
            register_optimizer_step_post_hook(lambda *_: log.append("all after")),
        ]

        def replace(_: Any, args: Any, kwargs: Any) -> Any:
            log.append((len(args), sorted(kwargs)))
            return args, {"closure": lambda: 7.0}

        optimizer.register_step_pre_hook(replace)
        optimizer.register_step_post_hook(lambda _, args, kwargs: log.append(sorted(kwargs)))
        for param in params:
            param.grad = torch.ones_like(param)
        try:
            return optimizer.step()
        finally:
            for handle in handles:
                handle.remove()

    assert alike(play) == ["all before", (1, []), ["closure"], "all after", 7.0]


def test_hooks_of_a_model_in_low_precision_see_its_gradients_too() -> None:
    torch.manual_seed(0)
    model = nn.Linear(70, 60)
    lpmm.convert(model)
    optimizer = lpmm.LPMMAdam(model.parameters(), accumulation_steps=2)
    model(torch.randn(4, 70)).square().mean().backward()
    optimizer.step()
    calls: Log = []
    optimizer.register_state_dict_post_hook(lambda _, saved: calls.append(saved))
    optimizer.register_load_state_dict_pre_hook(lambda _, state_dict: calls.append(state_dict))
    optimizer.register_load_state_dict_post_hook(lambda o: calls.append(o._micro_batches))
    saved = optimizer.state_dict()
    optimizer._micro_batches = 0
    optimizer.load_state_dict(saved)
    assert calls[0] is saved
    assert calls[0]["accumulated"]["micro_batches"] == 1
    assert str(calls[1]) == str(saved)
    assert calls[2] == 1


def other() -> nn.Parameter:
    return nn.Parameter(torch.ones(2))


BAD_GROUPS: list[Callable[[nn.Parameter], Any]] = [
    lambda p: [p],
    lambda p: p,
    lambda _: None,
    lambda p: (("params", [p]),),
    lambda _: {"lr": 1.0},
    lambda p: {"params": {p}},
    lambda p: {"params": [p, other()]},
    lambda _: {"params": [1]},
    lambda p: {"params": [p * 2]},
    lambda p: {"params": [("a", other()), p]},
    lambda _: {"params": [("a", other())]},
    lambda _: {"params": 5},
    lambda _: {"params": None},
]


@pytest.mark.parametrize("number", range(len(BAD_GROUPS)))
def test_bad_groups_raise_the_errors_of_torch(number: int) -> None:
    def play(cls: Any, _: Log) -> object:
        params, optimizer = trained(cls, 0)
        with pytest.raises((TypeError, ValueError, KeyError)) as caught:
            optimizer.add_param_group(BAD_GROUPS[number](params[0]))
        assert len(optimizer.param_groups) == 1
        return type(caught.value), str(caught.value)

    assert alike(play)


def test_groups_that_torch_takes() -> None:
    def play(cls: Any, log: Log) -> object:
        for more in ({"params": []}, {"params": other(), "lr": 0.5, "name": "head"}):
            _, optimizer = trained(cls)
            optimizer.add_param_group(dict(more))
            group = optimizer.param_groups[1]
            log.append((len(group["params"]), group["lr"], group.get("name")))
        return None

    assert alike(play) == [(0, 0.01, None), (1, 0.5, "head"), None]


@pytest.mark.parametrize(("cls", "near"), [(AdamW4bit, 5e-3), (AdamW8bit, 2e-3), (AdamW, 2e-3)])
def test_a_parameter_that_is_given_twice_steps_twice(cls: Any, near: float) -> None:
    results = []
    for kind in (torch.optim.AdamW, cls):
        param = nn.Parameter(torch.ones(5000))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optimizer = kind([param, param], lr=1e-2)
        for number in range(3):
            param.grad = torch.full_like(param, number + 1.0)
            optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
        results.append((param.detach(), int(optimizer.state[param]["step"])))
    assert results[0][1] == results[1][1] == 6
    torch.testing.assert_close(results[1][0], results[0][0], rtol=near, atol=near)
