"""Checkpoints of ``torch.optim.Adafactor``, whose rule differs from the paper's in two places."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qmaps.algebra.feedback import restored
from qmaps.algebra.quantizer import QuantizedTensor

if TYPE_CHECKING:
    from qmaps.optim.base import QuantizedOptimizer

SLOW = 1e-6
"""A learning rate that 1 / sqrt(step) takes 10^12 steps to reach."""


def with_options(saved: Any) -> Any:
    """A checkpoint with the options that stand for torch's rule, where it is torch's.

    Its weight decay is that of ``scale_weight_decay=False``, and its eps[0] is a floor, not what
    is added to squares.
    """
    groups = saved.get("param_groups") if isinstance(saved, Mapping) else None
    if not isinstance(groups, (list, tuple)):
        return saved
    return {**saved, "param_groups": [_with_options(group) for group in groups]}


def warn(optimizer: QuantizedOptimizer, saved: Mapping[str, Any]) -> None:
    """Tell where steps will not be torch's after such a checkpoint has been loaded."""
    below: list[str] = []
    number = 0
    for group, its in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        if not _is_torchs(its):
            number += len(group["params"])
            continue
        lr, (floor, *_) = float(group["lr"]), its.get("eps") or (None,)
        if group["weight_decay"] and group["relative_step"] and lr > SLOW:
            warnings.warn(
                "torch.optim.Adafactor decays weights by lr * weight_decay, but Adafactor of "
                "qmaps by min(lr, 1 / sqrt(step)) * weight_decay, which is less from step "
                f"{int(lr**-2) + 1} on",
                stacklevel=5,
            )
        for position, param in enumerate(group["params"]):
            if _is_below(floor, param, optimizer.state.get(param, {})):
                names = group.get("param_names")
                below.append(repr(names[position]) if names else f"number {number}")
            number += 1
    if below:
        warnings.warn(
            "torch.optim.Adafactor keeps second moments above eps[0], but Adafactor of qmaps does "
            f"not: updates of {len(below)} parameters will differ while their second moments are "
            f"lower, the first of them parameter {below[0]:.80}",
            stacklevel=5,
        )


def _is_torchs(group: Any) -> bool:
    return isinstance(group, Mapping) and "beta2_decay" in group and "factored" not in group


def _with_options(group: Any) -> Any:
    if not _is_torchs(group):
        return group
    eps = group.get("eps")
    known = {"eps": (None, eps[1])} if isinstance(eps, (list, tuple)) and len(eps) == 2 else {}
    return {**group, "scale_weight_decay": False, **known}


def _is_below(floor: float | None, param: Tensor, state: Mapping[str, Any]) -> bool:
    """Return True if torch would raise a second moment to its floor, which is that of its root."""
    if floor is None:
        floor = torch.finfo(param.dtype).eps
    if "row_var" in state:
        found, least = _floats(state["row_var"]).mean(dim=-2), floor
    elif "variance" in state:
        found, least = _floats(state["variance"]), floor * floor
    else:
        return False
    return bool(((found > 0) & (found < least)).any())


def _floats(value: Tensor | QuantizedTensor) -> Tensor:
    return restored(value) if isinstance(value, QuantizedTensor) else value
