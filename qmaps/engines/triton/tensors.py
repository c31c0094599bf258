"""Quantized tensors on the Triton engine."""

from __future__ import annotations

import torch
from torch import Tensor

from qmaps.algebra import packing
from qmaps.algebra.philox import RoundingKey
from qmaps.algebra.rounding import Rounding
from qmaps.engines.addresses import address
from qmaps.engines.triton import source
from qmaps.engines.triton.engine import launch, on, upload
from qmaps.engines.triton.source import ALIGNED, DTYPES, Kind, noise_words
from qmaps.engines.triton.trace import Trace
from qmaps.maps.base import Map
from qmaps.normalize.base import Normalizer, Scales

ENCODE = Trace((), "p", {"x": "p"}, (), ())
DECODE = Trace((), "v0", {"x": "v0"}, (), ())


def quantize(
    x: Tensor,
    normalizer: Normalizer,
    map_: Map,
    key: RoundingKey | None,
    out: tuple[Tensor, Scales] | None,
) -> tuple[Tensor, Scales]:
    """Packed codes and scales of a tensor, into `out` if given; nothing is checked."""
    x, shape = x.contiguous(), tuple(x.shape)
    if out is None:
        needed, _, _ = packing.stored(normalizer, map_.bits, shape)
        packed = torch.empty(needed, dtype=torch.uint8, device=x.device)
        scales = normalizer.zero_scales(shape, x.device)
    else:
        packed, scales = out
    _run(ENCODE, x, packed, scales, normalizer, map_, key)
    return packed, scales


def dequantize(
    packed: Tensor, scales: Scales, normalizer: Normalizer, map_: Map, out: Tensor
) -> None:
    """Decode into `out`; all tensors are contiguous."""
    _run(DECODE, out, packed, scales, normalizer, map_, None)


def _run(
    traced: Trace,
    x: Tensor,
    packed: Tensor,
    scales: Scales,
    normalizer: Normalizer,
    map_: Map,
    key: RoundingKey | None,
) -> None:
    shape, numel = tuple(x.shape), x.numel()
    needed, _, counts = packing.stored(normalizer, map_.bits, shape)
    rounding = Rounding.NEAREST
    if key is not None:
        rounding = Rounding.QUASI_STOCHASTIC if key.spread else Rounding.STOCHASTIC
    state = source.state_kind(normalizer, map_, rounding, shape)
    stride = source.stride_of([state], numel)
    mode = "quantize" if traced is ENCODE else "dequantize"
    kind = Kind(DTYPES[x.dtype], "float32", (state,), stride, mode=mode)
    starts = [address(x), address(packed, needed, "packed")]
    scales_at = address(scales[0], counts[0], "a tensor of scales")
    row = [numel, starts[0], *[0] * source.COLUMNS, starts[1], scales_at, *noise_words(key)]
    table = upload(row, torch.int64, x.device)
    step = 0 if key is None else key.step
    aligned = stride % source.TILE == 0 and not any(start % ALIGNED for start in starts)
    maps = source.tables_of(map_, rounding, x.device)
    with on(x.device):
        for part, items in source.tiles_of(kind, [numel], x.device):
            launch(traced, part, (table, items, table, table), step, (), maps, aligned=aligned)
