"""Quantizers and quantized tensors, as data.

Their methods for tensors, such as `Quantizer.quantize`, call functions of `qmaps.ops`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from qmaps.algebra import packing
from qmaps.algebra.philox import RoundingKey
from qmaps.algebra.rounding import Rounding
from qmaps.algebra.spec import parse, split_low_rank
from qmaps.errors import BadTypeError, BadValueError, SpecError, shown
from qmaps.maps.base import Map, table
from qmaps.maps.codebook import Codebook
from qmaps.maps.fitted import FittedMap
from qmaps.normalize.base import Normalizer, Scales

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
"""Dtypes of tensors that can be quantized, and of decoded values."""


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
    if (parts := split_low_rank(spec)) is not None:
        rank, factors, spec = parts
        low_rank = LowRank(rank, quantizer(factors, books))
    normalizer, map_, rounding = parse(spec, books)
    return Quantizer(normalizer, map_, rounding=rounding, low_rank=low_rank)


@dataclass(frozen=True)
class LowRank:
    """The low-rank part of a quantizer.

    Attributes:
        rank: number of columns of P and R, from 1 to 4096.
        factors: the quantizer of P and R: signed, to nearest, its map given by a formula.
    """

    rank: int
    factors: Quantizer

    def __post_init__(self) -> None:
        if isinstance(self.rank, bool) or not isinstance(self.rank, int):
            raise BadTypeError(f"rank={shown(self.rank)} of a low-rank part must be an int")
        if not 1 <= self.rank <= 4096:
            raise BadValueError(f"rank={shown(self.rank)} of a low-rank part must be 1 to 4096")
        q = self.factors
        if why := _low_rank_refusal(q):
            raise SpecError(f"the quantizer of factors {q.spec} {why}")
        if q.rounding.value or q.low_rank is not None:
            raise SpecError(f"the quantizer of factors {q.spec} must round to nearest, alone")

    @property
    def spec(self) -> str:
        """Part of the spec before ``+`` and the rest's."""
        return f"lowrank{self.rank}({self.factors.spec})"

    def shapes(self, shape: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """The shapes of P and R for a tensor of this shape; empty if it has none."""
        if len(shape) != 2 or min(shape) <= self.rank:
            return ()
        rows, columns = shape
        return (rows, self.rank), (columns, self.rank)


@dataclass(frozen=True)
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
    """

    normalizer: Normalizer
    map: Map
    rounding: Rounding = field(default=Rounding.NEAREST, kw_only=True)
    low_rank: LowRank | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.rounding, Rounding):
            raise BadTypeError(
                f"rounding={shown(self.rounding)} must be a qmaps.Rounding, such as "
                "Rounding.STOCHASTIC"
            )
        if self.normalizer.log_domain != self.map.log_domain:
            raise SpecError(
                f"{self.normalizer.spec}/{self.map.spec}: the normalizer logB<n> and the maps log2 "
                "and log2-0 only work with each other"
            )
        scales = {"powers_of_two": self.normalizer.powers_of_two, "ones": self.normalizer.ones}
        if any(scales.values()):
            object.__setattr__(self, "map", self.map.for_scales(**scales))
        if self.low_rank is not None and (why := _low_rank_refusal(self)):
            raise SpecError(f"{self.spec}: the quantizer of the rest {why}")

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set pickled fields; version 0.2 has `stochastic` instead of `rounding`."""
        fields = {**state}
        if fields.pop("stochastic", False):
            fields["rounding"] = Rounding.STOCHASTIC
        self.__dict__.update(fields)

    @property
    def stochastic(self) -> bool:
        """True if it rounds to one of the two neighbours by chance (``+sr``, ``+qsr``)."""
        return self.rounding.stochastic

    def noise(self, key: RoundingKey | None) -> RoundingKey | None:
        """The key of the random numbers that rounding takes; None if it takes none.

        Args:
            key: of the caller; ``RoundingKey()`` for None.
        """
        if not self.stochastic:
            return None
        key = key or RoundingKey()
        spread = self.rounding is Rounding.QUASI_STOCHASTIC
        return key if key.spread == spread else replace(key, spread=spread)

    @property
    def keeps_zero(self) -> bool:
        """True if zeros decode to zeros, whatever other elements are.

        Maps such as `linear` and `quantile-normal` do not hold 0, and neither do signed `power2`
        and `power3`. For a fitted map it is False, since the values are unknown.

        >>> quantizer("B64/DE@4s").keeps_zero, quantizer("B64/linear@4s").keeps_zero
        (True, False)
        """
        if self.map.fitted or self.low_rank is not None:
            return False
        lowest = -1 if self.map.log_domain else 0  # -1 stands for 0 in a log2 range
        return bool((table(self.map) == lowest).any())

    def beside(self, shape: Sequence[int]) -> tuple[tuple[Quantizer, tuple[int, ...]], ...]:
        """Quantizers and shapes of the tensors stored beside a tensor's codes.

        Args:
            shape: the shape of the tensor.

        Returns:
            A pair per factor of a low-rank part (`qmaps.algebra.low_rank`).
        """
        if self.low_rank is None:
            return ()
        return tuple((self.low_rank.factors, size) for size in self.low_rank.shapes(shape))

    @property
    def spec(self) -> str:
        """The canonical spec; `quantizer` reads it back."""
        map_ = self.map
        if self.normalizer.powers_of_two or self.normalizer.ones:  # which says it already
            map_ = map_.for_scales()
        prefix = "" if self.low_rank is None else f"{self.low_rank.spec}+"
        return f"{prefix}{self.normalizer.spec}/{map_.spec}{self.rounding.value}"

    def __str__(self) -> str:
        return self.spec

    def __repr__(self) -> str:
        return f"quantizer({self.spec!r})"

    def nbytes(self, shape: Sequence[int]) -> int:
        """Bytes of a quantized tensor of this shape, as `QuantizedTensor.nbytes`."""
        layout = self.normalizer.layout(tuple(shape))
        scales = sum(dtype.itemsize * math.prod(part) for dtype, part in layout)
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
        from qmaps.ops.quantize import fit

        return fit(self, x)

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
            key: names the random numbers of stochastic rounding; ``RoundingKey()`` if left out,
                so the same call gives the same codes. Change `step` from call to call.
            after: the tensor of the last step, of the same shape, from which a low-rank part
                begins (`qmaps.algebra.low_rank`). It may be `out`.

        Returns:
            Packed codes and scales, on the device of `x`.

        Raises:
            NonFiniteError: `x` holds NaN or infinity.
            BadValueError: `x` is negative somewhere and the map unsigned, or `out` or `after` does
                not match.
            BadTypeError: `x` is no tensor of an allowed dtype.
        """
        from qmaps.ops.quantize import quantize

        return quantize(self, x, out=out, key=key, after=after)

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

        Raises:
            BadValueError, BadTypeError: `out` or `after` does not match, or `key` is no
                `RoundingKey`.
        """
        from qmaps.ops.quantize import quantize

        return quantize(self, x, out=out, key=key, after=after, check=False)

    def quantize_scaled(
        self,
        x: Tensor,
        scales: Scales,
        *,
        key: RoundingKey | None = None,
    ) -> QuantizedTensor:
        """As `quantize_unchecked` with scales of the whole tensor, of which `x` is a part.

        `scales` are in the parts of the normalizer's `layout` for the shape of `x`, float32.

        Raises:
            BadValueError: the quantizer keeps a low-rank part of matrices such as `x`.
        """
        from qmaps.ops.quantize import quantize_scaled

        return quantize_scaled(self, x, scales, key=key)

    def dequantize(
        self, t: QuantizedTensor, *, out: Tensor | None = None, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """The values of `t`, which has this normalizer and a map of this spec.

        Arguments and result are those of `QuantizedTensor.dequantize`.

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

        The native engine quantizes and measures in one pass, without storing decoded
        values or unneeded codes, as long as every metric has a form for sums.
        """
        from qmaps.ops.quantize import measured

        return measured(self, x, keep=keep)


@dataclass(frozen=True)
class QuantizedTensor:
    """Packed codes and scales of one tensor.

    It is not a torch tensor: call `dequantize` to compute with its values. Codes
    beyond the codebook's size stand for its last value.

    Attributes:
        quantizer: its quantizer; a fitted map is frozen in it.
        shape: shape of the tensor.
        packed: 1-D uint8; see `qmaps.algebra.packing` for the order of bits.
        scales: the normalizer's parts; see its `layout`.
        beside: the quantized tensors of `Quantizer.beside`: a low-rank part.

    Raises:
        BadValueError: `packed`, `scales` or `beside` does not fit the quantizer and the shape.
    """

    quantizer: Quantizer
    shape: tuple[int, ...]
    packed: Tensor
    scales: Scales
    beside: tuple[QuantizedTensor, ...] = ()

    def __post_init__(self) -> None:
        self.check_sizes()

    def check(self) -> None:
        """Raise unless `packed` and `scales` have the required sizes, dtypes and memory.

        The constructor checks it, too, but tensors can be resized or freed afterwards.
        """
        from qmaps.ops.quantize import check

        check(self)

    def check_sizes(self) -> None:
        """Raise unless `packed`, `scales` and `beside` have the required sizes and dtypes."""
        q = self.quantizer
        if self.shape and min(self.shape) < 0:
            raise BadValueError(f"shape={self.shape} of a quantized tensor has a negative size")
        needed, layout, _ = packing.stored(q.normalizer, q.map.bits, self.shape)
        sizes = []  # loops, since a comprehension is a call of its own
        for part in (self.packed, *self.scales):
            if part.layout is not torch.strided:
                raise BadValueError("packed and scales of a quantized tensor must be dense tensors")
            sizes.append((part.dtype, part.shape))
        if sizes[0] != (torch.uint8, (needed,)):
            raise BadValueError(
                f"packed has {self.packed.numel()} elements of {self.packed.dtype}; {q.spec} of "
                f"shape {self.shape} needs {needed} elements of torch.uint8"
            )
        if tuple(sizes[1:]) != layout:
            actual = tuple((dtype, tuple(part)) for dtype, part in sizes[1:])
            raise BadValueError(
                f"scales are {actual}; {q.normalizer.spec} of shape {self.shape} needs {layout}"
            )
        if not self.beside and q.low_rank is None:
            return
        expected, parts = q.beside(self.shape), [(t.quantizer, t.shape) for t in self.beside]
        if parts != list(expected):
            actual_parts, needs = _listed(parts), _listed(expected)
            raise BadValueError(
                f"beside holds {actual_parts}; {q.spec} of shape {self.shape} needs {needs}"
            )

    def codes(self) -> Tensor:
        """The codes unpacked: int32 of `shape`."""
        self.check()
        count = math.prod(self.shape)
        return packing.unpack(self.packed, self.quantizer.map.bits, count).view(self.shape)

    def dequantize(
        self, *, out: Tensor | None = None, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """The values: one float32 product each, then rounded to `dtype`.

        Where there is a low-rank part, it is added before.

        Args:
            out: floating-point tensor of the same shape, written into and returned; its dtype wins.
            dtype: float32, float16 or bfloat16.

        Returns:
            `out`, or a new tensor of the same shape on the same device.
        """
        from qmaps.ops.quantize import dequantize

        return dequantize(self, out=out, dtype=dtype)

    @property
    def device(self) -> torch.device:
        """Device of the codes."""
        return self.packed.device

    @property
    def nbytes(self) -> int:
        """Bytes of the codes, the scales, `beside`, and a codebook of this tensor alone."""
        total = nbytes_of(self.quantizer.map, self.packed.nbytes, self.scales)
        return total + sum(part.nbytes for part in self.beside)

    @property
    def bits_per_element(self) -> float:
        """``8 * nbytes`` divided by the number of elements; NaN for an empty tensor."""
        count = math.prod(self.shape)
        return 8 * self.nbytes / count if count else math.nan

    def to(self, device: torch.device | str) -> QuantizedTensor:
        """The same on another device."""
        return self._changed(lambda part: part.to(device))

    def clone(self) -> QuantizedTensor:
        """A copy with storage of its own."""
        return self._changed(Tensor.clone)

    def _changed(self, change: Callable[[Tensor], Tensor]) -> QuantizedTensor:
        scales = tuple(map(change, self.scales))
        beside = tuple(part._changed(change) for part in self.beside)
        return replace(self, packed=change(self.packed), scales=scales, beside=beside)

    def __repr__(self) -> str:
        return f"QuantizedTensor({self.quantizer.spec!r}, shape={self.shape}, {self.nbytes} bytes)"

    if not TYPE_CHECKING:  # hidden from type checkers, which would accept any attribute

        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> NoReturn:
            name = getattr(func, "__name__", str(func))
            raise BadTypeError(f"{name} does not accept a QuantizedTensor; pass t.dequantize()")


def values_of(state: Tensor | QuantizedTensor) -> Tensor:
    """The float32 values of a state, decoded if it is quantized."""
    return state.dequantize() if isinstance(state, QuantizedTensor) else state


def nbytes_of(map_: Map, packed: int, scales: Scales) -> int:
    """Bytes of the codes, the scales, and the codebook where it is stored with the tensor."""
    codebook = table(map_).nbytes if map_.counted else 0
    return packed + sum(scale.nbytes for scale in scales) + codebook


def _low_rank_refusal(q: Quantizer) -> str:
    """Reason why a quantizer cannot encode factors or a rest; empty if it can."""
    if not q.map.signed:
        return "must be signed"
    if q.map.fitted or isinstance(q.map, Codebook):
        return "must have a map that is given by a formula"
    return ""


def _listed(tensors: Sequence[tuple[Quantizer, tuple[int, ...]]]) -> str:
    """Quantizers and shapes, as error messages name them."""
    return " and ".join(f"{q.spec} of shape {shape}" for q, shape in tensors) or "nothing"
