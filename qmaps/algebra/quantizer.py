"""A normalizer composed with a map, and the tensors it makes."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from qmaps.distributed.shards import is_distributed
from qmaps.engines import dispatch, packing, reference
from qmaps.engines.addresses import check_memory, plain
from qmaps.engines.dense import lack, overlaps_itself
from qmaps.engines.philox import RoundingKey
from qmaps.errors import BadTypeError, BadValueError, NonFiniteError, SpecError, shown
from qmaps.maps.base import FittedMap, Map, table
from qmaps.maps.codebook import Codebook
from qmaps.normalize.base import Normalizer, Scales

if TYPE_CHECKING:
    from collections.abc import Mapping

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def quantizer(spec: str | Quantizer, codebooks: Iterable[Codebook] = ()) -> Quantizer:
    """The quantizer that a spec names.

    Args:
        spec: such as ``"B128/DE@4s"``; a `Quantizer` is returned as it is.
        codebooks: maps of your own, found in the spec by their label.

    Raises:
        SpecError: an unknown normalizer, map or field, a width that the map does not have, or
            parts that do not go together.

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
    from qmaps.algebra.spec import parse  # spec.py knows every map and normalizer

    if isinstance(spec, Quantizer):
        return spec
    if not isinstance(spec, str):
        raise BadTypeError(f"spec={shown(spec)} must be a str such as 'B128/DE@4s', or a Quantizer")
    return Quantizer(*parse(spec, tuple(codebooks)))


@dataclass(frozen=True)
class Quantizer:
    """Q = M after N: divide by the normalizer's scales, then take the map's nearest code.

    Made by ``BlockWise(128) / DynamicExponent(bits=4)`` or ``quantizer("B128/DE@4s")``.

    Attributes:
        normalizer: gives the scales.
        map: gives the codebook.
        stochastic: round at random to one of the two neighbours, unbiased (``+sr``).
    """

    normalizer: Normalizer
    map: Map
    stochastic: bool = False

    def __post_init__(self) -> None:
        if self.normalizer.log_domain != self.map.log_domain:
            raise SpecError(
                f"{self.normalizer.spec}/{self.map.spec}: logB<n> and log2 go with each other only"
            )

    @property
    def spec(self) -> str:
        """The canonical spec; `quantizer` reads it back."""
        return f"{self.normalizer.spec}/{self.map.spec}{'+sr' if self.stochastic else ''}"

    def __str__(self) -> str:
        return self.spec

    def __repr__(self) -> str:
        return f"quantizer({self.spec!r})"

    def nbytes(self, shape: Sequence[int]) -> int:
        """Bytes that a tensor of this shape takes: `QuantizedTensor.nbytes` before there is one."""
        scales = 0
        for dtype, part in self.normalizer.layout(tuple(shape)):
            scales += dtype.itemsize * math.prod(part)
        entries = 0
        if isinstance(self.map, FittedMap):
            entries = 2 ** int(self.map.bits)
        elif self.map.counted:
            entries = table(self.map).numel()
        codes = packing.packed_bytes(math.prod(shape), self.map.bits)
        return codes + scales + torch.float32.itemsize * entries

    def fit(self, x: Tensor) -> Quantizer:
        """This quantizer with the codebook of a fitted map frozen to that of `x`.

        A quantizer whose map is a formula, or frozen already, is returned as it is.

        Raises:
            NonFiniteError, BadValueError, BadTypeError: as `quantize`.
        """
        x = _floats(x)
        self._refuse_bad(x)
        return self._frozen(x)

    def quantize(
        self, x: Tensor, *, out: QuantizedTensor | None = None, key: RoundingKey | None = None
    ) -> QuantizedTensor:
        """Quantize `x`.

        Args:
            x: float32, float16 or bfloat16 tensor of any shape and strides; computed in
                float32.
            out: a tensor of the same shape and quantizer, written into and returned. With a
                fitted map its codebook is kept, not fitted anew.
            key: names the random numbers of stochastic rounding; ``RoundingKey()`` if left
                out, so the same call gives the same codes. Change `step` from call to call.

        Returns:
            Packed codes and scales, on the device of `x`.

        Raises:
            NonFiniteError: `x` holds NaN or infinity.
            BadValueError: `x` is negative somewhere and the map unsigned, or `out` does not
                match.
            BadTypeError: `x` is no tensor of an allowed dtype.
        """
        x = _floats(x)
        if isinstance(self.map, FittedMap) and out is None:
            self._refuse_bad(x)
        t, suspect = self._quantized(x, out, key, check=True)
        if suspect:
            self._refuse_bad(x)
        return t

    def quantize_unchecked(
        self, x: Tensor, *, out: QuantizedTensor | None = None, key: RoundingKey | None = None
    ) -> QuantizedTensor:
        """As `quantize` for float32 `x`, without looking for NaN, infinity or signs.

        What shares a scale with a non-finite element decodes to non-finite values, so none
        becomes a finite number silently; only exact zeros under ``logB`` stay 0. There a negative
        element counts as NaN; under other normalizers unsigned maps take it to their lowest code.
        """
        return self._quantized(x, out, key, check=False)[0]

    def quantize_scaled(
        self, x: Tensor, scales: Scales, *, key: RoundingKey | None = None
    ) -> QuantizedTensor:
        """As `quantize_unchecked` with scales from elsewhere: those of a whole that `x` is part of.

        Args:
            x: float32.
            scales: in the parts that the normalizer's `layout` describes for the shape of `x`.
            key: as for `quantize`.
        """
        noise = (key or RoundingKey()) if self.stochastic else None
        codes, _ = reference.quantize(x, self.normalizer, self.map, noise, scales)
        packed = packing.pack(codes, self.map.bits)
        return QuantizedTensor(self, tuple(x.shape), packed, scales)

    def _quantized(
        self, x: Tensor, out: QuantizedTensor | None, key: RoundingKey | None, *, check: bool
    ) -> tuple[QuantizedTensor, bool]:
        """`x` quantized, and, if `check`, whether it may hold what cannot be."""
        if out is not None:
            _check_out(out, self, x)
        if key is not None and not isinstance(key, RoundingKey):
            raise BadTypeError(f"key is a {type(key).__name__}; a RoundingKey is needed")
        frozen = self._frozen(x) if out is None else out.quantizer
        noise = (key or RoundingKey()) if self.stochastic else None
        storage = None if out is None else (out.packed, out.scales)
        packed, scales, suspect = dispatch.quantize(
            x, frozen.normalizer, frozen.map, noise, storage, check=check
        )
        return out or QuantizedTensor(frozen, tuple(x.shape), packed, scales), suspect

    def dequantize(
        self,
        t: QuantizedTensor,
        *,
        out: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """The values of `t`; the same as ``t.dequantize()``."""
        if not isinstance(t, QuantizedTensor):
            raise BadTypeError(f"t is a {type(t).__name__}; a QuantizedTensor is needed")
        if (t.quantizer.normalizer, t.quantizer.map.spec) != (self.normalizer, self.map.spec):
            raise BadValueError(f"t was made by {t.quantizer.spec}; {self.spec} cannot decode it")
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
        """As `error`, and if `keep` what became of `x`: quantized or decoded, whichever is there.

        The native and the CUDA engine quantize and measure in one pass, without storing what `x`
        decodes to, nor codes that are not kept; as long as every metric has a form for sums.
        """
        from qmaps import metrics

        x = _floats(x)
        q = self.fit(x) if isinstance(self.map, FittedMap) else self
        found = None
        if metrics.SUMMED.keys() == metrics.METRICS.keys():
            noise = RoundingKey() if self.stochastic else None
            found = dispatch.measure(x, q.normalizer, q.map, noise, keep=keep)
        if found is None:
            t = q.quantize(x)
            decoded = t.dequantize()
            values = metrics.measure(x.float(), decoded, t.codes(), table(q.map).numel())
            return {"bits_per_element": t.bits_per_element, **values}, decoded if keep else None
        sums, packed, scales, suspect = found
        if suspect:
            self._refuse_bad(x)
        nbytes = _nbytes(q.map, packing.packed_bytes(x.numel(), q.map.bits), scales)
        values = metrics.measure_sums(sums)
        kept = None if packed is None else QuantizedTensor(q, tuple(x.shape), packed, scales)
        return {"bits_per_element": 8 * nbytes / x.numel(), **values}, kept

    def _frozen(self, x: Tensor) -> Quantizer:
        return fit_each([self], x)[0] if isinstance(self.map, FittedMap) else self

    def _refuse_bad(self, x: Tensor) -> None:
        """Raise if `x` holds values that cannot be quantized."""
        _refuse(~x.isfinite(), "NaN or infinite", "only finite values can be quantized", True)
        if not self.map.signed:
            _refuse(x < 0, "negative", f"{self.map.spec} is unsigned; use a signed map", False)


def fit_each(quantizers: Sequence[Quantizer], x: Tensor) -> list[Quantizer]:
    """Freeze several quantizers of one normalizer, all with fitted maps, to the same tensor.

    Args:
        quantizers: at least one.
        x: float32, float16 or bfloat16 of any shape. Where elements are not finite, the fit looks
            at the others: what shares a scale with them decodes to NaN whatever the codebook.
    """
    normalizer = quantizers[0].normalizer
    x = x.float()
    scales = normalizer.scales(x)
    scale = normalizer.expand(scales, tuple(x.shape)).expand(x.shape)
    n = normalizer.normalize(x, scales)
    # A finite sum has finite terms.
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


@dataclass(frozen=True)
class QuantizedTensor:
    """Packed codes and scales of one tensor.

    It is no tensor itself: what torch does with tensors it does with `dequantize`. Codes that the
    codebook does not have stand for its last value.

    Attributes:
        quantizer: what made it; a fitted map is frozen in it.
        shape: shape of the tensor.
        packed: 1-D uint8; see `qmaps.engines.packing` for the order of bits.
        scales: the normalizer's parts; see its `layout`.

    Raises:
        BadValueError: `packed` and `scales` are not what the quantizer needs for this shape.
    """

    quantizer: Quantizer
    shape: tuple[int, ...]
    packed: Tensor
    scales: Scales

    def __post_init__(self) -> None:
        self._check_sizes()

    def check(self) -> None:
        """Raise unless `packed` and `scales` have the sizes, dtypes and memory that are needed.

        They had when this was made; torch lets anybody resize and free them since.
        """
        self._check_sizes()
        for part in (self.packed, *self.scales):
            check_memory(part, "packed or a tensor of scales")

    def _check_sizes(self) -> None:
        if self.shape and min(self.shape) < 0:
            raise BadValueError(f"shape={self.shape} of a quantized tensor holds a negative size")
        q = self.quantizer
        needed, layout = _expected(q.normalizer, q.map.bits, self.shape)
        if {part.layout for part in (self.packed, *self.scales)} != {torch.strided}:
            raise BadValueError("packed and scales of a quantized tensor must be dense")
        if self.packed.dtype != torch.uint8 or self.packed.shape != (needed,):
            raise BadValueError(
                f"packed has {self.packed.numel()} elements of {self.packed.dtype}; "
                f"{q.spec} of shape {self.shape} needs {needed} of torch.uint8"
            )
        found = tuple([(scale.dtype, scale.shape) for scale in self.scales])
        if found != layout:
            there = tuple((dtype, tuple(part)) for dtype, part in found)
            raise BadValueError(
                f"scales are {there}; {q.normalizer.spec} of shape {self.shape} needs {layout}"
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

        Args:
            out: a tensor of the same shape, written into and returned; its dtype wins.
            dtype: float32, float16 or bfloat16.
        """
        if not isinstance(dtype, torch.dtype) or dtype not in FLOATS:
            raise BadTypeError(f"dtype={shown(dtype)}; allowed are float32, float16, bfloat16")
        q = self.quantizer
        if out is not None:
            _check_target(out, self.shape)
            check_memory(out, "out")
        self.check()
        for scale in self.scales:
            if scale.device != self.device:
                places = f"scales are on {scale.device} and codes on {self.device}"
                raise BadValueError(f"{places}; move both to one device")
        return dispatch.dequantize(
            self.packed, self.scales, q.normalizer, q.map, self.shape, dtype, out
        )

    @property
    def device(self) -> torch.device:
        """Where the codes are."""
        return self.packed.device

    @property
    def nbytes(self) -> int:
        """Bytes of the codes, the scales, and the codebook where it belongs to this tensor."""
        return _nbytes(self.quantizer.map, self.packed.nbytes, self.scales)

    @property
    def bits_per_element(self) -> float:
        """``8 * nbytes`` divided by the number of elements; NaN for an empty tensor."""
        count = math.prod(self.shape)
        return 8 * self.nbytes / count if count else math.nan

    def to(self, device: torch.device | str) -> QuantizedTensor:
        """The same on another device."""
        scales = tuple(scale.to(device) for scale in self.scales)
        return replace(self, packed=self.packed.to(device), scales=scales)

    def clone(self) -> QuantizedTensor:
        """A copy that shares no storage."""
        scales = tuple(scale.clone() for scale in self.scales)
        return replace(self, packed=self.packed.clone(), scales=scales)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as a safetensors file; see `qmaps.save` for several."""
        from qmaps.storage.tensors import save

        save({"tensor": self}, path)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> QuantizedTensor:
        """Read what `save` wrote."""
        from qmaps.storage.tensors import load

        tensors: Mapping[str, QuantizedTensor] = load(path)
        if list(tensors) != ["tensor"]:
            raise BadValueError(f"{str(path)!r} holds {len(tensors)} tensors; use qmaps.load")
        return tensors["tensor"]

    def __repr__(self) -> str:
        return f"QuantizedTensor({self.quantizer.spec!r}, shape={self.shape}, {self.nbytes} bytes)"

    if not TYPE_CHECKING:  # who checks types shall not think that it has any attribute

        def __getattr__(self, name: str) -> NoReturn:
            if not name.startswith("_") and hasattr(Tensor, name):
                raise AttributeError(
                    f"a QuantizedTensor has no attribute {name!r}; its values are a tensor: "
                    f"t.dequantize().{name}"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> NoReturn:
            name = getattr(func, "__name__", str(func))
            raise BadTypeError(f"{name} takes tensors, got a QuantizedTensor; pass t.dequantize()")


def _refusing(name: str) -> Callable[..., NoReturn]:
    """An operator that tensors have and codes have not."""

    def refuse(*_: object) -> NoReturn:
        raise BadTypeError(f"a QuantizedTensor has no {name}; its values have: t.dequantize()")

    return refuse


_WITH_ANOTHER = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")
for _name in (
    *_WITH_ANOTHER,
    *(f"r{name}" for name in _WITH_ANOTHER),
    *("neg", "abs", "lt", "le", "gt", "ge", "getitem", "setitem"),
):
    setattr(QuantizedTensor, f"__{_name}__", _refusing(f"__{_name}__"))


@functools.lru_cache(maxsize=4096)
def _expected(
    normalizer: Normalizer, bits: float, shape: tuple[int, ...]
) -> tuple[int, tuple[tuple[torch.dtype, tuple[int, ...]], ...]]:
    """Bytes of codes, and data types and shapes of the parts of scales."""
    return packing.packed_bytes(math.prod(shape), int(bits)), normalizer.layout(shape)


def _floats(x: Tensor) -> Tensor:
    """`x` without its graph, if it is a tensor of an allowed dtype."""
    if not isinstance(x, Tensor):
        raise BadTypeError(f"x is a {type(x).__name__}; a torch.Tensor is needed")
    if x.dtype not in FLOATS:
        raise BadTypeError(f"x has dtype {x.dtype}; allowed are float32, float16, bfloat16")
    if is_distributed(x):
        raise BadTypeError("x is a DTensor; quantize its to_local() or its full_tensor()")
    if why := lack(x):
        raise BadTypeError(f"x {why}; a dense tensor with values is needed")
    return plain(x.detach(), "x")


def _check_target(out: Tensor, shape: tuple[int, ...]) -> None:
    """Raise unless values of this shape can be written into `out`."""
    if not isinstance(out, Tensor):
        raise BadTypeError(f"out is a {type(out).__name__}; a torch.Tensor is needed")
    if not out.is_floating_point():
        raise BadTypeError(f"out has dtype {out.dtype}; a floating-point tensor is needed")
    if why := lack(out):
        raise BadTypeError(f"out {why}; a dense tensor with values is needed")
    if tuple(out.shape) != shape:
        raise BadValueError(f"out has shape {tuple(out.shape)}; {shape} is needed")
    if overlaps_itself(out):
        raise BadValueError("out has several elements in one place; memory for each is needed")
    if out.requires_grad and torch.is_grad_enabled():
        raise BadValueError("out requires gradients; write into it under torch.no_grad()")


def _nbytes(map_: Map, packed: int, scales: Scales) -> int:
    """Bytes of `packed` bytes of codes, scales, and a codebook where it belongs to a tensor."""
    codebook = table(map_).nbytes if map_.counted else 0
    return packed + sum(scale.nbytes for scale in scales) + codebook


def _refuse(bad: Tensor, kind: str, allowed: str, non_finite: bool) -> None:
    count = int(bad.sum())
    if not count:
        return
    first = int(bad.reshape(-1).int().argmax())
    error = NonFiniteError if non_finite else BadValueError
    raise error(f"x holds {count} {kind} elements, the first at flat index {first}; {allowed}")


def _check_out(out: QuantizedTensor, quantizer: Quantizer, x: Tensor) -> None:
    if not isinstance(out, QuantizedTensor):
        raise BadTypeError(f"out is a {type(out).__name__}; a QuantizedTensor is needed")
    if out.shape != tuple(x.shape):
        raise BadValueError(f"out has shape {out.shape}; {tuple(x.shape)} is needed")
    if out.quantizer.spec != quantizer.spec:
        raise BadValueError(f"out was made by {out.quantizer.spec}; {quantizer.spec} is needed")
    if out.device != x.device:
        raise BadValueError(f"out is on {out.device}; {x.device} is needed")
    out.check()
