"""Dispatch to the engines: the fast one where it supports a quantizer, else the reference.

All engines give the same bits, so the choice changes nothing but the speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from qmaps.algebra.philox import RoundingKey
from qmaps.cuda import tensors as cuda_tensors
from qmaps.cuda.support import CUDA
from qmaps.engines import huge_pages, reference
from qmaps.engines.addresses import in_memory
from qmaps.engines.native import metrics as native_metrics
from qmaps.engines.native import tensors
from qmaps.engines.support import NATIVE, TRITON
from qmaps.engines.triton import tensors as triton_tensors
from qmaps.maps.base import Map
from qmaps.metrics import Sums
from qmaps.normalize.base import Normalizer, Scales
from qmaps.ops.backends import cuda_engine, native_runs, triton_engine

T = TypeVar("T")
R = TypeVar("R")


def runs_native(*tensors_: Tensor) -> bool:
    """Return True if the native engine is in use and can read all of these."""
    for x in tensors_:
        if not x.is_cpu:
            return False
    return native_runs() and all(map(in_memory, tensors_))


def quantize(
    x: Tensor,
    normalizer: Normalizer,
    map_: Map,
    key: RoundingKey | None = None,
    out: tuple[Tensor, Scales] | None = None,
    *,
    check: bool = False,
) -> tuple[Tensor, Scales, int]:
    """Quantize `x` to packed codes and scales, into `out` if given; fitted maps must be frozen.

    With `check`, the third value is not 0 if `x` holds NaN, infinity or other unsuitable values.
    Then `out` is unchanged, and new codes and scales are meaningless. Without `check` it means
    nothing.
    """
    parts = () if out is None else (out[0], *out[1])
    fused = out is None or all(part.is_contiguous() for part in parts)
    # Only the reference draws numbers for shards that are not one stretch.
    fused = fused and (key is None or key.runs is None)
    shape = tuple(x.shape)
    device = cuda_engine(x, *parts) if fused and x.numel() else None
    if device is not None and CUDA.supports(normalizer, map_, shape):
        return cuda_tensors.quantize(device, x, normalizer, map_, key, out, check=check)
    if fused and x.numel() and _triton_runs(x, *parts) and TRITON.supports(normalizer, map_, shape):
        if check and holds_bad(x, map_):
            return *(out or (x, ())), 1
        return *triton_tensors.quantize(x, normalizer, map_, key, out), 0
    if fused and runs_native(x, *parts) and NATIVE.supports(normalizer, map_, shape):
        return tensors.quantize(x, normalizer, map_, key, out, check=check)
    suspect = check and holds_bad(x, map_)
    if suspect and out is not None:
        return *out, True
    packed, scales = reference.quantize_packed(x.float(), normalizer, map_, key, out)
    return packed, scales, suspect


def dequantize(
    packed: Tensor,
    scales: Scales,
    normalizer: Normalizer,
    map_: Map,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    out: Tensor | None = None,
) -> Tensor:
    """Decode packed codes to `shape`, into `out` or a new tensor of `dtype`."""
    stored = (packed, *scales)
    fused = all(part.is_contiguous() for part in stored)
    device = cuda_engine(*stored) if fused and _product(shape) else None
    if device is not None and CUDA.supports(normalizer, map_, shape):
        target = _target(out, shape, dtype, packed.device)
        cuda_tensors.dequantize(device, packed, scales, normalizer, map_, target)
        return target if out is None or target is out else out.copy_(target)
    if (
        fused
        and packed.numel()
        and _triton_runs(*stored)
        and TRITON.supports(normalizer, map_, shape)
    ):
        target = _target(out, shape, dtype, packed.device)
        triton_tensors.dequantize(packed, scales, normalizer, map_, target)
        return target if out is None or target is out else out.copy_(target)
    if fused and runs_native(*stored) and NATIVE.supports(normalizer, map_, shape):
        target = _target(out, shape, dtype, packed.device)
        tensors.dequantize(packed, scales, normalizer, map_, target)
        return target if out is None or target is out else out.copy_(target)
    values = reference.dequantize_packed(packed, scales, normalizer, map_, shape)
    return values.to(dtype) if out is None else out.copy_(values)


def measure(
    x: Tensor, normalizer: Normalizer, map_: Map, key: RoundingKey | None = None, *, keep: bool
) -> tuple[Sums, Tensor | None, Scales, int] | None:
    """Sums of the errors of quantizing `x`, or None where the native engine does not take them.

    Returns:
        Sums, packed codes (None without `keep`), scales, and a number that is not 0 if `x` holds
        unsuitable values. Then the others are meaningless.
    """
    shape = tuple(x.shape)
    if x.numel() and runs_native(x) and NATIVE.measures(normalizer, map_, shape):
        return native_metrics.measure(x, normalizer, map_, key, keep=keep)
    return None


def each(work: Callable[[T], R], items: Sequence[T], *read: Tensor) -> Iterator[R]:
    """``work(item)`` of every item, in their order.

    The native engine works on several items at a time; a CUDA device is busy with one.
    """
    on_device = any(cuda_engine(tensor) is not None for tensor in read)
    side_by_side = runs_native(*read) and not on_device
    return tensors.each(work, items) if side_by_side else map(work, items)


def _triton_runs(*tensors_: Tensor) -> bool:
    return triton_engine(*tensors_) is not None


def holds_bad(x: Tensor, map_: Map) -> bool:
    """Return True if `x` holds NaN, infinity, or negative values under an unsigned map."""
    return not bool(x.isfinite().all()) or (not map_.signed and bool((x < 0).any()))


def _target(
    out: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """`out` where an engine can write into it, else a new tensor."""
    if out is None:
        return huge_pages.empty(shape, dtype=dtype, device=device)
    plain = out.is_contiguous() and out.dtype in tensors.DTYPES and in_memory(out)
    if plain and out.device == device:
        return out
    return huge_pages.empty(shape, dtype=torch.float32, device=device)


def _product(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()
