"""Which part of a tensor a sampled sweep measures: units of whole rows and whole blocks.

A unit is the smallest number of consecutive rows that is a whole number of blocks of every
normalizer in the sweep; in a tensor of one dimension a row is one element. The given share of the
units is measured, at least `LEAST`:

- a quarter are the largest ones, by the sum of squares of their elements, divided by that of the
  tensor and added up over the states. A few large rows may hold most of an error, and no interval
  from a sample without them would cover it.
- The others are drawn from the rest: the first in the order of a 64-bit hash (splitmix64) of their
  number and of the parameter's name.

The choice depends on nothing else, so it is the same in every process.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qmaps.errors import BadValueError
from qmaps.normalize.base import Normalizer, Scales

LEAST = 128
"""Units of a tensor that are measured at least; all of them where there are no more."""


@dataclass(frozen=True)
class Units:
    """The units of one tensor that are measured.

    Attributes:
        size: elements of a unit; the last of the tensor may have fewer.
        count: number of units in the tensor.
        chosen: numbers of the units that are measured, ascending.
        certain: bool, which of them are there for their size.
        rows: indices of their rows, ascending; int64.
    """

    size: int
    count: int
    chosen: NDArray[np.int64]
    certain: NDArray[np.bool_]
    rows: Tensor

    @property
    def weights(self) -> NDArray[np.float64]:
        """How many units of the tensor each chosen one stands for."""
        drawn = int((~self.certain).sum())
        return np.where(self.certain, 1.0, (self.count - self.certain.sum()) / drawn)

    def of(self, x: Tensor) -> Tensor:
        """The chosen rows of a tensor."""
        return x[self.rows]

    def restricted(self, scales: Scales, normalizer: Normalizer, dims: int) -> Scales:
        """The scales of the chosen rows.

        Args:
            scales: those of the whole tensor.
            normalizer: what computed them.
            dims: number of dimensions of the tensor.
        """
        parts = []
        for part, extent in zip(scales, normalizer.extents(dims) or (), strict=True):
            if extent.block:
                parts.append(part[self._blocks(extent.block, part.numel())])
            elif 0 in extent.kept and not extent.ends:
                parts.append(part.index_select(extent.kept.index(0), self.rows))
            else:
                parts.append(part)
        return tuple(parts)

    def _blocks(self, block: int, count: int) -> Tensor:
        """Indices of the blocks of the chosen units, of `count` in the tensor."""
        each = self.size // block
        found = (self.chosen[:, None] * each + np.arange(each)).reshape(-1)
        return torch.from_numpy(found[found < count])


def units(
    parameter: str, tensors: Sequence[Tensor], normalizers: Iterable[Normalizer], share: float
) -> Units | None:
    """Choose the units of a tensor; None if all of it is measured.

    Args:
        parameter: name of the parameter.
        tensors: its states, float32 of one shape.
        normalizers: those of all quantizers that the sweep measures on it.
        share: the share of the units, above 0 and below 1.

    Raises:
        BadValueError: a normalizer does not say what its scales span.
    """
    shape = tuple(tensors[0].shape)
    if len(shape) == 0:
        return None
    row = math.prod(shape[1:])
    size = row
    for normalizer in normalizers:
        extents = normalizer.extents(len(shape))
        if extents is None:
            raise BadValueError(
                f"sample={share:g} cannot be combined with {normalizer.spec}, which does not say "
                "what its scales span; leave it out or measure all elements"
            )
        size = math.lcm(size, *(extent.block for extent in extents if extent.block))
    count = -(-math.prod(shape) // size)
    wanted = max(LEAST, math.ceil(share * count))
    if wanted >= count:
        return None
    largest = np.argsort(-_sizes(tensors, size), kind="stable")[: wanted // 4]
    hashes = _hashes(parameter, count)
    hashes[largest] = 0  # before all others
    chosen = np.sort(np.argsort(hashes, kind="stable")[:wanted]).astype(np.int64)
    per_unit = size // row
    rows = (chosen[:, None] * per_unit + np.arange(per_unit)).reshape(-1)
    return Units(
        size, count, chosen, np.isin(chosen, largest), torch.from_numpy(rows[rows < shape[0]])
    )


def _sizes(tensors: Sequence[Tensor], size: int) -> NDArray[np.float64]:
    """The share of each unit in the squares of each tensor, added up over the tensors."""
    total = np.zeros(-(-tensors[0].numel() // size))
    for tensor in tensors:
        found = per_unit(tensor.double().square(), size)
        if found.any():
            total += found / found.sum()
    return total


def per_unit(values: Tensor, size: int) -> NDArray[np.float64]:
    """The sum of each `size` consecutive elements, float64; the last may be of fewer."""
    flat = values.reshape(-1)
    padded = torch.nn.functional.pad(flat, (0, -flat.numel() % size))
    found: NDArray[np.float64] = padded.view(-1, size).numpy().sum(axis=1)
    return found


def _hashes(parameter: str, count: int) -> NDArray[np.uint64]:
    """Splitmix64 of the numbers below `count`, begun at a hash of the name."""
    seed = np.frombuffer(hashlib.sha256(parameter.encode()).digest()[:8], "<u8")[0]
    z = seed + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return found
