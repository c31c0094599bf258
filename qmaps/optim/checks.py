"""Checks of parameters, gradients and states before a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qmaps.algebra.dense import overlaps_itself, unsupported_reason
from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.engines.addresses import check_memory
from qmaps.engines.bfloat16 import SPLITS
from qmaps.engines.masters import MASTER, REMAINDER
from qmaps.engines.sharding.shards import is_distributed, local
from qmaps.engines.step import ParameterStep, codes_of
from qmaps.errors import BadTypeError, BadValueError
from qmaps.optim.entries import Entry, label_of

if TYPE_CHECKING:
    from qmaps.optim.base import QuantizedOptimizer

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Dtypes of parameters that optimizers step; steps are computed in float32."""
_ALLOWED = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)


def check_last_group(optimizer: QuantizedOptimizer) -> None:
    """Raise if the newest group has parameters that the optimizer cannot step."""
    number = sum(len(group["params"]) for group in optimizer.param_groups[:-1])
    for param in optimizer.param_groups[-1]["params"]:
        # Frozen parameters may have any dtype: the packed weights of a quantized base model, say.
        if param.requires_grad:
            check_parameter(optimizer, number, param)
            _check_master_weights(optimizer, number, param, optimizer.param_groups[-1])
        number += 1


def check_parameter(optimizer: QuantizedOptimizer, number: int, param: Tensor) -> None:
    """Raise if the optimizer cannot step a parameter."""
    if optimizer.steps_codes and codes_of(param) is not None:
        return
    if param.dtype not in DTYPES:
        raise BadTypeError(
            f"the dtype of {label_of(optimizer, number)} must be one of {_ALLOWED}, got "
            f"{_plain(param)}"
        )
    if why := optimizer.unsupported_reason(param):
        raise BadValueError(f"{label_of(optimizer, number)} {why}")
    if stepped_by := getattr(type(param), "stepped_by", ""):
        raise BadTypeError(
            f"{label_of(optimizer, number)} is a {type(param).__name__}, which "
            f"{type(optimizer).__name__} would round after each operation; use {stepped_by} for "
            "converted models"
        )


def _check_master_weights(
    optimizer: QuantizedOptimizer, number: int, param: Tensor, group: dict[str, Any]
) -> None:
    """Raise if master weights of a group have a form that the parameter cannot have."""
    form = group["master_weights"]
    if form in SPLITS and param.dtype == torch.float16 and codes_of(param) is None:
        raise BadValueError(
            f"master_weights={form!r} stores remainders of bfloat16 parameters, but "
            f"{label_of(optimizer, number)} is float16; master_weights=True stores float32 copies "
            "of both"
        )


def check_gradient(optimizer: QuantizedOptimizer, entry: Entry) -> None:
    """Raise if the optimizer cannot take a step with a gradient."""
    number, param, group, grad = entry
    if optimizer.steps_codes and codes_of(param) is not None:
        return
    label = label_of(optimizer, number)
    if grad.is_sparse:
        raise BadTypeError(
            f"the gradient of {label} must be dense, got a sparse gradient; embeddings with "
            "sparse=False have dense gradients"
        )
    # Steps of parameters and gradients that are all on the meta device change nothing.
    without_values = param.is_meta and grad.is_meta
    for kind, tensor in (("", param), ("the gradient of ", grad)):
        if (why := unsupported_reason(tensor)) and not without_values:
            raise BadTypeError(f"{kind}{label} {why}; expected a dense tensor with values")
    if param.dtype not in DTYPES or not grad.is_floating_point():
        raise BadTypeError(
            f"{label} is {_plain(param)} and its gradient is {_plain(grad)}; the parameter must be "
            f"one of {_ALLOWED}, and the gradient must be floating-point"
        )
    check_parameter(optimizer, number, param)
    _check_master_weights(optimizer, number, param, group)
    if not is_distributed(param) and overlaps_itself(param):
        raise BadValueError(
            f"several elements of {label} share one memory location; each element needs its own"
        )
    if grad.shape != (here := local(param)).shape:
        raise BadValueError(
            f"the gradient of {label} must have shape {tuple(here.shape)}, got shape "
            f"{tuple(grad.shape)}"
        )
    check_memory(here, label)
    check_memory(grad, f"the gradient of {label}")


def check_states(given: ParameterStep, shape: tuple[int, ...]) -> None:
    """Raise if a parameter's states do not fit its shape, as after resizing it by ``.data``.

    Args:
        given: the parameter, with its states in ``given.storage``.
        shape: the shape of the parameter, all shards together.
    """
    needed = {state.name: state.shape for state in given.states}
    whole = tuple(given.param.shape)
    for name, own in (needed | {"step": (), MASTER: whole, REMAINDER: whole}).items():
        if (value := given.storage.get(name)) is None:
            continue
        if tuple(value.shape) != own:
            raise BadValueError(
                f"{name} of {given.label} must have shape {own} for a parameter of shape {shape}, "
                f"got shape {tuple(value.shape)}"
            )
        if isinstance(value, QuantizedTensor):
            value.check()
        else:
            check_memory(value, f"{name} of {given.label}")


def _plain(tensor: Tensor) -> str:
    """A dtype's name."""
    return str(tensor.dtype).removeprefix("torch.")
