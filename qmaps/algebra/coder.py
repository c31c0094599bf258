"""Encoding and decoding of tensors, as plans of steps and low-rank parts call it."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from qmaps.algebra.philox import RoundingKey
from qmaps.algebra.quantizer import QuantizedTensor, Quantizer
from qmaps.normalize.base import Scales


class Coder(Protocol):
    """Encodes float32 tensors with quantizers and decodes them, by one engine or by several."""

    def encode(
        self,
        q: Quantizer,
        x: Tensor,
        *,
        out: QuantizedTensor | None = None,
        key: RoundingKey | None = None,
        after: QuantizedTensor | None = None,
    ) -> QuantizedTensor:
        """See `Quantizer.quantize_unchecked`."""

    def encode_scaled(
        self, q: Quantizer, x: Tensor, scales: Scales, *, key: RoundingKey | None = None
    ) -> QuantizedTensor:
        """See `Quantizer.quantize_scaled`."""

    def decode(self, t: QuantizedTensor) -> Tensor:
        """The float32 values of a tensor."""
