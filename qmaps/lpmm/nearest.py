"""The nearest codes of weights, and the original codes of decoded weights.

A codebook that lacks -1, such as signed ``DE``, takes the largest weight of a block, where it is
negative, to a smaller one. The decoded block then has another maximum, and encoding it by that
would shrink it again, each time a checkpoint is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from qmaps.algebra.quantizer import QuantizedTensor, Quantizer
from qmaps.maps.base import table

SAMPLE = 4096
"""Elements that tell whether a tensor may have been decoded from codes."""


def nearest(values: Tensor, q: Quantizer, *, check: bool = False) -> QuantizedTensor:
    """The nearest codes of `values`, as of `q`, even if that is stochastic.

    Blocks that decode from codes under the scale that one of the codebook's ends implies get those
    codes, so that decoding gives back the same values. Scales that overlap (``rank1``, ``&``) or
    are stored in 8 bits are the maxima in any case. `check` refuses NaN and infinity.
    """
    plain = Quantizer(q.normalizer, q.map)
    encode = plain.quantize if check else plain.quantize_unchecked
    encoded = encode(values.float())
    chosen = _chosen(values, encoded)
    if chosen is not None:
        encoded = plain.quantize_scaled(values.float(), (chosen,))
    return QuantizedTensor(q, encoded.shape, encoded.packed, encoded.scales)


def _chosen(values: Tensor, encoded: QuantizedTensor) -> Tensor | None:
    """For each block a scale under which it has codes; None where the maxima serve as well."""
    q = encoded.quantizer
    geometry = q.normalizer.geometry(encoded.shape)
    if geometry is None or geometry.log or len(geometry.parts) != 1 or len(encoded.scales) != 1:
        return None
    if not geometry.parts[0].plain:
        return None
    ends = {float(end) for end in table(q.map)[[0, -1]].abs()} - {0.0, 1.0}
    if not ends or not values.numel():
        return None
    maxima = encoded.scales[0]
    open_ = ~_same(values, encoded)
    if not open_.any() or not _plausible(values, encoded, ends):
        return None
    chosen = maxima.clone()
    for end in ends:
        for candidate in _candidates(maxima / end, values.dtype):
            exact = _same(values, q.quantize_scaled(values.float(), (candidate,)))
            chosen = torch.where(open_ & exact, candidate, chosen)
            open_ &= ~exact
    return chosen


def _candidates(scale: Tensor, dtype: torch.dtype) -> Iterator[Tensor]:
    """Scales whose product with the end may have rounded to the maxima."""
    yield scale
    if dtype != torch.float32:
        yield scale.to(dtype).float()
    for direction in (torch.inf, -torch.inf):
        moved = scale
        for _ in range(2):
            moved = torch.nextafter(moved, torch.full_like(moved, direction))
            yield moved


def _same(values: Tensor, t: QuantizedTensor) -> Tensor:
    """For each scale whether everything under it decodes to `values`."""
    differs = (t.dequantize(dtype=values.dtype) != values).float()
    return t.quantizer.normalizer.scales(differs)[0] == 0


def _plausible(values: Tensor, encoded: QuantizedTensor, ends: set[float]) -> bool:
    """Return True if most of a few elements are products of a code and a scale."""
    q = encoded.quantizer
    x = values.reshape(-1)[:SAMPLE].float()
    expanded = q.normalizer.expand(encoded.scales, encoded.shape).expand(encoded.shape)
    scale = expanded.reshape(-1)[:SAMPLE]
    x, scale = x[x != 0], scale[x != 0]
    codebook = table(q.map).to(x.device)
    near = torch.zeros_like(x, dtype=torch.bool)
    for end in {1.0, *ends}:
        n = x / (scale / end)
        above = torch.searchsorted(codebook, n).clamp(1, len(codebook) - 1)
        distance = torch.minimum((codebook[above] - n).abs(), (codebook[above - 1] - n).abs())
        near |= distance <= 2 * torch.finfo(values.dtype).eps * n.abs()
    return bool(near.sum() * 2 >= near.numel())
