"""Master copies: float32 values of parameters that are kept in 16 bits.

With ``master_weights=True`` a rule updates the copy, and the parameter is the copy rounded to the
nearest. Updates below half a unit in the last place of the parameter then add up in the copy. It
takes 4 bytes an element; stochastic rounding (`qmaps.engines.bfloat16`) needs no copy.

The copy is made from the parameter at its first step. From then on the copy holds the value: a
change of the parameter between steps is overwritten by the next step. The copy is row-major in
memory whatever the strides of the parameter are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from qmaps.engines.step import ParameterStep, codes_of

MASTER = "master_param"
"""The name of the copy among a parameter's states."""

NARROW = (torch.bfloat16, torch.float16)
"""Dtypes of parameters that can have a master copy."""


def has_master(param: Tensor, group: Mapping[str, Any]) -> bool:
    """Whether a parameter of this group has a master copy."""
    # Parameters that are kept as codes (`qmaps.lpmm`) are updated differently.
    wanted: bool = group["master_weights"] and param.dtype in NARROW
    return wanted and codes_of(param) is None


def updated(given: ParameterStep) -> Tensor:
    """The tensor that the rule updates: the master copy, or the values of the parameter.

    A missing copy is created in `given.storage`; a copy that is no longer needed is removed.

    Returns:
        The copy, contiguous float32 of the local shape; or ``given.param`` itself.
    """
    if not given.master:
        given.storage.pop(MASTER, None)  # out of date after this step
        return given.param
    if MASTER not in given.storage:
        given.storage[MASTER] = given.param.detach().to(
            torch.float32, memory_format=torch.contiguous_format
        )
    master: Tensor = given.storage[MASTER]
    return master
