"""A normalizer composed with a map, and the tensors it makes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from qmaps.algebra import feedback
from qmaps.algebra.low_rank import LowRank, low_rank_of, parts_of
from qmaps.algebra.low_rank import unsupported_reason as reason_of_low_rank
from qmaps.algebra.quantized import FLOATS, QuantizedTensor, add_residual, encoded_by, nbytes_of
from qmaps.algebra.rounding import Rounding
from qmaps.algebra.spec import parse
from qmaps.distributed.shards import is_distributed
from qmaps.engines import dispatch, dither, packing, reference
from qmaps.engines.addresses import plain
from qmaps.engines.dense import unsupported_reason
from qmaps.engines.philox import RoundingKey
from qmaps.errors import BadTypeError, BadValueError, NonFiniteError, SpecError, shown
from qmaps.maps import _html
from qmaps.maps.base import Map, table
from qmaps.maps.codebook import Codebook
from qmaps.maps.fitted import FittedMap
from qmaps.normalize.base import Made, Normalizer, Scales


def quantizer(spec: str | Quantizer, codebooks: Iterable[Codebook] = ()) -> Quantizer:
    """Quantizer of a spec.

    Args:
        spec: such as ``"B128/DE@4s"``; a `Quantizer` is returned as it is.
        codebooks: maps of your own, found in the spec by their label.

    Raises:
        SpecError: an unknown normalizer, map or field, a width unknown to the map, or parts
            of different kinds.

    >>> q = quantizer("b128/de@4S")
    >>> str(q)
    'B128/DE@4s'
    >>> t = q.quantize(torch.linspace(-1, 1, 1024))
    >>> t.bits_per_element
    4.25
    >>> mine = Codebook([-1, -0.25, 0, 0.25, 1], label="mine")
    >>> quantizer("B64/mine@3s", codebooks=[mine]).map.codebook()
    tensor([-1.0000, -0.2500,  0.0000,  0.2500,  1.0000])
    """
    if isinstance(spec, Quantizer):
        return spec
    if not isinstance(spec, str):
        raise BadTypeError(f"spec={shown(spec)} must be a str such as 'B128/DE@4s', or a Quantizer")
    books, low_rank = tuple(codebooks), None
    if (parts := parts_of(spec)) is not None:
        rank, factors, spec = parts
        low_rank = LowRank(rank, quantizer(factors, books))
    normalizer, map_, rounding = parse(spec, books)
    return Quantizer(normalizer, map_, rounding=rounding, low_rank=low_rank)


@dataclass(frozen=True, init=False)
class Quantizer:
    """Q = M after N: divide by the normalizer's scales, then take the map's nearest code.

    Made by ``BlockWise(128) / DynamicExponent(bits=4)`` or ``quantizer("B128/DE@4s")``.

    Attributes:
        normalizer: gives the scales.
        map: gives the codebook; a floating-point format becomes `Map.for_scales` if scales are
            powers of two or 1.
        rounding: rounding of values to codes.
        low_rank: the additional low-rank part of matrices, as in
            ``lowrank4(B128/DE@8s)+B128/DE@4s``; None for none.

    Args:
        normalizer: as above.
        map: as above.
        stochastic: True is short for ``rounding=Rounding.STOCHASTIC``, False for
            ``Rounding.NEAREST``; None leaves it to `rounding`.
        rounding: as above.
        low_rank: as above.
    """

    normalizer: Normalizer
    map: Map
    rounding: Rounding
    low_rank: LowRank | None = None

    def __init__(
        self,
        normalizer: Normalizer,
        map: Map,  # noqa: A002
        stochastic: bool | None = None,
        *,
        rounding: Rounding = Rounding.NEAREST,
        low_rank: LowRank | None = None,
    ) -> None:
        if not isinstance(rounding, Rounding):
            raise BadTypeError(
                f"rounding={shown(rounding)} must be a qmaps.Rounding, such as Rounding.STOCHASTIC"
            )
        if stochastic is not None and not isinstance(stochastic, bool):
            raise BadTypeError(f"stochastic={shown(stochastic)} must be a bool or None")
        if stochastic is not None:
            rounding = Rounding.STOCHASTIC if stochastic else Rounding.NEAREST
        # The way a frozen dataclass does it.
        fields = {"normalizer": normalizer, "map": map, "rounding": rounding, "low_rank": low_rank}
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        self._check()

    def _check(self) -> None:
        if self.normalizer.log_domain != self.map.log_domain:
            raise SpecError(
                f"{self.normalizer.spec}/{self.map.spec}: the normalizer logB<n> and the maps log2 "
                "and log2-0 only work with each other"
            )
        scales = {"powers_of_two": self.normalizer.powers_of_two, "ones": self.normalizer.ones}
        if any(scales.values()):
            object.__setattr__(self, "map", self.map.for_scales(**scales))
        if self.dithered and (why := dither.lacks(self.normalizer, self.map)):
            raise SpecError(f"{self.spec}: {why}")
        if self.low_rank is not None and (why := reason_of_low_rank(self)):
            raise SpecError(f"{self.spec}: the quantizer of the rest {why}")

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set pickled fields; versions before 0.2 have `stochastic` instead of `rounding`."""
        fields = dict(state)
        if "rounding" not in fields:
            old = fields.pop("stochastic", False)
            fields["rounding"] = Rounding.STOCHASTIC if old else Rounding.NEAREST
        self.__dict__.update(fields)

    @property
    def stochastic(self) -> bool:
        """True if it rounds at random to one of the two neighbours, unbiased (``+sr``)."""
        return self.rounding is Rounding.STOCHASTIC

    @property
    def dithered(self) -> bool:
        """True if it rounds with subtractive dither (``+dither``; `qmaps.engines.dither`)."""
        return self.rounding is Rounding.DITHERED

    @property
    def error_feedback(self) -> bool:
        """True if it keeps rounding errors (``+ef4``, ``+ef8``; `qmaps.algebra.feedback`)."""
        return self.rounding.residual_bits is not None

    @property
    def keeps_zero(self) -> bool:
        """True if zeros decode to zeros, whatever other elements are.

        Maps such as `linear` and `quantile-normal` do not hold 0, and neither do signed `power2`
        and `power3`. For a fitted map it is False, since the values are unknown.

        >>> quantizer("B64/DE@4s").keeps_zero, quantizer("B64/linear@4s").keeps_zero
        (True, False)
        """
        if self.map.fitted or self.dithered or self.low_rank is not None:
            return False
        lowest = -1 if self.map.log_domain else 0  # -1 stands for 0 in a log2 range
        return bool((table(self.map) == lowest).any())

    @property
    def spec_extensions(self) -> str:
        """Extensions of the spec beyond normalizer, map and ``+sr``; empty without.

        If empty, codes and scales suffice to decode and to encode again.
        """
        prefix = "" if self.low_rank is None else self.low_rank.prefix.removesuffix("+")
        suffix = "" if self.rounding.memoryless else self.rounding.value
        return " and ".join(part for part in (prefix, suffix) if part)

    def beside(self, shape: Sequence[int]) -> tuple[tuple[Quantizer, tuple[int, ...]], ...]:
        """Quantizers and shapes of the tensors stored beside a tensor's codes.

        Args:
            shape: the shape of the tensor.

        Returns:
            A pair per factor of a low-rank part (`qmaps.algebra.low_rank`), and last one for
            the residual under error feedback (``+ef4``; `qmaps.algebra.feedback`).
        """
        parts: tuple[tuple[Quantizer, tuple[int, ...]], ...] = ()
        if self.low_rank is not None:
            parts = tuple((self.low_rank.factors, size) for size in self.low_rank.shapes(shape))
        bits = self.rounding.residual_bits
        return parts if bits is None else (*parts, (_of_residuals(bits), tuple(shape)))

    @property
    def spec(self) -> str:
        """The canonical spec; `quantizer` reads it back."""
        map_ = self.map
        if self.normalizer.powers_of_two or self.normalizer.ones:  # which says it already
            map_ = map_.for_scales()
        prefix = "" if self.low_rank is None else self.low_rank.prefix
        return f"{prefix}{self.normalizer.spec}/{map_.spec}{self.rounding.value}"

    def __str__(self) -> str:
        return self.spec

    def __repr__(self) -> str:
        return f"quantizer({self.spec!r})"

    def _repr_html_(self) -> str:
        """HTML table for notebooks; bits per element are those of a tensor of 1024 x 1024."""
        return _html.table(
            "Quantizer",
            [
                ("spec", lambda: self.spec),
                ("normalizer", lambda: self.normalizer.spec),
                ("map", lambda: self.map.spec),
                ("rounding", self.rounding.words),
                ("bits per element", lambda: f"{8 * self.nbytes((1024, 1024)) / 2**20:.4g}"),
            ],
        )

    def nbytes(self, shape: Sequence[int]) -> int:
        """Bytes of a quantized tensor of this shape, as `QuantizedTensor.nbytes`."""
        scales = 0
        for dtype, part in self.normalizer.layout(tuple(shape)):
            scales += dtype.itemsize * math.prod(part)
        entries = 0
        if isinstance(self.map, FittedMap):
            entries = 2 ** int(self.map.bits)
        elif self.map.counted:
            entries = table(self.map).numel()
        codes = packing.packed_bytes(math.prod(shape), self.map.bits)
        parts = sum(q.nbytes(size) for q, size in self.beside(shape))
        return codes + scales + torch.float32.itemsize * entries + parts

    def fit(self, x: Tensor) -> Quantizer:
        """This quantizer with the codebook of a fitted map fitted to `x` and frozen.

        A quantizer with a formula or a frozen codebook is returned as it is.

        Raises:
            NonFiniteError, BadValueError, BadTypeError: as `quantize`.
        """
        x = _floats(x)
        self._refuse_bad(x)
        return self._frozen(x)

    def quantize(
        self,
        x: Tensor,
        *,
        out: QuantizedTensor | None = None,
        key: RoundingKey | None = None,
        after: QuantizedTensor | None = None,
    ) -> QuantizedTensor:
        """Quantize `x`.

        Args:
            x: float32, float16 or bfloat16 tensor of any shape and strides; computed in
                float32.
            out: a tensor of the same shape and quantizer, written into and returned; unchanged if
                `x` is refused. With a fitted map its codebook is kept, not fitted anew.
            key: names the random numbers of stochastic rounding and of dither; ``RoundingKey()``
                if left out, so the same call gives the same codes. Change `step` from call to call.
            after: the tensor of the last step, of the same shape; under error feedback its residual
                is added to `x` (`qmaps.algebra.feedback`). It may be `out`.

        Returns:
            Packed codes and scales, on the device of `x`.

        Raises:
            NonFiniteError: `x` holds NaN or infinity.
            BadValueError: `x` is negative somewhere and the map unsigned, or `out` or `after` does
                not match.
            BadTypeError: `x` is no tensor of an allowed dtype.

        >>> q, x = quantizer("tensor/linear0@4s+ef8"), torch.tensor([1.0, 0.05])
        >>> t = q.quantize(x)  # the codes beside 0 stand for 1/7
        >>> t.dequantize()[1], q.quantize(x, after=t).dequantize()[1]
        (tensor(0.), tensor(0.1429))
        """
        x = _floats(x)
        if isinstance(self.map, FittedMap) and out is None:
            self._refuse_bad(x)
        return self._quantized(x, out, key, after, check=True)

    def quantize_unchecked(
        self,
        x: Tensor,
        *,
        out: QuantizedTensor | None = None,
        key: RoundingKey | None = None,
        after: QuantizedTensor | None = None,
    ) -> QuantizedTensor:
        """As `quantize` for float32 `x`, without a check for NaN, infinity or negative elements.

        Elements that share a scale with a non-finite one decode to non-finite values, so none
        becomes a finite number silently; only exact zeros under ``logB`` stay 0. There a negative
        element counts as NaN; under other normalizers unsigned maps take it to their lowest code.

        Args:
            x: float32 tensor of any shape and strides.
            out: as for `quantize`.
            key: as for `quantize`.
            after: as for `quantize`.

        Returns:
            Packed codes and scales, on the device of `x`.

        Raises:
            BadValueError, BadTypeError: `out` or `after` does not match, or `key` is no
                `RoundingKey`.
        """
        return self._quantized(x, out, key, after, check=False)

    def quantize_scaled(
        self,
        x: Tensor,
        scales: Scales,
        *,
        key: RoundingKey | None = None,
        after: QuantizedTensor | None = None,
    ) -> QuantizedTensor:
        """As `quantize_unchecked` with scales of the whole tensor, of which `x` is a part.

        Args:
            x: float32.
            scales: in the parts of the normalizer's `layout` for the shape of `x`.
            key: as for `quantize`.
            after: as for `quantize`.

        Raises:
            BadValueError: the quantizer keeps a low-rank part of matrices such as `x`.
        """
        if self.low_rank is not None and self.low_rank.shapes(x.shape):
            raise BadValueError(
                f"quantizer={self.spec} keeps factors of a whole matrix; with scales from "
                "elsewhere use one without a low-rank part"
            )
        noise = (key or RoundingKey()) if self.rounding.random else None
        y = add_residual(x, after)
        codes, _ = reference.quantize(
            self._encodable(x, y), self.normalizer, self.map, noise, scales, dithered=self.dithered
        )
        packed = packing.pack(codes, self.map.bits)
        return self._with_others(y, packed, scales, noise, ())

    def _quantized(
        self,
        x: Tensor,
        out: QuantizedTensor | None,
        key: RoundingKey | None,
        after: QuantizedTensor | None,
        *,
        check: bool,
    ) -> QuantizedTensor:
        """Quantize `x`; with `check`, raise if it holds bad values."""
        if out is not None:
            _check_out(out, self, x)
        if key is not None and not isinstance(key, RoundingKey):
            raise BadTypeError(f"key must be a RoundingKey, got {type(key).__name__}")
        if after is not None:
            _check_after(after, x)
        y = add_residual(x, after)
        if check and y is not x:
            self._refuse_bad(x)
        original, x = x, self._encodable(x, y)
        factors: tuple[QuantizedTensor, ...] = ()
        if self.low_rank is not None and self.low_rank.shapes(x.shape):
            if check:
                self._refuse_bad(original)
            y, factors = self.low_rank.split(
                x.float().contiguous(), after, None if out is None else low_rank_of(out)
            )
            x = y
        frozen = self._frozen(x) if out is None else out.quantizer
        noise = (key or RoundingKey()) if self.rounding.random else None
        storage = None if out is None else (out.packed, out.scales)
        packed, scales, suspect = dispatch.quantize(
            x, frozen.normalizer, frozen.map, noise, storage, dithered=self.dithered, check=check
        )
        if check and suspect:
            self._refuse_bad(original)
        return frozen._with_others(y, packed, scales, noise, factors, out)

    def _encodable(self, x: Tensor, y: Tensor) -> Tensor:
        """Values to encode: `y`, the sum of `x` and the residual, as engines take it."""
        return y if y is x or self.map.signed else y.clamp(min=0)

    def _with_others(
        self,
        y: Tensor,
        packed: Tensor,
        scales: Scales,
        noise: RoundingKey | None,
        factors: tuple[QuantizedTensor, ...],
        out: QuantizedTensor | None = None,
    ) -> QuantizedTensor:
        """Quantized tensor of these codes of `y`, with scales, residual and factors.

        Args:
            y: encoded values: the rest if there is a low-rank part.
            packed: its codes.
            scales: its scales.
            noise: the key of its random numbers.
            factors: its low-rank part; the codes are then those of the rest.
            out: the tensor whose codes and scales these are; the others are written into it.
        """
        key = noise if self.dithered else None
        shape = tuple(y.shape)
        beside = [*factors]
        for place, (q, _) in list(enumerate(self.beside(shape)))[len(factors) :]:
            decoded = dispatch.dequantize(
                packed, scales, self.normalizer, self.map, shape, torch.float32
            )
            residual = feedback.residual(y.float(), decoded, scales, self.normalizer, self.map)
            target = None if out is None else out.beside[place]
            beside.append(q.quantize_unchecked(residual, out=target))
        if out is None:
            return QuantizedTensor(self, shape, packed, scales, key, tuple(beside))
        encoded_by(out, key)
        return out

    def dequantize(
        self,
        t: QuantizedTensor,
        *,
        out: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """The values of `t`; the same as ``t.dequantize(out=out, dtype=dtype)``.

        Args:
            t: a tensor made by a quantizer with this normalizer and a map of this spec.
            out: floating-point tensor of the same shape, written into and returned; its dtype
                replaces `dtype`.
            dtype: float32, float16 or bfloat16. Values are computed in float32 and then rounded.

        Returns:
            `out`, or a new tensor of the shape of `t` on its device.

        Raises:
            BadTypeError: `t` is no `QuantizedTensor`, or a dtype is not allowed.
            BadValueError: `t` was made by a quantizer with another normalizer or map, or `out`
                does not match.
        """
        if not isinstance(t, QuantizedTensor):
            raise BadTypeError(f"t must be a QuantizedTensor, got {type(t).__name__}")
        same = (t.quantizer.normalizer, t.quantizer.map.spec) == (self.normalizer, self.map.spec)
        if not same or t.quantizer.low_rank != self.low_rank:
            raise BadValueError(
                f"t was quantized with {t.quantizer.spec}; {self.spec} cannot decode it"
            )
        return t.dequantize(out=out, dtype=dtype)

    def error(self, x: Tensor) -> dict[str, float]:
        """Every metric of `qmaps.metrics` for this quantizer on `x`, and bits per element.

        Raises:
            NonFiniteError, BadValueError, BadTypeError: as `quantize`.
        """
        return self.measured(x, keep=False)[0]

    def measured(
        self, x: Tensor, *, keep: bool = True
    ) -> tuple[dict[str, float], Tensor | QuantizedTensor | None]:
        """Metrics as in `error`, and if `keep` also `x` quantized or decoded.

        The native and the CUDA engine quantize and measure in one pass, without storing decoded
        values or unneeded codes, as long as every metric has a form for sums.
        """
        from qmaps import metrics

        x = _floats(x)
        q = self.fit(x) if isinstance(self.map, FittedMap) else self
        results = None
        if metrics.SUMMED.keys() == metrics.METRICS.keys() and not self.spec_extensions:
            noise = RoundingKey() if self.rounding.random else None
            results = dispatch.measure(x, q.normalizer, q.map, noise, keep=keep)
        if results is None:
            t = q.quantize(x)
            decoded = t.dequantize()
            values = metrics.measure(x.float(), decoded, t.codes(), table(q.map).numel())
            return {"bits_per_element": t.bits_per_element, **values}, decoded if keep else None
        sums, packed, scales, suspect = results
        if suspect:
            self._refuse_bad(x)
        nbytes = nbytes_of(q.map, packing.packed_bytes(x.numel(), q.map.bits), scales)
        values = metrics.measure_sums(sums)
        encoded = None if packed is None else QuantizedTensor(q, tuple(x.shape), packed, scales)
        return {"bits_per_element": 8 * nbytes / x.numel(), **values}, encoded

    def _frozen(self, x: Tensor) -> Quantizer:
        return fit_each([self], x)[0] if isinstance(self.map, FittedMap) else self

    def _refuse_bad(self, x: Tensor) -> None:
        """Raise if `x` holds NaN or infinity."""
        _refuse(~x.isfinite(), "NaN or infinite", "only finite values can be quantized", True)
        if not self.map.signed:
            _refuse(x < 0, "negative", f"{self.map.spec} is unsigned; use a signed map", False)


@lru_cache(maxsize=8)
def _of_residuals(bits: int) -> Quantizer:
    return quantizer(feedback.RESIDUAL.format(bits=bits))


def fit_each(quantizers: Sequence[Quantizer], x: Tensor) -> list[Quantizer]:
    """Freeze several quantizers of one normalizer, all with fitted maps, to the same tensor.

    Args:
        quantizers: at least one.
        x: float32, float16 or bfloat16 of any shape. The fit ignores non-finite elements
            and those sharing a scale with them, which decode to NaN with any codebook.
    """
    normalizer = quantizers[0].normalizer
    x = x.float()
    scales = normalizer.scales(x)
    scale = normalizer.expand(scales, tuple(x.shape)).expand(x.shape)
    return fit_normalized(quantizers, normalizer.normalize(x, scales), scale)


def fit_normalized(quantizers: Sequence[Quantizer], n: Tensor, scale: Tensor) -> list[Quantizer]:
    """As `fit_each`, where the normalized values are known.

    Args:
        quantizers: at least one, all of one normalizer and with fitted maps.
        n: normalized values, float32 of any shape.
        scale: the scale of each, float32 of the same shape.
    """
    normalizer = quantizers[0].normalizer
    if normalizer.clips:
        n = n.clamp(-1, 1)  # a codebook that ends beyond would decode to more than the scale
    # If the sum is finite, all terms are.
    if not math.isfinite(n.double().sum() + scale.double().sum()):
        finite = n.isfinite() & scale.isfinite()
        n, scale = n[finite], scale[finite]
    frozen: dict[Map, Map] = {}
    maps = [q.map for q in quantizers if isinstance(q.map, FittedMap)]
    for cls in {type(map_) for map_ in maps}:
        same = [map_ for map_ in maps if type(map_) is cls]
        weights = scale.double().square() if cls.weighted else None
        frozen |= dict(zip(same, cls.fit_each(same, n, weights), strict=True))
    return [replace(q, map=frozen[q.map]) for q in quantizers if isinstance(q.map, FittedMap)]


def _floats(x: Tensor) -> Tensor:
    """`x` without its graph, if it is a tensor of an allowed dtype."""
    if not isinstance(x, Tensor):
        raise BadTypeError(f"x must be a torch.Tensor, got {type(x).__name__}")
    if x.dtype not in FLOATS:
        raise BadTypeError(f"x must be float32, float16 or bfloat16, got {x.dtype}")
    if is_distributed(x):
        raise BadTypeError("x is a DTensor; quantize x.to_local() or x.full_tensor()")
    if why := unsupported_reason(x):
        raise BadTypeError(f"x {why}; expected a dense tensor with values")
    return plain(x.detach(), "x")


def _refuse(bad: Tensor, kind: str, allowed: str, non_finite: bool) -> None:
    count = int(bad.sum())
    if not count:
        return
    first = int(bad.reshape(-1).int().argmax())
    error = NonFiniteError if non_finite else BadValueError
    raise error(f"x holds {count} {kind} elements, the first at flat index {first}; {allowed}")


def _check_after(after: QuantizedTensor, x: Tensor) -> None:
    if not isinstance(after, QuantizedTensor):
        raise BadTypeError(f"after must be a QuantizedTensor, got {type(after).__name__}")
    if after.shape != tuple(x.shape):
        raise BadValueError(f"after must have shape {tuple(x.shape)}, got {after.shape}")


def _check_out(out: QuantizedTensor, quantizer: Quantizer, x: Tensor) -> None:
    if not isinstance(out, QuantizedTensor):
        raise BadTypeError(f"out must be a QuantizedTensor, got {type(out).__name__}")
    if out.shape != tuple(x.shape):
        raise BadValueError(f"out must have shape {tuple(x.shape)}, got {out.shape}")
    if out.quantizer.spec != quantizer.spec:
        raise BadValueError(
            f"out must have the quantizer {quantizer.spec}, got {out.quantizer.spec}"
        )
    if out.device != x.device:
        raise BadValueError(f"out must be on {x.device}, got {out.device}")
    out.check()


Made.quantizer = Quantizer
