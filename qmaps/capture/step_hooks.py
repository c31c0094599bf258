"""Hooks of ``optimizer.step()``."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import torch

from qmaps.errors import BadTypeError

HOOKS = "_optimizer_step_post_hooks"
"""Attribute of every optimizer whose constructor has run."""


def unwrapped(optimizer: Any) -> Any:
    """Return the optimizer inside wrappers without hooks, such as accelerate's."""
    while (
        isinstance(optimizer, torch.optim.Optimizer)
        and not hasattr(optimizer, HOOKS)
        and hasattr(optimizer, "optimizer")
    ):
        optimizer = optimizer.optimizer
    return optimizer


def check_hooks(optimizer: torch.optim.Optimizer) -> None:
    """Raise a BadTypeError if hooks of the optimizer cannot be registered, or never run.

    Some wrappers have hooks of their own making, without torch's constructor.
    """
    try:
        for register in (
            optimizer.register_step_pre_hook,
            optimizer.register_step_post_hook,
            optimizer.register_load_state_dict_post_hook,
        ):
            register(_nothing).remove()
        runs = getattr(type(optimizer).step, "hooked", False)
    except (AttributeError, TypeError):  # no dict of hooks, or one that is a plain dict
        runs = False
    if runs:
        return
    raise BadTypeError(
        f"optimizer must run the hooks of torch.optim.Optimizer; {type(optimizer).__name__} does "
        f"not, because its constructor does not call the base class's{inside(optimizer)}"
    )


def inside(wrapper: Any) -> str:
    """Return advice, for a message, to give the optimizer in a wrapper; empty if there is none."""
    members = getattr(wrapper, "__dict__", {}).items()
    names = [name for name, value in members if isinstance(value, torch.optim.Optimizer)]
    return f"; give the optimizer inside it, its attribute {names[0]!r}" if names else ""


def _nothing(*_: Any) -> None:
    """Do nothing, as a hook."""


def once_per_step(
    optimizer: torch.optim.Optimizer, action: Callable[[], None]
) -> Callable[..., None]:
    """Return a hook that calls `action` once for a step, also if it calls ``super().step()``.

    Torch makes the `step` of each class run the hooks, if an instance of the class was constructed
    before.
    """
    classes = type(optimizer).__mro__
    steps = {inspect.unwrap(vars(each)["step"]) for each in classes if "step" in vars(each)}
    calls_others = len(steps - {inspect.unwrap(torch.optim.Optimizer.step)}) > 1

    def hook(stepping: torch.optim.Optimizer, *_: Any) -> None:
        if stepping is not optimizer:  # a wrapper may share the hooks of the optimizer inside
            return
        if calls_others:
            caller = sys._getframe(1)
            if _is_running(optimizer, caller.f_code, caller.f_back):
                return
        action()

    return hook


def _is_running(optimizer: torch.optim.Optimizer, code: CodeType, frame: FrameType | None) -> bool:
    """Return True if torch's function around a step, `code`, runs for this optimizer from `frame`.

    The call stack tells it also after a step that ended in an error, where a counter would not.
    """
    while frame is not None:
        if frame.f_code is code and any(x is optimizer for x in frame.f_locals.values()):
            return True
        frame = frame.f_back
    return False
