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
from qmaps.engines.kernels.declarations import Dtype, ScaleKind
from qmaps.engines.native import core
from qmaps.engines.threads import one_thread
from qmaps.maps.base import Map, cached, limits, spacing, table
from qmaps.normalize.base import Normalizer, Scales
from qmaps.normalize.geometry import Geometry, Stored

DTYPES = {
    torch.float32: Dtype.FLOAT32.value,
    torch.float16: Dtype.FLOAT16.value,
    torch.bfloat16: Dtype.BFLOAT16.value,
}
KINDS = {
    Stored.FLOAT32: ScaleKind.SCALE_FLOAT32,
    Stored.FLOAT16: ScaleKind.SCALE_FLOAT16,
    Stored.BFLOAT16: ScaleKind.SCALE_BFLOAT16,
    Stored.FLOAT16_SQUARED: ScaleKind.SCALE_FLOAT16_SQUARED,
    Stored.POWER_OF_TWO: ScaleKind.SCALE_POWER_OF_TWO,
    Stored.E4M3: ScaleKind.SCALE_E4M3,
    Stored.ONE: ScaleKind.SCALE_ONE,
    Stored.SIXTEENTHS: ScaleKind.SCALE_SIXTEENTHS,
}
BYTE, MAX_BITS = 8, 16
MAX_LOG_BLOCK = 1024
LONGEST_BLOCK = 8192
"""Elements of a block that the engine has room for."""

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
    made.in_log = map_.position_rounding
    return made


@functools.lru_cache(maxsize=4096)
def geometry(normalizer: Normalizer, shape: tuple[int, ...]) -> Any:
    """Position of each element's scale; None if the engine does not support the normalizer."""
    scales = normalizer.geometry(shape)
    if scales is None or len(scales.parts) > 8 or scales.arrays > 8:
        return None
    if scales.log and scales.parts[0].divisor > MAX_LOG_BLOCK:
        return None
    if scales.ratio and scales.parts[0].divisor == 1 < scales.parts[0].count:
        return None
    if any(part.rms for part in scales.parts) and not _local(scales, shape):
        return None
    parts = [
        (
            part.divisor,
            part.count,
            part.array,
            -1 if part.ends is None else part.ends,
            KINDS[part.stored].value,
            part.rms,
        )
        for part in scales.parts
    ]
    return core.Geometry(parts, scales.log, scales.arrays, scales.quantile, scales.ratio)


def _local(geometry: Geometry, shape: tuple[int, ...]) -> bool:
    """Return True if each block is encoded by itself, as ``Geometry::local_block`` tells."""
    part = geometry.parts[0]
    block = part.divisor * (8 if part.divisor % 8 else 1)
    again = part.divisor * part.count < torch.Size(shape).numel()
    return len(geometry.parts) == 1 and part.ends is None and block <= LONGEST_BLOCK and not again


def supports(normalizer: Normalizer, map_: Map, shape: tuple[int, ...]) -> bool:
    """Return True if this engine can quantize and decode a tensor of `shape`.

    Args:
        normalizer: computes the scales. It needs a `geometry` of at most 8 lists of scales,
            blocks of at most 1024 elements where it spans log2 ranges, of 2 to 1024 where it
            expands ranges, and of at most 8192 under a root mean square, always alone.
        map_: holds the codebook: at most 16 bits, or 8 where scales are no divisors.
        shape: the shape of the tensor.
    """
    wide = map_.bits > BYTE
    return (
        map_.bits <= MAX_BITS
        and not (wide and not normalizer.linear)
        and geometry(normalizer, shape) is not None
    )


def measures(normalizer: Normalizer, map_: Map, shape: tuple[int, ...]) -> bool:
    """Return True if this engine can also read single codes, as error metrics need them.

    Args:
        normalizer: as in `supports`; its scales are largest magnitudes in float32 or codes of
            8-bit grids, or whole log2 ranges.
        map_: as in `supports`, of at most 8 bits: codes are unpacked to one byte each.
        shape: the shape of the tensor.
    """
    geometry = normalizer.geometry(shape)
    if geometry is None or any(part.stored is not Stored.FLOAT32 for part in geometry.parts):
        return False
    if geometry.quantile or map_.position_rounding or any(part.rms for part in geometry.parts):
        return False
    return map_.bits <= BYTE and supports(normalizer, map_, shape)


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

    Args:
        packed: 1-D uint8 packed codes; None where no codes are stored.
        scales: scales in the parts of ``normalizer.layout(shape)``.
        normalizer: a normalizer accepted by `supports`.
        map_: a map accepted by `supports`.
        shape: the shape of the tensor.
        brief: as in `codebook`.

    Returns:
        The engine's codebook and geometry, the address of the codes (0 for None), and the
        addresses of the scales.

    Raises:
        BadValueError: codes or scales are not contiguous, or have a wrong number of elements.
    """
    needed, _, counts = packing.stored(normalizer, map_.bits, shape)
    parts = zip(scales, counts, strict=True)
    return (
        codebook(map_, brief=brief),
        geometry(normalizer, shape),
        0 if packed is None else address(packed, needed, "packed"),
        [address(scale, count, "a tensor of scales") for scale, count in parts],
    )


def rounding(
    map_: Map, key: RoundingKey | None, *, dithered: bool = False
) -> tuple[list[tuple[int, ...]], list[tuple[float, bool]]]:
    """Describe a rounding to the engine.

    Args:
        map_: the map.
        key: names the random numbers; None rounds to nearest.
        dithered: round with subtractive dither instead of stochastically. It needs a key, and a
            map allowed by `qmaps.engines.dither`.

    Returns:
        The words of the key, and the gap between neighbours with whether values are at least 0,
        each in a list, empty if there are none.
    """
    if key is None:
        return [], []
    gap = spacing(map_) if dithered else None
    return [key.words()], [] if gap is None else [(gap, not map_.signed)]


def quantize(
    x: Tensor,
    normalizer: Normalizer,
    map_: Map,
    key: RoundingKey | None,
    out: tuple[Tensor, Scales] | None,
    *,
    dithered: bool,
    check: bool,
) -> tuple[Tensor, Scales, int]:
    """Quantize `x` to packed codes and scales.

    Args:
        x: float32, float16 or bfloat16 on the CPU.
        normalizer: a normalizer accepted by `supports`.
        map_: a map accepted by `supports`.
        key: names the random numbers of rounding; None rounds to nearest.
        out: packed codes and scales to write into, contiguous; None allocates them.
        dithered: as in `rounding`.
        check: whether to look for NaN, infinity, and negative numbers under an unsigned map.

    Returns:
        Packed codes (1-D uint8), scales, and the result of `check`: `Flags` or-ed together. If it
        is not 0, `out` is unchanged, and allocated codes and scales are meaningless. Without
        `check` the third value means nothing.
    """
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
        rounding(map_, key, dithered=dithered),
        check,
        out is not None,
        not map_.signed,
        threads(x.numel()),
    )
    return packed, scales, flags


def dequantize(
    packed: Tensor,
    scales: Scales,
    normalizer: Normalizer,
    map_: Map,
    out: Tensor,
    *,
    dithered_by: RoundingKey | None = None,
) -> None:
    """Decode packed codes into `out`.

    Args:
        packed: 1-D uint8 packed codes, contiguous on the CPU.
        scales: scales in the parts of ``normalizer.layout(out.shape)``, contiguous.
        normalizer: a normalizer accepted by `supports`.
        map_: a map accepted by `supports`.
        out: contiguous float32, float16 or bfloat16 on the CPU, of the tensor's shape.
        dithered_by: the key they were dithered with; None if they were not.

    Raises:
        BadValueError: a tensor is not contiguous, or has a wrong number of elements.
    """
    core.dequantize(
        *stored(packed, scales, normalizer, map_, tuple(out.shape)),
        rounding(map_, dithered_by, dithered=True),
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
