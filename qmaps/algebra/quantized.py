"""Quantized tensors: packed codes and scales, and their form in files."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from qmaps.algebra.low_rank import LowRank, low_rank_of, parts_of, product
from qmaps.algebra.rounding import Rounding
from qmaps.algebra.spec import parse, parse_normalizer
from qmaps.engines import dispatch, packing
from qmaps.engines.addresses import check_memory
from qmaps.engines.dense import overlaps_itself, unsupported_reason
from qmaps.engines.philox import RoundingKey
from qmaps.errors import DAMAGE, BadTypeError, BadValueError, shown
from qmaps.maps import _html
from qmaps.maps.base import Map, table
from qmaps.maps.codebook import Codebook
from qmaps.normalize.base import Normalizer, Scales
from qmaps.storage import tensors as files

if TYPE_CHECKING:
    from qmaps.algebra.quantizer import Quantizer

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
FORMAT = 1


@dataclass(frozen=True)
class QuantizedTensor:
    """Packed codes and scales of one tensor.

    It is not a torch tensor: call `dequantize` to compute with its values. Codes
    beyond the codebook's size stand for its last value.

    Attributes:
        quantizer: its quantizer; a fitted map is frozen in it.
        shape: shape of the tensor.
        packed: 1-D uint8; see `qmaps.engines.packing` for the order of bits.
        scales: the normalizer's parts; see its `layout`.
        key: names the random numbers subtracted in decoding, if the quantizer is dithered;
            else None. It is the last encoding's key, and not counted in `nbytes`.
        beside: the quantized tensors of `Quantizer.beside`: a low-rank part, and under
            error feedback the residual of the last encoding.

    Raises:
        BadValueError: `packed`, `scales` or `beside` does not fit the quantizer and the shape.
        BadTypeError: `key` is None and the quantizer dithered, or the other way round.
    """

    quantizer: Quantizer
    shape: tuple[int, ...]
    packed: Tensor
    scales: Scales
    key: RoundingKey | None = None
    beside: tuple[QuantizedTensor, ...] = ()

    def __post_init__(self) -> None:
        check_key(self.quantizer, self.key)
        self._check_sizes()

    def check(self) -> None:
        """Raise unless `packed` and `scales` have the required sizes, dtypes and memory.

        The constructor checks it, too, but tensors can be resized or freed afterwards.
        """
        self._check_sizes()
        for part in (self.packed, *self.scales):
            check_memory(part, "packed or a tensor of scales")
        for beside in self.beside:
            beside.check()

    def _check_sizes(self) -> None:
        if self.shape and min(self.shape) < 0:
            raise BadValueError(f"shape={self.shape} of a quantized tensor has a negative size")
        q = self.quantizer
        needed, layout, _ = packing.stored(q.normalizer, q.map.bits, self.shape)
        if {part.layout for part in (self.packed, *self.scales)} != {torch.strided}:
            raise BadValueError("packed and scales of a quantized tensor must be dense tensors")
        if self.packed.dtype != torch.uint8 or self.packed.shape != (needed,):
            raise BadValueError(
                f"packed has {self.packed.numel()} elements of {self.packed.dtype}; {q.spec} of "
                f"shape {self.shape} needs {needed} elements of torch.uint8"
            )
        sizes = tuple([(scale.dtype, scale.shape) for scale in self.scales])
        if sizes != layout:
            actual = tuple((dtype, tuple(part)) for dtype, part in sizes)
            raise BadValueError(
                f"scales are {actual}; {q.normalizer.spec} of shape {self.shape} needs {layout}"
            )
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
            out: a tensor of the same shape, written into and returned; its dtype wins.
            dtype: float32, float16 or bfloat16.
        """
        if not isinstance(dtype, torch.dtype) or dtype not in FLOATS:
            raise BadTypeError(
                f"dtype={shown(dtype)} must be torch.float32, torch.float16 or torch.bfloat16"
            )
        q = self.quantizer
        if out is not None:
            _check_target(out, self.shape)
            check_memory(out, "out")
        self.check()
        for scale in self.scales:
            if scale.device != self.device:
                places = f"scales are on {scale.device} and codes on {self.device}"
                raise BadValueError(f"{places}; move both to one device")
        factors = low_rank_of(self)
        values = dispatch.dequantize(
            self.packed,
            self.scales,
            q.normalizer,
            q.map,
            self.shape,
            torch.float32 if factors else dtype,
            None if factors else out,
            dithered_by=self.key,
        )
        if not factors:
            return values
        values = values + product(factors)
        return values.to(dtype) if out is None else out.copy_(values)

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
        scales = tuple(scale.to(device) for scale in self.scales)
        beside = tuple(part.to(device) for part in self.beside)
        return replace(self, packed=self.packed.to(device), scales=scales, beside=beside)

    def clone(self) -> QuantizedTensor:
        """A copy with storage of its own."""
        scales = tuple(scale.clone() for scale in self.scales)
        beside = tuple(part.clone() for part in self.beside)
        return replace(self, packed=self.packed.clone(), scales=scales, beside=beside)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as a safetensors file; see `qmaps.save` for several."""
        save({"tensor": self}, path)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> QuantizedTensor:
        """Read a tensor written by `save`."""
        tensors = load(path)
        if list(tensors) != ["tensor"]:
            raise BadValueError(
                f"{str(path)!r} holds {len(tensors)} tensors, expected one; read it with qmaps.load"
            )
        return tensors["tensor"]

    def __repr__(self) -> str:
        return f"QuantizedTensor({self.quantizer.spec!r}, shape={self.shape}, {self.nbytes} bytes)"

    def _repr_html_(self) -> str:
        """HTML table for notebooks."""
        return _html.table(
            "QuantizedTensor",
            [
                ("quantizer", lambda: self.quantizer.spec),
                ("shape", lambda: " x ".join(map(str, self.shape)) or "scalar"),
                ("bytes", lambda: f"{self.nbytes:,}"),
                ("bits per element", lambda: f"{self.bits_per_element:.4g}"),
                ("device", lambda: self.device),
            ],
        )

    if not TYPE_CHECKING:  # hidden from type checkers, which would accept any attribute

        def __getattr__(self, name: str) -> NoReturn:
            if not name.startswith("_") and hasattr(Tensor, name):
                raise AttributeError(
                    f"QuantizedTensor has no attribute {name!r}; decode it first: "
                    f"t.dequantize().{name}"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> NoReturn:
            name = getattr(func, "__name__", str(func))
            raise BadTypeError(f"{name} does not accept a QuantizedTensor; pass t.dequantize()")


def _refusing(name: str) -> Callable[..., NoReturn]:
    """Return an operator that raises: codes do not support it."""

    def refuse(*_: object) -> NoReturn:
        raise BadTypeError(
            f"QuantizedTensor does not support {name}; decode it first with t.dequantize()"
        )

    return refuse


_WITH_ANOTHER = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")
for _name in (
    *_WITH_ANOTHER,
    *(f"r{name}" for name in _WITH_ANOTHER),
    *("neg", "abs", "lt", "le", "gt", "ge", "getitem", "setitem"),
):
    setattr(QuantizedTensor, f"__{_name}__", _refusing(f"__{_name}__"))


def encoded_by(t: QuantizedTensor, key: RoundingKey | None) -> None:
    """Set the key of the last encoding into `t`, in place like its codes."""
    object.__setattr__(t, "key", key)


def add_residual(x: Tensor, after: QuantizedTensor | None) -> Tensor:
    """`x` with the residual of the last step's tensor added (error feedback).

    Args:
        x: the value of the next step, floating-point.
        after: the tensor of the last step, of the same shape.

    Returns:
        A new float32 tensor, finite where `x` is; `x` itself where there is no residual.
    """
    if after is None or not after.quantizer.error_feedback:
        return x
    largest = torch.finfo(torch.float32).max
    y = x.float() + after.beside[-1].dequantize()
    return torch.where(x.isfinite(), y.clamp(-largest, largest), y)


def restored(t: QuantizedTensor, x: Tensor | None = None) -> Tensor:
    """Best known values of `t` before quantization: decoded, plus the residual.

    Args:
        t: the quantized tensor.
        x: float32 values to add the residual to instead of those of `t`.

    Returns:
        float32 of its shape, at least 0 if the map is unsigned; ``t.dequantize()``, or `x`, where
        there is no residual.
    """
    values = t.dequantize() if x is None else x
    total = add_residual(values, t)
    return total if total is values or t.quantizer.map.signed else total.clamp_(min=0)


def to_plain(t: QuantizedTensor) -> dict[str, Any]:
    """`t` as a dict of tensors, strings and numbers, safe for ``torch.load``."""
    return {
        **described(t.quantizer),
        "format": FORMAT,
        "shape": list(t.shape),
        "packed": t.packed,
        "scales": list(t.scales),
        **keyed(t.key),
        **({"beside": [_parts(part) for part in t.beside]} if t.beside else {}),
    }


def _parts(t: QuantizedTensor) -> dict[str, Any]:
    """Metadata of a tensor saved beside another, without its quantizer and shape."""
    return {"packed": t.packed, "scales": list(t.scales)}


def keyed(key: RoundingKey | None) -> dict[str, Any]:
    """Entry ``key`` of a saved tensor, a dict of ints; none without a key."""
    if key is None:
        return {}
    fields = {name: value for name, value in asdict(key).items() if name != "runs"}
    return {"key": fields if key.runs is None else {**fields, "runs": list(key.runs)}}


def check_key(q: Quantizer, key: object) -> None:
    """Raise unless `key` fits the quantizer: a key if it is dithered, else None."""
    if not (isinstance(key, RoundingKey) if q.dithered else key is None):
        needed = "a RoundingKey" if q.dithered else "None"
        raise BadTypeError(f"key={shown(key)} of a quantized tensor must be {needed} for {q.spec}")


def key_from_dict(plain: Mapping[str, Any]) -> RoundingKey | None:
    """Read a key written by `keyed`."""
    if "key" not in plain:
        return None
    fields = dict(plain["key"])
    runs = fields.pop("runs", None)
    return RoundingKey(**fields, runs=None if runs is None else tuple(runs))


def described(q: Quantizer) -> dict[str, Any]:
    """A quantizer as its spec, with its codebook if the spec names no map."""
    if not isinstance(q.map, Codebook):
        return {"spec": q.spec}
    fields = {
        "bits": q.map.bits,
        "signed": q.map.signed,
        "label": q.map.label,
        "per_tensor": q.map.per_tensor,
        "normalizer": q.normalizer.spec,
        "stochastic": q.stochastic,
    }
    if not q.rounding.memoryless:  # which versions before 0.2 refuse
        fields["rounding"] = q.rounding.value
    return {"spec": q.spec, "codebook": table(q.map).clone(), "map": fields}


def quantizer_in(plain: Mapping[str, Any]) -> Quantizer:
    """Read a quantizer written by `described`."""
    if "codebook" not in plain:
        if (parts := parts_of(plain["spec"])) is None:
            return _composed(*parse(plain["spec"]))
        rank, factors, inner = parts
        low_rank = LowRank(rank, quantizer_in({"spec": factors}))
        return replace(_composed(*parse(inner)), low_rank=low_rank)
    fields = dict(plain["map"])
    normalizer = parse_normalizer(fields.pop("normalizer"))
    rounding = Rounding.STOCHASTIC if fields.pop("stochastic") else Rounding.NEAREST
    rounding = Rounding(fields.pop("rounding", rounding.value))
    return _composed(normalizer, Codebook(plain["codebook"], **fields), rounding)


def _composed(normalizer: Normalizer, map_: Map, rounding: Rounding) -> Quantizer:
    return replace(normalizer / map_, rounding=rounding)


def from_plain(plain: Mapping[str, Any]) -> QuantizedTensor:
    """Inverse of `to_plain`.

    Raises:
        BadValueError, BadTypeError: the parts do not fit together.
    """
    if not isinstance(plain, Mapping):
        raise BadTypeError(f"a saved quantized tensor must be a dict, got {type(plain).__name__}")
    missing = [key for key in ("format", "spec", "shape", "packed", "scales") if key not in plain]
    if missing:
        raise BadValueError(f"a saved quantized tensor lacks {', '.join(missing)}")
    if plain["format"] != FORMAT:
        raise BadValueError(
            f"format={shown(plain['format'])} of a saved quantized tensor is not supported; the "
            f"supported format is {FORMAT}"
        )
    try:
        t = _assembled(plain)
        check_codes(t)
    except BadValueError:
        raise
    except DAMAGE as error:
        reason = f"{type(error).__name__}: {error}"
        raise BadValueError(
            f"the parts of a saved quantized tensor are damaged ({reason})"
        ) from None
    return t


def _assembled(plain: Mapping[str, Any]) -> QuantizedTensor:
    """The tensor of these parts, whether or not they fit together."""
    quantizer = quantizer_in(plain)
    shape = tuple(plain["shape"])
    if not all(isinstance(size, int) for size in shape):
        raise BadValueError(
            f"shape={shown(plain['shape'])} of a saved quantized tensor must consist of ints"
        )
    needed, saved = quantizer.beside(shape), plain.get("beside", ())
    if len(saved) != len(needed):
        raise BadValueError(
            f"beside of a saved quantized tensor holds {len(saved)} tensors; {quantizer.spec} "
            f"needs {len(needed)}"
        )
    beside = tuple(
        QuantizedTensor(q, size, parts["packed"], tuple(parts["scales"]))
        for (q, size), parts in zip(needed, saved, strict=True)
    )
    return QuantizedTensor(
        quantizer, shape, plain["packed"], tuple(plain["scales"]), key_from_dict(plain), beside
    )


def save(tensors: Mapping[str, QuantizedTensor], path: str | os.PathLike[str]) -> None:
    """Write quantized tensors to one safetensors file, atomically.

    Args:
        tensors: by name.
        path: the file; an existing one is replaced.

    Raises:
        OutputError: the file cannot be written.
    """
    files.write({name: to_plain(t) for name, t in tensors.items()}, path)


def load(path: str | os.PathLike[str]) -> dict[str, QuantizedTensor]:
    """Read tensors written by `save`.

    Raises:
        BadValueError: the file is missing, truncated, or not of this kind.
    """
    return {name: from_plain(plain) for name, plain in files.read(path).items()}


def check_codes(t: QuantizedTensor) -> None:
    """Raise if a code is not in the codebook, or a scale is negative."""
    if any(map(unsupported_reason, (t.packed, *t.scales))):
        raise BadValueError("packed and scales of a quantized tensor must be dense tensors")
    log_domain = t.quantizer.normalizer.log_domain
    if not log_domain and any(bool((scale < 0).any()) for scale in t.scales):
        raise BadValueError(f"scales of {t.quantizer.spec} must not be negative; at least one is")
    for part in t.beside:
        check_codes(part)
    codebook = table(t.quantizer.map)
    if len(codebook) < 2**t.quantizer.map.bits and t.packed.numel():
        largest = int(t.codes().max())
        if largest >= len(codebook):
            raise BadValueError(
                f"packed holds the code {largest}; {t.quantizer.spec} has {len(codebook)} codes"
            )


def _listed(tensors: Sequence[tuple[Quantizer, tuple[int, ...]]]) -> str:
    """Quantizers and shapes, as error messages name them."""
    return " and ".join(f"{q.spec} of shape {shape}" for q, shape in tensors) or "nothing"


def _check_target(out: Tensor, shape: tuple[int, ...]) -> None:
    """Raise unless values of this shape can be written into `out`."""
    if not isinstance(out, Tensor):
        raise BadTypeError(f"out must be a torch.Tensor, got {type(out).__name__}")
    if not out.is_floating_point():
        raise BadTypeError(f"out must be a floating-point tensor, got {out.dtype}")
    if why := unsupported_reason(out):
        raise BadTypeError(f"out {why}; expected a dense tensor with values")
    if tuple(out.shape) != shape:
        raise BadValueError(f"out must have shape {shape}, got {tuple(out.shape)}")
    if overlaps_itself(out):
        raise BadValueError(
            "several elements of out share one memory location; each element needs its own"
        )
    if out.requires_grad and torch.is_grad_enabled():
        raise BadValueError("out requires gradients; write into it under torch.no_grad()")


def nbytes_of(map_: Map, packed: int, scales: Scales) -> int:
    """Bytes of the codes, the scales, and the codebook where it is stored with the tensor.

    Args:
        map_: the map; its codebook counts if `Map.counted`.
        packed: bytes of the packed codes.
        scales: the stored parts of the scales, of any dtypes.

    Returns:
        All of it in bytes.
    """
    codebook = table(map_).nbytes if map_.counted else 0
    return packed + sum(scale.nbytes for scale in scales) + codebook
