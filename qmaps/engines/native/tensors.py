"""Quantized tensors on the native engine."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

import torch
from torch import Tensor

from qmaps.engines.addresses import address
from qmaps.engines.native import core
from qmaps.engines.packing import packed_bytes
from qmaps.engines.philox import RoundingKey
from qmaps.engines.reference import thresholds
from qmaps.maps.base import Map, table
from qmaps.normalize.base import Normalizer, Scales

DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
BYTE, MAX_BITS = 8, 16
MAX_LOG_BLOCK = 1024
NON_FINITE, NEGATIVE = 1, 2

T = TypeVar("T")
R = TypeVar("R")

FEW = 1 << 15
"""Elements below which threads cost more than they bring."""


@functools.lru_cache(maxsize=512)
def codebook(map_: Map, *, brief: bool = False) -> Any:
    """The map's search tables; `brief`: made fast, for few uses."""
    values = table(map_)
    # n >= value is n > the float below it.
    below = torch.nextafter(values[1:-1], torch.tensor(-torch.inf))
    return core.Codebook(
        values.tolist(), thresholds(values).tolist(), below.tolist(), map_.bits, brief
    )


@functools.lru_cache(maxsize=4096)
def geometry(normalizer: Normalizer, shape: tuple[int, ...]) -> Any:
    """Where each element's scale lies, or None where this engine cannot follow."""
    found = normalizer.geometry(shape)
    if found is None or len(found.parts) > 8 or found.arrays > 8:
        return None
    if found.log and found.parts[0].divisor > MAX_LOG_BLOCK:
        return None
    parts = [
        (part.divisor, part.count, part.array, -1 if part.ends is None else part.ends)
        for part in found.parts
    ]
    return core.Geometry(parts, found.log, found.arrays)


def follows(normalizer: Normalizer, map_: Map, shape: tuple[int, ...]) -> bool:
    """Whether this engine can quantize a tensor of `shape`."""
    wide = map_.bits > BYTE
    return (
        map_.bits <= MAX_BITS
        and not (wide and normalizer.log_domain)
        and geometry(normalizer, shape) is not None
    )


def measures(normalizer: Normalizer, map_: Map, shape: tuple[int, ...]) -> bool:
    """Whether it can look at single codes of such a tensor too, which then are bytes."""
    return map_.bits <= BYTE and follows(normalizer, map_, shape)


def stored(
    packed: Tensor | None,
    scales: Scales,
    normalizer: Normalizer,
    map_: Map,
    shape: tuple[int, ...],
    *,
    brief: bool = False,
) -> tuple[Any, Any, int, list[int]]:
    """Codebook, geometry and addresses of a quantized tensor of `shape`; `brief` as in `codebook`.

    Raises:
        BadValueError: codes or scales are no contiguous memory of the size that this takes.
    """
    needed, counts = _elements(normalizer, map_.bits, shape)
    parts = zip(scales, counts, strict=True)
    return (
        codebook(map_, brief=brief),
        geometry(normalizer, shape),
        0 if packed is None else address(packed, needed, "packed"),
        [address(scale, count, "a tensor of scales") for scale, count in parts],
    )


@functools.lru_cache(maxsize=4096)
def _elements(
    normalizer: Normalizer, bits: int, shape: tuple[int, ...]
) -> tuple[int, tuple[int, ...]]:
    """Bytes of packed codes, and numbers of scales in each part."""
    counts = tuple(math.prod(size) for _, size in normalizer.layout(shape))
    return packed_bytes(math.prod(shape), bits), counts


def quantize(
    x: Tensor,
    normalizer: Normalizer,
    map_: Map,
    key: RoundingKey | None,
    out: tuple[Tensor, Scales] | None,
    *,
    check: bool,
) -> tuple[Tensor, Scales, int]:
    """Packed codes, scales, and, if `check`, what `x` holds that it must not.

    Args:
        x: float32, float16 or bfloat16 on the CPU.
        normalizer: one that `follows` allows.
        map_: the same.
        key: of stochastic rounding, None for nearest.
        out: packed codes and scales to write into, contiguous.
        check: look for NaN, infinity, and negative numbers under an unsigned map.

    Returns:
        The third is NON_FINITE and NEGATIVE or-ed together; where it is not 0, `out` is as it was
        and new codes mean nothing.
    """
    x = x.contiguous()
    shape = tuple(x.shape)
    if out is None:
        packed = torch.empty(packed_bytes(x.numel(), map_.bits), dtype=torch.uint8)
        scales = normalizer.zero_scales(shape)
    else:
        packed, scales = out
    book, places, packed_at, scales_at = stored(packed, scales, normalizer, map_, shape)
    flags: int = core.quantize(
        book,
        places,
        address(x),
        DTYPES[x.dtype],
        x.numel(),
        packed_at,
        scales_at,
        [] if key is None else [key.words()],
        check,
        out is not None,
        not map_.signed,
        threads(x.numel()),
    )
    return packed, scales, flags


def dequantize(
    packed: Tensor, scales: Scales, normalizer: Normalizer, map_: Map, out: Tensor
) -> None:
    """Decode into `out`: contiguous, float32, float16 or bfloat16, on the CPU."""
    core.dequantize(
        *stored(packed, scales, normalizer, map_, tuple(out.shape)),
        address(out),
        DTYPES[out.dtype],
        out.numel(),
        threads(out.numel()),
    )


def threads(numel: int) -> int:
    """As many as torch uses, one for little work."""
    return 1 if numel < FEW else torch.get_num_threads()


def each(work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """``work(item)`` of every item, in their order: one thread an item, as many as torch uses.

    For work that mostly waits for this engine. Few items are worked on one by one, with all
    threads on each.
    """
    count = torch.get_num_threads()
    if len(items) < 2 * count or count == 1:
        yield from map(work, items)
        return
    # torch's number of threads belongs to a thread, but new threads take over the last one set.
    pool = ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,))
    try:
        # A context of its own for each: it carries the choice of back end.
        waiting = [pool.submit(copy_context().run, work, item) for item in items]
        yield from (result.result() for result in waiting)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(count)
