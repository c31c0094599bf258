"""SM3 with momentum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from qmaps.engines.sharding import over_shards
from qmaps.engines.step_scalars import StepScalar
from qmaps.float32 import sqrt
from qmaps.optim.base import QuantizedOptimizer, Shared, State, States, Values
from qmaps.optim.factored import over
from qmaps.optim.rule import Dims, ascent, bounded_, check_at_least_0, check_decay, coupled

DIMENSIONS = 8
"""Tensors of more dimensions are refused."""

_ACCUMULATORS = tuple(f"accumulator_{dim}" for dim in range(DIMENSIONS))


def _slices(dim: int, dims: int) -> Dims:
    """The accumulator of the slices of one dimension follows it; a scalar has none."""
    return (dim,) if dims else ()


class SM3(QuantizedOptimizer):
    r"""SM3-II: Adagrad with one accumulator for each slice of each dimension.

    With gradient g (negated to maximize), in float32 and in this order:

        g = g + weight_decay * p                 left out where weight_decay is 0
        v = min over dimensions of A[dim] + g * g
        A[dim] = max of v over the other dimensions
        u = g / sqrt(v)                          0 where v is 0
        b = momentum * b + (1 - momentum) * u, and u = b      if momentum is not 0
        p = p - lr * u

    States: `accumulator_0`, `accumulator_1`, ... (A), one number for each index of a dimension,
    `momentum_buffer` (b), and `step`. Tensors of one dimension have one accumulator for each
    element, which makes the rule Adagrad's; tensors of more than eight are refused. Presets
    quantize the buffer and leave the accumulators in 32 bits. SM3 is here as a baseline for
    comparison.

    Args:
        params: parameters, or groups of them.
        lr: learning rate, at least 0: a number or a tensor with one element.
        momentum: in [0, 1); the buffer takes no memory where it is 0.
        weight_decay: coupled: ``weight_decay * p`` is added to the gradient; at least 0.
        **shared: options of all optimizers, such as `state_quantizers`; see `QuantizedOptimizer`.

    Raises:
        BadValueError, BadTypeError, SpecError: an argument is not allowed.

    Source: Anil, Gupta, Koren and Singer (2019), "Memory-efficient adaptive optimization",
    algorithm SM3-II with slices of co-dimension 1 as the cover, and momentum as in section 5.

    >>> import torch
    >>> layer = torch.nn.Linear(128, 64)
    >>> optimizer = SM3(layer.parameters())
    >>> layer(torch.randn(4, 128)).square().mean().backward()
    >>> optimizer.step()
    >>> {name: tuple(value.shape) for name, value in optimizer.state[layer.weight].items()}
    {'step': (), 'momentum_buffer': (64, 128), 'accumulator_0': (64,), 'accumulator_1': (128,)}
    """

    states: ClassVar[Mapping[str, State]] = {
        "momentum_buffer": State(signed=True),
        **{
            name: State(exact=True, factored=True, dims=partial(_slices, dim))
            for dim, name in enumerate(_ACCUMULATORS)
        },
    }
    native_rule: ClassVar[str | None] = "sm3"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 0,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(params, locals(), **shared)

    def check_group(self, group: dict[str, Any]) -> None:
        check_at_least_0(group, "lr", "weight_decay")
        check_decay("momentum", group["momentum"])

    @classmethod
    def unsupported_reason(cls, param: Tensor) -> str:
        """Reason why the rule cannot step a parameter; empty if it can."""
        if param.dim() <= DIMENSIONS:
            return ""
        return f"has {param.dim()} dimensions, and SM3 supports at most {DIMENSIONS}"

    def state_shapes(self, param: Tensor, group: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        shape = tuple(param.shape)
        sizes: list[tuple[int, ...]] = [(size,) for size in shape] or [()]
        shapes = dict(zip(_ACCUMULATORS, sizes, strict=False))
        return {"momentum_buffer": shape, **shapes} if group["momentum"] != 0 else shapes

    def step_scalars(self, group: dict[str, Any]) -> dict[str, float | StepScalar]:
        momentum = float(group["momentum"])
        return {
            "weight_decay": float(group["weight_decay"]),
            "momentum": momentum,
            "rest": 1 - momentum,
            "step_size": StepScalar(group["lr"]),
            "sign": ascent(group),
        }

    def update(self, param: Tensor, grad: Tensor, states: States, scalars: Values) -> None:
        s = scalars
        grad = coupled(param, grad, s)
        accumulators = [states[name] for name in _ACCUMULATORS if name in states]
        smallest = _along(accumulators[0], 0, param.dim())
        for dim, accumulator in enumerate(accumulators[1:], 1):
            smallest = torch.minimum(smallest, _along(accumulator, dim, param.dim()))
        v = bounded_(smallest + grad * grad)
        for dim, accumulator in enumerate(accumulators):
            dims = [other_dim for other_dim in range(param.dim()) if other_dim != dim]
            largest = torch.zeros_like(accumulator)
            if v.numel():
                largest = v.amax(dims) if dims else v
            accumulator.copy_(over_shards.largest(largest, dims))
        u = over(grad, sqrt(v))
        if "momentum_buffer" in states:
            u = states["momentum_buffer"].mul_(s["momentum"]).add_(u * s["rest"])
        param.sub_(u * s["step_size"])


def _along(accumulator: Tensor, dim: int, dims: int) -> Tensor:
    """An accumulator as a tensor of `dims` dimensions, expanded along all but one."""
    shape = [1] * dims
    if dims:
        shape[dim] = accumulator.numel()
    return accumulator.reshape(shape)
