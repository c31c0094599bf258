"""Quantized tensors on the native engine."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

import torch
from torch import Tensor

from qmaps.algebra import packing
from qmaps.algebra.philox import RoundingKey
from qmaps.engines import huge_pages
from qmaps.engines.addresses import address
from qmaps.engines.kernels.declarations import Dtype
from qmaps.engines.native import core
from qmaps.engines.threads import one_thread
from qmaps.maps.base import Map, cached, limits, table
from qmaps.normalize.base import Normalizer, Scales, geometry_of

DTYPES = {
    torch.float32: Dtype.FLOAT32.value,
    torch.float16: Dtype.FLOAT16.value,
    torch.bfloat16: Dtype.BFLOAT16.value,
}
T = TypeVar("T")
R = TypeVar("R")

FEW = 1 << 15
"""Tensors with fewer elements run on one thread."""


@cached(512)
def codebook(map_: Map, *, brief: bool = False) -> Any:
    """The map's search tables; with `brief` they are quick to build, for few uses."""
    values = table(map_)
    # n >= value is n > the float below it.
    below = torch.nextafter(values[1:], values.new_tensor(-torch.inf))
    made = core.Codebook(values.tolist(), limits(map_).tolist(), below.tolist(), map_.bits, brief)
    made.in_log, made.bend = map_.position_rounding, map_.bend
    return made


@functools.lru_cache(maxsize=4096)
def geometry(normalizer: Normalizer, shape: tuple[int, ...]) -> Any:
    """Position of each element's scale, under a normalizer supported by the engine."""
    scales = geometry_of(normalizer, shape)
    assert scales is not None  # `qmaps.engines.support.NATIVE` was asked
    parts = [
        (
            part.divisor,
            part.count,
            part.array,
            -1 if part.ends is None else part.ends,
            int(part.stored),
        )
        for part in scales.parts
    ]
    return core.Geometry(parts, scales.log, scales.arrays, scales.quantile, scales.ratio)


def stored(
    packed: Tensor | None,
    scales: Scales,
    normalizer: Normalizer,
    map_: Map,
    shape: tuple[int, ...],
    *,
    brief: bool = False,
) -> tuple[Any, Any, int, list[int]]:
    """Describe a quantized tensor to the engine.

    Returns:
        The engine's codebook and geometry, the address of the codes (0 for None), and the addresses
        of the scales. Codes and scales must be contiguous, of the right sizes.
    """
    needed, _, counts = packing.stored(normalizer, map_.bits, shape)
    parts = zip(scales, counts, strict=True)
    return (
        codebook(map_, brief=brief),
        geometry(normalizer, shape),
        0 if packed is None else address(packed, needed, "packed"),
        [address(scale, count, "a tensor of scales") for scale, count in parts],
    )


def quantize(
    x: Tensor,
    normalizer: Normalizer,
    map_: Map,
    key: RoundingKey | None,
    out: tuple[Tensor, Scales] | None,
    *,
    check: bool,
) -> tuple[Tensor, Scales, int]:
    """See `qmaps.ops.dispatch.quantize`; the last result is `Flags` or-ed together."""
    x = x.contiguous()
    shape = tuple(x.shape)
    if out is None:
        needed, layout, _ = packing.stored(normalizer, map_.bits, shape)
        packed = huge_pages.empty((needed,), dtype=torch.uint8)
        scales = tuple([torch.zeros(size, dtype=dtype, device="cpu") for dtype, size in layout])
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
        None if key is None else key.words(),
        check,
        out is not None,
        not map_.signed,
        threads(x.numel()),
    )
    return packed, scales, flags


def dequantize(
    packed: Tensor, scales: Scales, normalizer: Normalizer, map_: Map, out: Tensor
) -> None:
    """See `qmaps.ops.dispatch.dequantize`; all tensors are contiguous, on the CPU."""
    core.dequantize(
        *stored(packed, scales, normalizer, map_, tuple(out.shape)),
        address(out),
        DTYPES[out.dtype],
        out.numel(),
        threads(out.numel()),
    )


def threads(numel: int) -> int:
    """The number of threads for `numel` elements: as many as torch uses, or 1 below `FEW`."""
    return 1 if numel < FEW else torch.get_num_threads()


def each(work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """``work(item)`` of every item, in their order: one thread per item, as many as torch uses.

    It is meant for work mostly done by this engine. Fewer items than twice the number of
    threads are worked on one by one, with all threads on each.
    """
    count = torch.get_num_threads()
    if len(items) < 2 * count or count == 1:
        yield from map(work, items)
        return
    pool = ThreadPoolExecutor(count)
    try:
        # A context of its own for each: it carries the choice of back end.
        waiting = [pool.submit(copy_context().run, one_thread()(work), item) for item in items]
        yield from (result.result() for result in waiting)
    finally:
        pool.shutdown(cancel_futures=True)
