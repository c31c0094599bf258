"""A network to train, described by times on one device."""

from __future__ import annotations

from dataclasses import dataclass

from qmaps.errors import BadValueError
from reproduction.speedup._checks import count, known, number


@dataclass(frozen=True)
class Job:
    """A net of data parallel convolutions, and of fully connected layers fed with sub-batches.

    Attributes:
        name: for tables.
        conv_ms: forward and backward pass of the convolutional part, one device, its own batch.
        fc_ms: the same of the fully connected part, for one sub-batch. As in the paper, it does not
            depend on the size of the sub-batch.
        cover_ms: the product computed during the next sub-batch's synchronization.
        features: activations of one sample between the two parts.
        batch: samples of one device.
    """

    name: str
    conv_ms: float
    fc_ms: float
    cover_ms: float
    features: int
    batch: int = 128

    def __post_init__(self) -> None:
        number("conv_ms", self.conv_ms)
        number("fc_ms", self.fc_ms, above=True)
        number("cover_ms", self.cover_ms)
        count("features", self.features)
        count("batch", self.batch)

    @property
    def single_ms(self) -> float:
        """A pass on one device."""
        return self.conv_ms + self.fc_ms

    @classmethod
    def from_json(cls, data: object) -> Job:
        """From the values of a file; see the attributes."""
        values = known(cls, data, "job")
        for name in ("name", "conv_ms", "fc_ms", "cover_ms", "features"):
            if name not in values:
                raise BadValueError(f"job lacks {name!r}")
        return cls(**values)
