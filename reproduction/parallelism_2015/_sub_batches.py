"""The paper's sub-batch schedule: data parallel below, model parallel above."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from qmaps.algebra.philox import RoundingKey
from qmaps.algebra.quantizer import Quantizer
from qmaps.distributed.comm.coder import Coder
from qmaps.distributed.comm.exchange import Exchange, Traffic, header
from qmaps.errors import BadTypeError, BadValueError
from reproduction.parallelism_2015._columns import Plain

FORWARD, BACKWARD = 19, 20
"""Purposes of stochastic rounding: activations of a sub-batch, and their errors on the way back."""


class SubBatches:
    """Feeds the activations of data parallel layers, part by part, to layers split over ranks.

    Each rank has activations of its own samples. They are cut into sub-batches, sent by the
    ranks in turn. Every sub-batch is sent quantized to all ranks, and all run the split
    layers on it forward and backward. The errors of its activations are sent quantized back to its
    rank and added there. While one sub-batch is computed, the next one is being
    sent. Once all errors are back, the data parallel layers run their backward pass.

    The first split layer needs ``sum_errors=False``: its errors are summed here, by their owner.

    Args:
        quantizer: quantizer of activations and errors: signed, 2 to 8 bits; None sends float32.
        size: samples of a sub-batch; None takes all samples of a rank.
        group: the process group; the default one if None.
        traffic: the counter of bytes.
        seed: seed of stochastic rounding.

    Source: 8-bit approximations for parallelism, section 2.4; Krizhevsky (2014), "One weird trick
    for parallelizing convolutional neural networks".
    """

    def __init__(
        self,
        quantizer: Quantizer | str | None = "B2048/tree@8s",
        *,
        size: int | None = None,
        group: dist.ProcessGroup | None = None,
        traffic: Traffic | None = None,
        seed: int = 0,
    ) -> None:
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise BadValueError(f"size={size!r} must be an int of at least 1, or None")
        self.coder = Coder(quantizer) if quantizer is not None else Plain()
        self.size, self.group, self.seed = size, group, seed
        self.traffic = Traffic() if traffic is None else traffic
        self.step = 0

    def backward(
        self,
        activations: Tensor,
        targets: Tensor,
        loss: Callable[[Tensor, Tensor], Tensor],
        *,
        after: Callable[[], object] | None = None,
    ) -> Tensor:
        """Forward and backward pass of everything above and below `activations`.

        Args:
            activations: float32 of shape (samples, ...), computed from the parameters below; the
                same shape on all ranks.
            targets: targets of shape (samples, ...), sent without quantizing.
            loss: runs the split layers on a sub-batch and its targets, and returns the mean loss
                over its samples.
            after: called after each sub-batch, to update the split layers at once, as the paper
                does; if None their gradients add up to those of the mean over all samples.

        Returns:
            The mean loss over the samples of all ranks, 0-d, without a graph.
        """
        if activations.dtype != torch.float32:
            raise BadTypeError(f"activations must be float32, got {activations.dtype}")
        if len(targets) != len(activations):
            raise BadValueError(
                f"targets must have {len(activations)} rows, as activations have, got "
                f"{len(targets)}"
            )
        exchange = Exchange(self.group, self.traffic)
        rows = activations.detach()
        mine = header("sub-batch", self.step, rows, self.coder.mark)
        exchange.refuse_bad(exchange.agree(mine, rows.device))
        size = min(self.size or len(rows), len(rows))
        plan = [
            (owner, start, min(start + size, len(rows)))
            for start in range(0, len(rows), size)
            for owner in range(exchange.world)
        ]
        errors = torch.empty_like(rows)
        total = torch.zeros((), dtype=torch.float32, device=rows.device)
        count = exchange.world * len(rows)
        coming = self._send(exchange, rows, targets, plan[0], 0)
        for number, (owner, start, end) in enumerate(plan):
            message, labels, works = coming
            with exchange.watched(mine.place):
                for work in works:
                    work.wait()
            if number + 1 < len(plan):
                coming = self._send(exchange, rows, targets, plan[number + 1], number + 1)
            shape = (end - start, *rows.shape[1:])
            part = self.coder.decode(message, rows[start:end].numel()).view(shape)
            part.requires_grad_()
            value = loss(part, labels)
            share = (end - start) / count
            # With `after` each sub-batch is a step of its own above, and one share of it below.
            torch.autograd.backward(value if after is not None else value * share)
            assert part.grad is not None
            back = part.grad * share if after is not None else part.grad
            summed = self._return(exchange, back, owner, number)
            if summed is not None:
                errors[start:end] = summed
            total += value.detach() * share
            if after is not None:
                after()
        self.step = (self.step + 1) % 2**32
        # Below, gradients are averaged over ranks, whose losses are means over their own samples.
        torch.autograd.backward(activations, errors * exchange.world)
        return total

    def _send(
        self,
        exchange: Exchange,
        rows: Tensor,
        targets: Tensor,
        part: tuple[int, int, int],
        number: int,
    ) -> tuple[Tensor, Tensor, list[dist.Work]]:
        """Begin to send a sub-batch from its owner to all."""
        owner, start, end = part
        owned = owner == exchange.rank
        chosen = rows[start:end].reshape(-1)
        if owned:
            key = RoundingKey(
                self.seed, FORWARD, self.step, micro_batch=exchange.rank, tensor=number
            )
            message, labels = self.coder.encode(chosen, key), targets[start:end].contiguous()
        else:
            size = self.coder.nbytes(chosen.numel())
            message = torch.empty(size, dtype=torch.uint8, device=rows.device)
            labels = torch.empty_like(targets[start:end])
        source = owner if self.group is None else dist.get_global_rank(self.group, owner)
        with exchange.watched(f"sub-batch {number}"):
            works = [
                dist.broadcast(tensor, source, group=self.group, async_op=True)
                for tensor in (message, labels)
            ]
        peers = exchange.world - 1
        nbytes = message.nbytes + labels.nbytes
        self.traffic.sent += nbytes * peers if owned else 0
        self.traffic.received += 0 if owned else nbytes
        self.traffic.in_32_bits += (4 * chosen.numel() + labels.nbytes) * peers if owned else 0
        self.traffic.exchanges += 1
        return message, labels, [work for work in works if work is not None]

    def _return(self, exchange: Exchange, errors: Tensor, owner: int, number: int) -> Tensor | None:
        """The sum over ranks of the errors of a sub-batch, on its owner; None on others.

        The owner's own part stays as it is; others are decoded and added in the order of ranks.
        """
        flat = errors.detach().reshape(-1)
        mine = header("errors of sub-batch", number, flat, self.coder.mark)
        exchange.refuse_bad(exchange.agree(mine, flat.device))
        key = RoundingKey(self.seed, BACKWARD, self.step, micro_batch=exchange.rank, tensor=number)
        empty = flat.new_empty(0, dtype=torch.uint8)
        owned = owner == exchange.rank
        sent = empty if owned else self.coder.encode(flat, key)
        messages = [sent if rank == owner else empty for rank in range(exchange.world)]
        size = self.coder.nbytes(flat.numel()) if owned else 0
        sizes = [0 if rank == exchange.rank else size for rank in range(exchange.world)]
        received = exchange.swap(messages, sizes, mine.place)
        self.traffic.in_32_bits += 0 if owned else 4 * flat.numel()
        if not owned:
            return None
        total: Tensor | None = None
        for rank in range(exchange.world):
            part = flat if rank == owner else self.coder.decode(received[rank], flat.numel())
            total = part if total is None else total + part
        assert total is not None
        return total.view(errors.shape)
