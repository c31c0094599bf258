"""Counters of bytes exchanged by ranks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Traffic:
    """Bytes sent and received by one rank.

    Bytes are those handed to the process group for other ranks: codes, scales, fitted codebooks,
    and the headers of agreement. A gather counts once for each receiver.

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

    def __str__(self) -> str:
        return (
            f"{self.exchanges} exchanges, {self.sent:,} bytes sent in place of "
            f"{self.in_32_bits:,} in float32 ({self.ratio:.2f} times fewer)"
        )
