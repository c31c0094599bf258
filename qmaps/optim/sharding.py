"""States and random numbers of parameters that are sharded over processes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from qmaps.algebra.philox import RoundingKey
from qmaps.engines.sharding.shards import Shard, shard_of
from qmaps.engines.step import codes_of
from qmaps.errors import BadValueError
from qmaps.maps.fitted import FittedMap
from qmaps.optim.entries import Entry, label_of
from qmaps.optim.rule import Dims, every

if TYPE_CHECKING:
    from qmaps.optim.base import QuantizedOptimizer


def state_dims(optimizer: QuantizedOptimizer, name: str, dims: int) -> Dims:
    """For each dimension of a state, the parameter's dimension that it follows.

    Args:
        optimizer: the optimizer of the state.
        name: the state's name; states that the rule does not have are of the parameter's shape.
        dims: number of the parameter's dimensions.

    Returns:
        One entry for each dimension of the state; None where its size is 1 whatever the
        parameter's sizes.
    """
    known = optimizer.states.get(name)
    follows = every if known is None or known.dims is None else known.dims
    return follows(dims)


def state_shard(
    optimizer: QuantizedOptimizer, name: str, param: Tensor, shard: Shard | None
) -> Shard | None:
    """The part of a state that goes with the part `shard` of its parameter; None for the whole."""
    return None if shard is None else shard.following(state_dims(optimizer, name, param.dim()))


def local_shapes(
    optimizer: QuantizedOptimizer, param: Tensor, group: dict[str, Any]
) -> dict[str, tuple[int, ...]]:
    """As `state_shapes`, for the parts of a parameter's states that this process keeps.

    Args:
        optimizer: the optimizer of the states.
        param: the parameter; of a sharded one the DTensor.
        group: its parameter group.
    """
    shapes = optimizer.state_shapes(param, group)
    if (shard := shard_of(param)) is None:
        return shapes
    return {
        name: shard.following(state_dims(optimizer, name, param.dim())).local_shape
        for name in shapes
    }


def rounding_key(
    optimizer: QuantizedOptimizer,
    number: int,
    param: Tensor,
    group: dict[str, Any],
    *,
    step: int = 0,
    state: str | None = None,
) -> RoundingKey:
    """The key of the random numbers of a parameter, or of one of its states.

    Elements of a shard get the random numbers that they have in the whole tensor.

    Args:
        optimizer: the optimizer of the parameter.
        number: the parameter's number among all parameters of all groups, from 0 on.
        param: the parameter; of a sharded one the DTensor.
        group: its parameter group, which has the seed.
        step: number of the parameter's step.
        state: name of the state to be rounded; None for the parameter itself.

    Raises:
        BadValueError: the parameter is split in a way that stochastic rounding does not support.
    """
    coded = codes_of(param) is not None
    key = RoundingKey(
        seed=group["seed"],
        purpose=0 if state is not None else 2 if coded else 1,
        step=step,
        tensor=number,
        state=0 if state is None else list(optimizer.states).index(state),
    )
    if (shard := shard_of(param)) is None:
        return key
    if state is not None:
        shard = shard.following(state_dims(optimizer, state, param.dim()))
    return replace(key, offset=shard.first, runs=shard.runs)


def check_shard(optimizer: QuantizedOptimizer, entry: Entry) -> None:
    """Raise if a parameter is sharded, and its step cannot be taken on shards."""
    _, param, group, _ = entry
    if (shard := shard_of(param)) is None or not shard.groups():
        return
    label = label_of(optimizer, entry[0])
    gradient: Any = param.grad
    if gradient.placements != param.placements:  # type: ignore[attr-defined]
        raise BadValueError(
            f"the gradient of {label} must have the placements of the parameter, "
            f"{param.placements}, got {gradient.placements}"  # type: ignore[attr-defined]
        )
    for name in optimizer.state_shapes(param, group):
        if optimizer.states[name].dims is None:
            raise BadValueError(
                f"{name} of {label} is computed from the whole gradient, which a sharded parameter "
                "does not have"
            )
        q = optimizer.quantizer_of(name, param, group)
        if q is None:
            continue
        if isinstance(q.map, FittedMap):
            raise BadValueError(
                f"{name} of {label} is sharded, but its quantizer {q.spec} fits a codebook to the "
                "whole tensor; use a map with a fixed codebook"
            )
        if q.low_rank is not None:
            raise BadValueError(
                f"{name} of {label} is sharded, but its quantizer {q.spec} keeps factors of whole "
                "matrices; use a quantizer without a low-rank part"
            )
        if q.normalizer.extents(param.dim()) is None:
            raise BadValueError(
                f"{name} of {label} is sharded, but the normalizer {q.normalizer.spec} of its "
                f"quantizer {q.spec} does not define which elements share a scale "
                "(Normalizer.extents)"
            )
