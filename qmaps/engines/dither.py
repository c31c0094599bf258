"""Subtractive dither: a random offset, added in encoding and subtracted in decoding.

For normalized values n and a codebook whose neighbours are d apart, both in float32,

- the offset of an element is ``o = (r - 1/2) * d``, with r from `qmaps.algebra.philox.uniform`;
- encoding takes the code nearest to ``n + o``;
- decoding returns ``codebook[code] - o``, and under an unsigned map 0 instead of a negative value.

So the error of a value within the codebook's range is uniform in (-d/2, d/2) and independent of the
value, where stochastic rounding has twice the variance on average, and one that depends on where
the value lies. It holds at both ends too: the largest value takes the last code, and decodes to up
to half a gap more or less than it. Values outside the range take the end codes and decode to up to
half a gap around the end: under the unsigned `linear`, whose smallest value is d, what is below it
to between d/2 and 3d/2. Of values within half a gap of 0 under an unsigned map that holds 0, the
mean is too large, because 0 takes the place of negative numbers.

Both need the same random numbers, so the `RoundingKey` of the last encoding belongs to the tensor.

Source: Schuchman (1964), "Dither signals and their effect on quantization noise". For states of
optimizers: "Block replay dithering" (BReD), whose offsets are shared within a block; here each
element has its own.
"""

from __future__ import annotations

from torch import Tensor

from qmaps.algebra.philox import RoundingKey, uniform
from qmaps.maps.base import Map, spacing


def offsets(like: Tensor, map_: Map, key: RoundingKey) -> Tensor:
    """The offset of each element, float32; `map_` has evenly spaced values."""
    gap = spacing(map_)
    assert gap is not None  # `Quantizer` refuses other maps
    return (uniform(like.numel(), key, like.device).view(like.shape) - 0.5) * gap


def removed(values: Tensor, map_: Map, key: RoundingKey) -> Tensor:
    """The normalized values of decoded codes, float32; at least 0 under an unsigned map."""
    x = values - offsets(values, map_, key)
    return x if map_.signed else x.clamp_(min=0)
