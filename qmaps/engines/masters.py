"""Master copies: float32 values of parameters that are kept in 16 bits.

With ``master_weights=True`` a rule updates the copy, and the parameter is the copy rounded to the
nearest. Updates below half a unit in the last place of the parameter then add up in the copy. It
takes 4 bytes an element; stochastic rounding (`qmaps.optim.bfloat16`) takes none.

The copy is made of the parameter as its first step finds it. From then on it decides: what changes
the parameter between steps is overwritten by the next one. It lies row-major in memory whatever the
strides of the parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from qmaps.distributed.shards import local

MASTER = "master_param"
"""The name of the copy among a parameter's states."""

NARROW = (torch.bfloat16, torch.float16)
"""Dtypes of parameters that a copy goes with."""


def has_master(param: Tensor, group: Mapping[str, Any]) -> bool:
    """Whether a parameter of this group is updated by way of a copy."""
    # Parameters that are kept as codes (`qmaps.lpmm`) have a way of their own.
    wanted: bool = group["master_weights"] and param.dtype in NARROW
    return wanted and not hasattr(param, "codes")


def updated(param: Tensor, group: Mapping[str, Any], state: dict[str, Any]) -> Tensor:
    """What the rule updates: the copy, made if need be, or the parameter itself, where it is."""
    here = local(param)
    if not has_master(param, group):
        state.pop(MASTER, None)  # out of date from now on
        return here
    if MASTER not in state:
        state[MASTER] = here.detach().to(torch.float32, memory_format=torch.contiguous_format)
    master: Tensor = state[MASTER]
    return master
