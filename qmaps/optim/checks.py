"""Checks of parameters, gradients and states before a step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from qmaps.algebra.dense import overlaps_itself
from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.engines.addresses import check_memory, check_readable
from qmaps.engines.bfloat16 import SPLITS
from qmaps.engines.masters import MASTER, REMAINDER
from qmaps.engines.sharding.shards import is_flat
from qmaps.engines.step import ParameterStep, codes_of
from qmaps.errors import BadTypeError, BadValueError
from qmaps.maps.fitted import FittedMap
from qmaps.optim.records import ParameterRecord, Parameters, is_whole
from qmaps.optim.rule import MatrixRule

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Dtypes of parameters that optimizers step; steps are computed in float32."""
_ALLOWED = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)


def check_last_group(parameters: Parameters) -> None:
    """Raise if the optimizer cannot step a parameter of the newest group."""
    for record in parameters.records():
        # Frozen parameters may have any dtype: the packed weights of a quantized base model, say.
        if record.group is parameters.groups[-1] and record.param.requires_grad:
            check_parameter(record)


def check_parameter(record: ParameterRecord) -> None:
    """Raise if the optimizer cannot step a parameter."""
    param, rule = record.param, record.rule
    if rule._steps_codes and codes_of(param) is not None:
        return
    if param.dtype not in DTYPES:
        raise BadTypeError(
            f"the dtype of {record.label} must be one of {_ALLOWED}, got {_plain(param)}"
        )
    if why := rule.unsupported_reason(param):
        raise BadValueError(f"{record.label} {why}")
    if stepped_by := getattr(type(param), "stepped_by", ""):
        raise BadTypeError(
            f"{record.label} is a {type(param).__name__}, which {type(rule).__name__} would "
            f"round after each operation; use {stepped_by} for converted models"
        )
    group = record.group
    quantizes = any(group["state_quantizers"].values()) or group["overrides"]
    if is_flat(param) and group["quantize"] and quantizes:
        raise BadTypeError(
            f"{record.label} is flattened by FullyShardedDataParallel (FSDP1), which does not save "
            "quantized states; shard the model by torch.distributed.fsdp.fully_shard (FSDP2)"
        )
    form = group["master_weights"]
    if form in SPLITS and param.dtype == torch.float16 and codes_of(param) is None:
        raise BadValueError(
            f"master_weights={form!r} stores remainders of bfloat16 parameters, but "
            f"{record.label} is float16; master_weights=True stores float32 copies of both"
        )


def check_gradient(record: ParameterRecord, grad: Tensor) -> None:
    """Raise if the optimizer cannot take a step with a gradient."""
    param = record.param
    if record.rule._steps_codes and codes_of(param) is not None:
        return
    label = record.label
    if grad.is_sparse:
        raise BadTypeError(
            f"the gradient of {label} must be dense, got a sparse gradient; embeddings with "
            "sparse=False have dense gradients"
        )
    # Steps of parameters and gradients that are all on the meta device change nothing.
    if not (param.is_meta and grad.is_meta):
        check_readable(record.local, label)
        check_readable(grad, f"the gradient of {label}")
    if param.dtype not in DTYPES or not grad.is_floating_point():
        raise BadTypeError(
            f"{label} is {_plain(param)} and its gradient is {_plain(grad)}; the parameter must be "
            f"one of {_ALLOWED}, and the gradient must be floating-point"
        )
    check_parameter(record)
    if record.shard is None and overlaps_itself(param):
        raise BadValueError(
            f"several elements of {label} share one memory location; each element needs its own"
        )
    if grad.shape != (shape := record.local.shape):
        raise BadValueError(
            f"the gradient of {label} must have shape {tuple(shape)}, got shape {tuple(grad.shape)}"
        )


def check_shard(record: ParameterRecord) -> None:
    """Raise if the step of a sharded parameter cannot be taken on shards."""
    assert record.shard is not None
    if not record.shard.groups():
        return
    param: Any = record.param
    if param.grad.placements != param.placements:
        raise BadValueError(
            f"the gradient of {record.label} must have the placements of the parameter, "
            f"{param.placements}, got {param.grad.placements}"
        )
    for name, shape in record.rule.state_shapes(param, record.group).items():
        if is_whole(record.rule, name) and not isinstance(record.rule, MatrixRule):
            raise BadValueError(
                f"{name} of {record.label} is computed from the whole gradient, which a sharded "
                "parameter does not have"
            )
        q = record.choice(name, shape).quantizer
        if q is None:
            continue
        if isinstance(q.map, FittedMap):
            raise BadValueError(
                f"{name} of {record.label} is sharded, but its quantizer {q.spec} fits a codebook "
                "to the whole tensor; use a map with a fixed codebook"
            )
        if q.low_rank is not None:
            raise BadValueError(
                f"{name} of {record.label} is sharded, but its quantizer {q.spec} keeps factors "
                "of whole matrices; use a quantizer without a low-rank part"
            )
        if q.normalizer.extents(param.dim()) is None:
            raise BadValueError(
                f"{name} of {record.label} is sharded, but the normalizer {q.normalizer.spec} of "
                f"its quantizer {q.spec} does not define which elements share a scale "
                "(Normalizer.extents)"
            )


def check_states(step: ParameterStep, shape: tuple[int, ...]) -> None:
    """Raise if a parameter's states do not fit its shape, as after resizing it by ``.data``."""
    local_shape = tuple(step.param.shape)
    shapes = {state.name: state.shape for state in step.states}
    shapes |= {"step": (), MASTER: local_shape, REMAINDER: local_shape}
    for name, needed in shapes.items():
        if (value := step.storage.get(name)) is None:
            continue
        if tuple(value.shape) != needed:
            raise BadValueError(
                f"{name} of {step.label} must have shape {needed} for a parameter of shape "
                f"{shape}, got shape {tuple(value.shape)}"
            )
        if isinstance(value, QuantizedTensor):
            value.check()
        else:
            check_memory(value, f"{name} of {step.label}")


def _plain(tensor: Tensor) -> str:
    """A dtype's name."""
    return str(tensor.dtype).removeprefix("torch.")
