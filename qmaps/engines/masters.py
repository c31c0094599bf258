"""Master weights: more precise values of 16-bit parameters.

A rule updates these values, and the parameter is such a value rounded to the nearest. So updates
below half a unit in the last place of the parameter add up. `master_weights` says how they are
stored:

- ``True``: a float32 copy of the parameter, 4 bytes an element. From the first step on the copy
  holds the value: a change of the parameter between steps is overwritten by the next step.
- ``"bf16+8"`` and ``"bf16+16"``: a remainder of 1 or 2 bytes an element beside a bfloat16
  parameter (`qmaps.engines.bfloat16`). With 16 bits, values are those of the float32 copy; with 8
  bits they have 16 significant bits. A parameter changed between steps keeps the change.

Both begin with the value of the parameter at its first step, and are row-major in memory whatever
the strides of the parameter are. Stochastic rounding (`qmaps.engines.bfloat16`) needs neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from qmaps.engines.bfloat16 import SPLITS, join, split
from qmaps.engines.step import ParameterStep, codes_of

MASTER = "master_param"
"""The name of the float32 copy among a parameter's states."""

REMAINDER = "master_remainder"
"""The name of the remainder among a parameter's states."""

FORMS = (False, True, *SPLITS)
"""What `master_weights` can be."""

NARROW = (torch.bfloat16, torch.float16)
"""Dtypes of parameters that can have a master copy."""


def master_dtypes(param: Tensor, group: Mapping[str, Any]) -> dict[str, torch.dtype]:
    """The dtype of a parameter's `MASTER` or `REMAINDER`, by name; empty if it has neither."""
    form = group["master_weights"]
    # Parameters that are kept as codes (`qmaps.lpmm`) are updated differently.
    if form is False or param.dtype not in NARROW or codes_of(param) is not None:
        return {}
    if form is True:
        return {MASTER: torch.float32}
    dtype = SPLITS.get(form) if param.dtype == torch.bfloat16 else None
    return {} if dtype is None else {REMAINDER: dtype}


def updated(parameter: ParameterStep) -> Tensor:
    """The tensor updated by the rule: the master copy, or the parameter.

    A missing copy or remainder is created in ``parameter.storage`` from the stored values; an
    unused one is removed.
    """
    storage, param = parameter.storage, parameter.param
    if parameter.master:
        if MASTER not in storage:
            storage[MASTER] = exact(param.detach(), storage)
        storage.pop(REMAINDER, None)  # out of date after this step
        master: Tensor = storage[MASTER]
        return master
    if parameter.remainder is not None:
        remainder = storage.get(REMAINDER)
        if remainder is None and MASTER not in storage:
            storage[REMAINDER] = torch.zeros(
                param.shape, dtype=parameter.remainder, device=param.device
            )
        elif remainder is None or remainder.dtype != parameter.remainder:
            rounded, storage[REMAINDER] = split(exact(param, storage), parameter.remainder)
            param.copy_(rounded)
    else:
        storage.pop(REMAINDER, None)
    storage.pop(MASTER, None)
    return param


def exact(param: Tensor, storage: Mapping[str, Any]) -> Tensor:
    """Values of a parameter's master weights, or of the parameter if it has none.

    Contiguous float32: the master copy itself, or a new tensor.
    """
    if MASTER in storage:
        master: Tensor = storage[MASTER]
        return master
    if REMAINDER in storage:
        return join(param, storage[REMAINDER])
    return param.to(torch.float32, memory_format=torch.contiguous_format, copy=True)
