"""Units of whole rows and whole blocks, some of which a sampled sweep measures.

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

from qmaps.algebra.quantizer import Quantizer
from qmaps.errors import BadValueError
from qmaps.normalize.base import Normalizer

LEAST = 128
"""Units of a tensor that are measured at least; all of them where there are no more."""

LARGEST = 3 * 2**24
"""Elements of the largest tensor of which all elements are measured if no sample is asked for."""

SAMPLE = 2**20
"""Elements that are measured of larger ones, about."""


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
        """Number of units of the tensor that each chosen one stands for."""
        drawn = int((~self.certain).sum())
        return np.where(self.certain, 1.0, (self.count - self.certain.sum()) / drawn)


def share_of_large(shape: Sequence[int], quantizers: Iterable[Quantizer]) -> float | None:
    """The share of a tensor that a sweep measures if no sample is asked for.

    Args:
        shape: the tensor's shape.
        quantizers: all that the sweep measures on it.

    Returns:
        None to measure all of it: a tensor that is not larger than `LARGEST`, and one of which a
        quantizer needs the whole.
    """
    numel = math.prod(shape)
    if numel <= LARGEST:
        return None
    for q in quantizers:
        if q.low_rank is not None or q.normalizer.extents(len(shape)) is None:
            return None
    return SAMPLE / numel


def unit_of(shape: Sequence[int], normalizers: Iterable[Normalizer]) -> int:
    """Number of elements of a unit: whole rows, and whole blocks of every normalizer.

    Args:
        shape: the tensor's shape, of at least one dimension.
        normalizers: those of all quantizers that the sweep measures on it.

    Raises:
        BadValueError: a normalizer does not say what its scales span.
    """
    size = math.prod(shape[1:])
    for normalizer in normalizers:
        extents = normalizer.extents(len(shape))
        if extents is None:
            raise BadValueError(
                f"sample cannot be combined with {normalizer.spec}, which does not say what its "
                "scales span; leave it out or measure all elements"
            )
        size = math.lcm(size, *(extent.block for extent in extents if extent.block))
    return size


def count_of(numel: int, size: int, share: float) -> int | None:
    """Number of units of a tensor that are measured; None if that is all of them."""
    count = -(-numel // size)
    wanted = max(LEAST, math.ceil(share * count))
    return None if wanted >= count else wanted


def units(
    parameter: str,
    shape: Sequence[int],
    size: int,
    wanted: int,
    squares: Iterable[NDArray[np.float64]],
) -> Units:
    """Choose the units of a parameter.

    Args:
        parameter: its name.
        shape: the shape of its states.
        size: elements of a unit, of `unit_of`.
        wanted: number of units, of `count_of`.
        squares: the sum of squares of each unit of each state.
    """
    total = sum(found / found.sum() for found in squares if found.any())
    count = -(-math.prod(shape) // size)
    order = np.argsort(-(np.zeros(count) + total), kind="stable")
    largest = order[: wanted // 4]
    hashes = _hashes(parameter, count)
    hashes[largest] = 0  # before all others
    chosen = np.sort(np.argsort(hashes, kind="stable")[:wanted]).astype(np.int64)
    per_unit = size // math.prod(shape[1:])
    rows = (chosen[:, None] * per_unit + np.arange(per_unit)).reshape(-1)
    certain = np.isin(chosen, largest)
    return Units(size, count, chosen, certain, torch.from_numpy(rows[rows < shape[0]]))


def _hashes(parameter: str, count: int) -> NDArray[np.uint64]:
    """Splitmix64 of the numbers below `count`, begun at a hash of the name."""
    seed = np.frombuffer(
        hashlib.sha256(parameter.encode(errors="surrogatepass")).digest()[:8], "<u8"
    )[0]
    z = seed + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return found
