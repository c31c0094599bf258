"""The parameters of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from qmaps.engines.sharding.shards import any_distributed, local

if TYPE_CHECKING:
    from qmaps.optim.base import QuantizedOptimizer


Entry = tuple[int, Tensor, dict[str, Any], Tensor]
"""A parameter that has a gradient: number, parameter, group, gradient.

The number counts all parameters of all groups. Of a sharded parameter these are the DTensor and the
local part of the gradient.
"""


def with_gradients(optimizer: QuantizedOptimizer) -> list[Entry]:
    """Every parameter of an optimizer that has a gradient."""
    params = [(param, group) for group in optimizer.param_groups for param in group["params"]]
    entries = [
        (number, param, group, grad)
        for number, (param, group) in enumerate(params)
        if (grad := param.grad) is not None
    ]
    if any_distributed(entry[3] for entry in entries):
        entries = [(*entry[:3], local(entry[3])) for entry in entries]
    return entries


def label_of(optimizer: QuantizedOptimizer, number: int) -> str:
    """Label of a parameter in messages: its name, or its number where there are no names."""
    rest = number
    for group in optimizer.param_groups:
        if rest < len(group["params"]):
            names = group.get("param_names")
            return f"parameter {names[rest]!r}" if names else f"parameter number {rest}"
        rest -= len(group["params"])
    raise IndexError(number)
