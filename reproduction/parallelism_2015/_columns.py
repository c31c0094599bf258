"""Linear layers with columns split over ranks."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from qmaps.algebra.philox import RoundingKey
from qmaps.algebra.quantizer import Quantizer
from qmaps.distributed.comm.coder import Coder
from qmaps.distributed.comm.exchange import Exchange, Traffic, header
from qmaps.distributed.comm.reduce import Reducer
from qmaps.errors import BadTypeError, BadValueError

ACTIVATIONS = 18
"""Purpose of stochastic rounding: columns of activations sent to all."""

_numbers = itertools.count()


class _Stack(torch.autograd.Function):
    """Forward: gather the activations of all ranks. Backward: the errors of this rank's columns."""

    @staticmethod
    def forward(ctx: Any, activations: Tensor, layer: ColumnParallelLinear) -> Tensor:
        ctx.columns = slice(*layer.span)
        return layer.gathered(activations)

    @staticmethod
    def backward(ctx: Any, *errors: Tensor) -> tuple[Tensor, None]:
        return errors[0][..., ctx.columns], None


class _SumErrors(torch.autograd.Function):
    """Forward: return the input. Backward: sum the errors over all ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: ColumnParallelLinear) -> Tensor:
        ctx.layer = layer
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *errors: Tensor) -> tuple[Tensor, None]:
        return ctx.layer.summed(errors[0]), None


class ColumnParallelLinear(nn.Module):
    """A linear layer with its columns (output features) split over ranks.

    All ranks get the same input. Each computes its columns; they are exchanged quantized, so
    all have the same full output, bit for bit. In the backward pass each rank takes the errors of
    its columns. The errors of the input, sums over all columns, are added up in quantized
    messages. The gradient of quantizing is the identity.

    Every rank must build and run its layers in the same order, on the same batch, with the same
    random choices (dropout). Each rank has parameters and an optimizer of its own; the parameters
    must not be averaged.

    Args:
        in_features: features of the input.
        out_features: features of the full output, at least one for each rank.
        bias: whether the layer has a bias.
        quantizer: quantizer of activations and errors: signed, 2 to 8 bits; None sends float32.
        sum_errors: whether errors of the input are exchanged. It is not needed if the input
            takes no gradient, and must be False for the first layer after `SubBatches`: its errors
            are summed already.
        group: the process group; the default one if None.
        traffic: the counter of bytes; several layers may share one.
        seed: seed of stochastic rounding.

    Attributes:
        weight: float32 of shape (own columns, in_features).
        bias: float32 of shape (own columns,), or None.
        span: the first of this rank's columns, and the one after the last.
        traffic: bytes sent and received so far.
        step: forward passes so far, for stochastic rounding.

    Raises:
        BadValueError: ranks differ; in the forward and the backward pass, on all ranks.
        NonFiniteError: activations or errors hold NaN or infinity on a rank; on all ranks.
        CommunicationError: a rank has ended, or is later than the group's timeout.

    Source: 8-bit approximations for parallelism, section 2.2.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        quantizer: Quantizer | str | None = "B2048/tree@8s",
        sum_errors: bool = True,
        group: dist.ProcessGroup | None = None,
        traffic: Traffic | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.group, self.seed, self.sum_errors = group, seed, sum_errors
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        if out_features < self.world:
            raise BadValueError(
                f"out_features={out_features} must be at least {self.world}, one for each rank"
            )
        self.coder = Coder(quantizer) if quantizer is not None else Plain()
        self.traffic = Traffic() if traffic is None else traffic
        self.number = next(_numbers)
        self.step = 0
        self._errors = Reducer(self.coder, group, self.traffic, seed=seed)
        self.span = self.spans()[self.rank]
        # All ranks draw the whole layer, so that it is the layer that one device would have.
        layer = nn.Linear(in_features, out_features, bias)
        first, last = self.span
        self.weight = nn.Parameter(layer.weight.detach()[first:last].clone())
        columns = layer.bias.detach()[first:last].clone() if bias else None
        self.bias: nn.Parameter | None
        self.register_parameter("bias", None if columns is None else nn.Parameter(columns))

    def spans(self) -> list[tuple[int, int]]:
        """For each rank its first column, and the one after its last."""
        ends = [self.out_features * (r + 1) // self.world for r in range(self.world)]
        return list(zip([0, *ends[:-1]], ends, strict=True))

    def forward(self, x: Tensor) -> Tensor:
        """The full output of shape (..., out_features), float32, on every rank.

        Args:
            x: float32 of shape (..., in_features), the same on every rank.
        """
        if x.dtype != torch.float32:
            raise BadTypeError(f"x must be float32, got {x.dtype}")
        if self.sum_errors:
            x = _SumErrors.apply(x, self)  # type: ignore[no-untyped-call]
        stacked: Tensor = _Stack.apply(F.linear(x, self.weight, self.bias), self)  # type: ignore[no-untyped-call]
        self.step = (self.step + 1) % 2**32
        return stacked

    def gathered(self, activations: Tensor) -> Tensor:
        """Gather the activations of all ranks, decoded, this one's included.

        Args:
            activations: float32 of shape (..., columns of this rank).

        Returns:
            float32 of shape (..., out_features).
        """
        exchange = Exchange(self.group, self.traffic)
        rows = math.prod(activations.shape[:-1])
        flat = activations.detach().reshape(-1)
        mine = header("activations", self.number, flat, self.coder.mark)
        headers = exchange.agree(mine, activations.device, same_size=False)
        exchange.refuse_bad(headers)
        counts = [rows * (last - first) for first, last in self.spans()]
        for rank, (sent, count) in enumerate(zip(headers, counts, strict=True)):
            if sent.numel != count:
                raise BadValueError(
                    f"activations {self.number} have {sent.numel} elements on rank {rank}, "
                    f"expected {count}; all ranks need the same batch"
                )
        key = RoundingKey(
            self.seed, ACTIVATIONS, self.step, micro_batch=self.rank, tensor=self.number
        )
        message = self.coder.encode(flat, key)
        sizes = [self.coder.nbytes(count) for count in counts]
        gathered = exchange.gather(message, sizes, mine.place)
        self.traffic.exchanges += 1
        self.traffic.in_32_bits += 4 * flat.numel() * (self.world - 1)
        parts = [
            self.coder.decode(message, count).view(*activations.shape[:-1], -1)
            for message, count in zip(gathered, counts, strict=True)
        ]
        return torch.cat(parts, dim=-1)

    def summed(self, errors: Tensor) -> Tensor:
        """The sum over ranks of the errors of the input, of any shape, float32."""
        flat = errors.detach().reshape(-1).clone()
        return self._errors(flat, "errors", number=self.number, step=self.step, divide=False).view(
            errors.shape
        )

    def extra_repr(self) -> str:
        """Sizes, own columns and quantizer, for ``repr``."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"own={self.span[0]}:{self.span[1]}, quantizer={self.coder.name}"
        )


class Plain(Coder):
    """Messages in float32, for comparison."""

    def __init__(self) -> None:
        pass

    @property
    def name(self) -> str:
        """Name in reports."""
        return "32-bit"

    @property
    def mark(self) -> int:
        """A number different from every quantizer's."""
        return -1

    def nbytes(self, numel: int) -> int:
        """The size in bytes of a message: 4 for each number."""
        return 4 * numel

    def encode(self, x: Tensor, key: RoundingKey) -> Tensor:  # noqa: ARG002 - nothing is rounded
        """The bytes of `x`."""
        return x.contiguous().view(torch.uint8)

    def decode(self, message: Tensor, numel: int, out: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """The float32 numbers of a message."""
        values = message.clone().view(torch.float32)
        return values if out is None else out.copy_(values)
