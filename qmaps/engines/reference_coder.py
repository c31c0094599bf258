"""Whole quantizers in plain PyTorch, with fits and low-rank parts."""

from __future__ import annotations

from torch import Tensor

from qmaps.algebra import low_rank, packing
from qmaps.algebra.fit import fit_each
from qmaps.algebra.philox import RoundingKey
from qmaps.algebra.quantizer import QuantizedTensor, Quantizer
from qmaps.engines import reference
from qmaps.engines.order_statistics import quantiles
from qmaps.errors import BadValueError
from qmaps.maps.fitted import FitFunctions
from qmaps.maps.lloyd import Cells
from qmaps.normalize.base import Scales

FUNCTIONS = FitFunctions(quantiles, Cells)


class ReferenceCoder:
    """A `qmaps.algebra.coder.Coder` on every device; tensors to write into must fit."""

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
        factors: tuple[QuantizedTensor, ...] = ()
        if q.low_rank is not None and q.low_rank.shapes(x.shape):
            targets = None if out is None else low_rank.low_rank_of(out)
            x, factors = low_rank.split(q.low_rank, x.contiguous(), self, after, targets)
        storage = None
        if out is not None:
            q, storage = out.quantizer, (out.packed, out.scales)
        elif q.map.fitted:
            q = fit_each([q], x, FUNCTIONS)[0]
        packed, scales = reference.quantize_packed(x, q.normalizer, q.map, q.noise(key), storage)
        return QuantizedTensor(q, tuple(x.shape), packed, scales, factors) if out is None else out

    def encode_scaled(
        self, q: Quantizer, x: Tensor, scales: Scales, *, key: RoundingKey | None = None
    ) -> QuantizedTensor:
        """See `Quantizer.quantize_scaled`."""
        if q.low_rank is not None and q.low_rank.shapes(x.shape):
            raise BadValueError(
                f"quantizer={q.spec} keeps factors of a whole matrix; with scales from "
                "elsewhere use one without a low-rank part"
            )
        codes, _ = reference.quantize(x, q.normalizer, q.map, q.noise(key), scales)
        return QuantizedTensor(q, tuple(x.shape), packing.pack(codes, q.map.bits), scales)

    def decode(self, t: QuantizedTensor) -> Tensor:
        """The float32 values of a tensor."""
        q = t.quantizer
        values = reference.dequantize_packed(t.packed, t.scales, q.normalizer, q.map, t.shape)
        if factors := low_rank.low_rank_of(t):
            values = values + low_rank.product([self.decode(factor) for factor in factors])
        return values


REFERENCE = ReferenceCoder()
