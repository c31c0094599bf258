"""Messages of bytes between the ranks of a process group, after a check of agreement; counted."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from qmaps.errors import BadValueError, CommunicationError, NonFiniteError

# torch 2.13 renamed it, and warns of the old name.
GATHER = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
NONFINITE = ("raise", "propagate")
KINDS = (
    "gradients",
    "activations",
    "errors",
    "a tensor",
    "sub-batch",
    "errors of sub-batch",
)


@dataclass
class Traffic:
    """Bytes sent and received by one rank.

    Bytes are those handed to the process group for other ranks: codes, scales and
    the headers of agreement. A gather counts once for each receiver.

    Attributes:
        sent: bytes to other ranks.
        received: bytes from other ranks.
        in_32_bits: bytes of this rank's messages in float32: ``2 (W - 1) / W`` times a
            tensor summed over W ranks, as in a ring, and ``W - 1`` times its own part of
            a gathered tensor.
        exchanges: number of exchanges.
    """

    sent: int = 0
    received: int = 0
    in_32_bits: int = 0
    exchanges: int = 0

    @property
    def ratio(self) -> float:
        """Bytes in float32 divided by bytes sent; 1 before any exchange."""
        return self.in_32_bits / self.sent if self.sent else 1.0

    def reset(self) -> None:
        """Count from 0 again."""
        self.sent = self.received = self.in_32_bits = self.exchanges = 0


@dataclass(frozen=True)
class Header:
    """Header exchanged first, so all ranks raise the same error.

    `kind` is an index into `KINDS`, `number` that of the bucket or tensor, `mark` the coder's;
    `bad` elements are NaN or infinite, `first` is the flat index of the first of them.
    """

    kind: int
    number: int
    numel: int
    mark: int
    bad: int = 0
    first: int = 0

    @property
    def place(self) -> str:
        """Description of the exchange, for error messages."""
        return f"{KINDS[self.kind]} {self.number}"


def header(kind: str, number: int, x: Tensor, mark: int) -> Header:
    """The header of a floating-point tensor, with its count of non-finite elements."""
    bad = first = 0
    # A sum is quick, and not finite if one of its elements is not. It may also overflow.
    if not math.isfinite(float(x.sum(dtype=torch.float32))):
        wrong = ~x.isfinite().reshape(-1)
        bad = int(wrong.sum())
        first = int(wrong.int().argmax()) if bad else 0
    return Header(KINDS.index(kind), number, x.numel(), mark, bad, first)


class Exchange:
    """One rank's part in the exchanges of a group; None is the default group."""

    def __init__(self, group: dist.ProcessGroup | None, traffic: Traffic) -> None:
        self.group = group
        self.traffic = traffic
        self.rank = dist.get_rank(group)
        self.world = dist.get_world_size(group)

    def agree(self, mine: Header, device: torch.device, *, same_size: bool = True) -> list[Header]:
        """Exchange headers, and check for the same operation on all ranks; all must call this.

        Returns:
            The headers of all ranks, in the order of ranks.

        Raises:
            BadValueError: ranks are at different exchanges, code differently, or, if `same_size`,
                have different sizes. All ranks raise it.
            CommunicationError: a rank is gone, or late by the group's timeout.
        """
        numbers = torch.tensor(astuple(mine), dtype=torch.int64, device=device)
        gathered = torch.empty(self.world * numbers.numel(), dtype=torch.int64, device=device)
        with self.watched(mine.place):
            getattr(dist, GATHER)(gathered, numbers, group=self.group)
        self._count(numbers.nbytes * (self.world - 1), numbers.nbytes * (self.world - 1))
        headers = [Header(*values) for values in gathered.view(self.world, -1).tolist()]
        zero = headers[0]
        for rank, header in enumerate(headers):
            if (header.kind, header.number) != (zero.kind, zero.number):
                raise BadValueError(
                    f"rank 0 exchanges {zero.place}, but rank {rank} exchanges {header.place}; all "
                    "ranks must exchange the same things in the same order"
                )
            if header.mark != zero.mark:
                raise BadValueError(
                    f"rank {rank} quantizes {header.place} differently from rank 0; all ranks need "
                    "the same quantizer"
                )
            if same_size and header.numel != zero.numel:
                raise BadValueError(
                    f"{zero.place} has {zero.numel} elements on rank 0 and {header.numel} on rank "
                    f"{rank}; all ranks need the same number"
                )
        return headers

    def refuse_bad(self, headers: Sequence[Header], hint: str = "") -> None:
        """Raise a NonFiniteError on all ranks if any has NaN or infinity; `hint` is a remedy."""
        for rank, header in enumerate(headers):
            if header.bad:
                raise NonFiniteError(
                    f"{header.place} holds {header.bad} NaN or infinite elements on rank {rank}, "
                    f"the first at flat index {header.first}{hint}"
                )

    def swap(self, messages: Sequence[Tensor], sizes: Sequence[int], place: str) -> list[Tensor]:
        """Give each rank its message, and get one from each; this rank's own one is not sent.

        Messages are 1-D uint8, in the order of ranks. `sizes` are the bytes from each rank, 0 for
        this one; errors name the `place`.
        """
        device = messages[0].device
        outgoing = [0 if r == self.rank else m.numel() for r, m in enumerate(messages)]
        buffer = torch.cat([m[:0] if r == self.rank else m for r, m in enumerate(messages)])
        into = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
        with self.watched(place):
            dist.all_to_all_single(into, buffer, list(sizes), outgoing, group=self.group)
        self._count(buffer.nbytes, into.nbytes)
        return list(torch.split(into, list(sizes)))

    def gather(self, message: Tensor, sizes: Sequence[int], place: str) -> list[Tensor]:
        """Send this rank's 1-D uint8 message to all ranks, and get theirs, in the order of ranks.

        `sizes` are the bytes of each rank's message; shorter ones are sent with padding.
        """
        largest = max(sizes)
        padded = torch.nn.functional.pad(message, (0, largest - message.numel()))
        into = torch.empty(self.world * largest, dtype=torch.uint8, device=message.device)
        with self.watched(place):
            getattr(dist, GATHER)(into, padded, group=self.group)
        self._count(largest * (self.world - 1), largest * (self.world - 1))
        rows = into.view(self.world, largest)
        return [row[:size] for row, size in zip(rows, sizes, strict=True)]

    @contextmanager
    def watched(self, place: str) -> Iterator[None]:
        """Turn errors of the process group into a `CommunicationError` with `place`."""
        try:
            yield
        except (RuntimeError, ValueError) as error:
            said = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise CommunicationError(
                f"rank {self.rank} of {self.world} could not exchange {place}: another rank has "
                f"ended, has failed, or did not answer within the group's timeout ({said})"
            ) from error

    def _count(self, sent: int, received: int) -> None:
        self.traffic.sent += sent
        self.traffic.received += received
