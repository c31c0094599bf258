"""Sums over ranks in narrow messages: reduce-scatter, then all-gather."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor

from qmaps.algebra.philox import RoundingKey
from qmaps.algebra.quantizer import FLOATS, Quantizer
from qmaps.distributed.comm.coder import Coder
from qmaps.distributed.comm.exchange import NONFINITE, Exchange, Traffic, header
from qmaps.errors import BadTypeError, BadValueError

SCATTER, GATHER = 16, 17
"""Purposes of stochastic rounding: parts sent to their owner, and sums sent to all."""


class Reducer:
    """Sums or averages tensors of one size over all ranks; every rank gets the same bits.

    Each rank owns one of W parts of the flat tensor. It gets that part from all others, quantized,
    decodes each before it is added, in the order of ranks and in float32, divides by W if an
    average is wanted, quantizes the result and sends it to all. Its own part is added without
    quantizing. All ranks, the owner included, use the decoded result. With ``nonfinite=None`` NaN
    and infinity raise, for callers without this choice.
    """

    def __init__(
        self,
        coder: Coder,
        group: dist.ProcessGroup | None = None,
        traffic: Traffic | None = None,
        *,
        seed: int = 0,
        nonfinite: str | None = None,
    ) -> None:
        self.coder = coder
        self.group = group
        self.traffic = Traffic() if traffic is None else traffic
        self.seed = RoundingKey(seed=seed).seed
        if nonfinite not in (None, *NONFINITE):
            raise BadValueError(f"nonfinite={nonfinite!r} must be 'raise' or 'propagate'")
        self.nonfinite = nonfinite

    def __call__(
        self,
        x: Tensor,
        kind: str,
        *,
        number: int = 0,
        step: int = 0,
        divide: bool = True,
        residual: Tensor | None = None,
    ) -> Tensor:
        """The sum or average of 1-D float32 `x` over ranks, in place; undefined after an error.

        `number` and `step` name the random numbers. `residual`, changed in place, holds the
        rounding errors of earlier messages: they are added to `x` and replaced by those of this
        exchange. For this rank's own part it holds the error of the result, so the next step makes
        up for it once. It is left as it is by an error.
        """
        exchange = Exchange(self.group, self.traffic)
        rank, world = exchange.rank, exchange.world
        if world == 1:
            return x
        if residual is not None:
            x += residual
        mine = header(kind, number, x, self.coder.mark)
        headers = exchange.agree(mine, x.device)
        self.traffic.exchanges += 1
        self.traffic.in_32_bits += 8 * (world - 1) * x.numel() // world
        if self.nonfinite != "propagate":
            hint = "" if self.nonfinite is None else "; nonfinite='propagate' passes them on"
            exchange.refuse_bad(headers, hint)
        elif any(sent.bad for sent in headers):
            return x.fill_(torch.nan)
        parts = split(x, world)
        starts = list(accumulate(map(Tensor.numel, parts), initial=0))

        def key(purpose: int, start: int) -> RoundingKey:
            return RoundingKey(
                self.seed, purpose, step, micro_batch=rank, tensor=number, offset=start
            )

        messages = [
            part.new_empty(0, dtype=torch.uint8)
            if owner == rank
            else self.coder.encode(part, key(SCATTER, start))
            for owner, (part, start) in enumerate(zip(parts, starts, strict=False))
        ]
        size = self.coder.nbytes(parts[rank].numel())
        sizes = [0 if r == rank else size for r in range(world)]
        received = exchange.swap(messages, sizes, mine.place)
        result = self._summed(received, parts[rank], rank)
        count = torch.tensor(world, dtype=torch.float32, device=x.device)
        if divide:
            result /= count
        message = self.coder.encode(result, key(GATHER, starts[rank]))
        sizes = [self.coder.nbytes(part.numel()) for part in parts]
        gathered = exchange.gather(message, sizes, mine.place)
        errors = [None] * world if residual is None else split(residual, world)
        for owner, (part, error) in enumerate(zip(parts, errors, strict=True)):
            if error is not None and owner != rank:
                torch.sub(part, self.coder.decode(messages[owner], part.numel()), out=error)
            self.coder.decode(gathered[owner], part.numel(), part)
            if error is not None and owner == rank:
                torch.sub(result, part, out=error)
                if divide:
                    error *= count
        return x

    def _summed(self, received: Sequence[Tensor], part: Tensor, rank: int) -> Tensor:
        """The sum of a part over ranks, in their order."""
        decode = self.coder.decode
        parts = (part if n == rank else decode(m, part.numel()) for n, m in enumerate(received))
        total = next(parts).clone()
        for added in parts:
            total += added
        return total


def split(x: Tensor, world: int) -> list[Tensor]:
    """`world` consecutive parts of 1-D `x`, all but the last ones of one size."""
    size = -(-x.numel() // world)
    ends = [min(size * (r + 1), x.numel()) for r in range(world)]
    return [x[end - min(size, max(0, end - size * r)) : end] for r, end in enumerate(ends)]


def average(
    x: Tensor,
    q: Quantizer | str,
    *,
    group: dist.ProcessGroup | None = None,
    traffic: Traffic | None = None,
    seed: int = 0,
    step: int = 0,
    number: int = 0,
    nonfinite: str = "raise",
) -> Tensor:
    """The average of a tensor over all ranks, in narrow messages; the same bits on all of them.

    Args:
        x: float32, float16 or bfloat16, of one shape on all ranks.
        q: a signed quantizer of 2 to 8 bits, or its spec.
        group: the process group; the default one if None.
        traffic: the counter of bytes.
        seed: seed of stochastic rounding, 0 to 2**32 - 1.
        step: training step, for stochastic rounding, 0 to 2**53 - 1.
        number: number of the tensor, for stochastic rounding and error messages, 0 to 2**32 - 1.
        nonfinite: policy for NaN or infinity on one rank: "raise" an error on all, or "propagate"
            NaN to the whole tensor.

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        BadValueError: ranks differ in size, quantizer or order; on all ranks.
        NonFiniteError: a rank has NaN or infinity; on all ranks.
        CommunicationError: a rank has ended, or is later than the group's timeout.
    """
    if not isinstance(x, Tensor) or x.dtype not in FLOATS:
        kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise BadTypeError(f"x must be a float32, float16 or bfloat16 tensor, got {kind}")
    reducer = Reducer(Coder(q), group, traffic, seed=seed, nonfinite=nonfinite)
    flat = x.detach().reshape(-1).to(torch.float32, copy=True)
    return reducer(flat, "a tensor", number=number, step=step).view(x.shape).to(x.dtype)
