"""Quantized tensors and quantizers as plain dicts, and in files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from qmaps.algebra.dense import unsupported_reason
from qmaps.algebra.quantizer import QuantizedTensor, Quantizer, quantizer
from qmaps.algebra.rounding import Rounding
from qmaps.algebra.spec import parse_normalizer
from qmaps.errors import DAMAGE, BadTypeError, BadValueError, shown
from qmaps.maps.base import table
from qmaps.maps.codebook import Codebook
from qmaps.normalize.base import Scales
from qmaps.storage import tensors as files

FORMAT = 1
"""Version of the form of saved tensors."""

STATE_FORMAT = 2
"""Version of the same with tensors and numbers alone (`tensors_only`)."""

TEXTS = frozenset({"spec", "label", "normalizer", "rounding"})
LISTS = frozenset({"shape", "rows", "scales", "beside"})
"""Fields that are text, and those that are lists; `tensors_only` writes both in other types."""

TEXT_SIZE = 64
"""Text is filled up with zeros to a multiple of these bytes. `torch.distributed.checkpoint` reads
a tensor into one of the same size, and the specs of two quantizers may differ in length."""


def to_plain(t: QuantizedTensor) -> dict[str, Any]:
    """`t` as a dict of tensors, strings and numbers, safe for ``torch.load``."""
    parts = [{"packed": part.packed, "scales": list(part.scales)} for part in t.beside]
    return {
        **described(t.quantizer),
        "format": FORMAT,
        "shape": list(t.shape),
        "packed": t.packed,
        "scales": list(t.scales),
        # Their quantizers and shapes follow from those of `t`.
        **({"beside": parts} if parts else {}),
    }


def tensors_only(plain: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """The form of states in a state_dict: tensors, numbers, and dicts of them.

    Containers that flatten a state_dict take no text and no lists, such as
    ``StateDictOptions(flatten_optimizer_state_dict=True)``. Text becomes a uint8 tensor, a list of
    ints an int64 tensor, and any other list a dict whose keys are positions. All tensors are on
    one device, as collectives need them.
    """

    def changed(value: Any) -> Any:
        if isinstance(value, str):
            text = value.encode()
            text += bytes(-len(text) % TEXT_SIZE)
            return torch.tensor(list(text), dtype=torch.uint8, device=device)
        if isinstance(value, Mapping):
            return {name: changed(member) for name, member in value.items()}
        if isinstance(value, (list, tuple)):
            if all(isinstance(member, int) for member in value):
                return torch.tensor(value, dtype=torch.int64, device=device)
            return {str(place): changed(member) for place, member in enumerate(value)}
        return value

    return {**changed(plain), "format": STATE_FORMAT}


def with_text(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Undo `tensors_only`; what has another form, as in older files, stays as it is."""
    read: dict[str, Any] = {}
    for name, value in plain.items():
        if isinstance(value, Mapping):
            value = with_text(value)
            if name in LISTS:
                value = [value[place] for place in sorted(value, key=int)]
        elif isinstance(value, Tensor) and name in TEXTS:
            value = bytes(value.tolist()).rstrip(b"\0").decode()
        elif isinstance(value, Tensor) and name in LISTS:
            value = value.tolist()
        read[name] = value
    if isinstance(plain.get("spec"), Tensor) and read.get("format") == STATE_FORMAT:
        read["format"] = FORMAT
    return read


def check_format(plain: Mapping[str, Any], of: str) -> None:
    """Raise if the result of `with_text` has the format of another version."""
    if plain.get("format") != FORMAT:
        raise BadValueError(
            f"format={shown(plain.get('format'))} of {of} is not supported; supported are "
            f"{FORMAT}, and {STATE_FORMAT} in a state_dict"
        )


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
        "stochastic": q.rounding is Rounding.STOCHASTIC,
    }
    if q.rounding not in (Rounding.NEAREST, Rounding.STOCHASTIC):  # older versions refuse it
        fields["rounding"] = q.rounding.value
    return {"spec": q.spec, "codebook": table(q.map).clone(), "map": fields}


def quantizer_in(plain: Mapping[str, Any]) -> Quantizer:
    """Read a quantizer written by `described`."""
    if "codebook" not in plain:
        return quantizer(plain["spec"].strip())
    fields = dict(plain["map"])
    normalizer = parse_normalizer(fields.pop("normalizer"))
    rounding = Rounding.STOCHASTIC if fields.pop("stochastic") else Rounding.NEAREST
    rounding = Rounding(fields.pop("rounding", rounding.value))
    return Quantizer(normalizer, Codebook(plain["codebook"], **fields), rounding=rounding)


def from_plain(plain: Mapping[str, Any]) -> QuantizedTensor:
    """Inverse of `to_plain`, and of `tensors_only` after it.

    Raises:
        BadValueError, BadTypeError: the parts do not fit together.
    """
    if not isinstance(plain, Mapping):
        raise BadTypeError(f"a saved quantized tensor must be a dict, got {type(plain).__name__}")
    missing = [key for key in ("format", "spec", "shape", "packed", "scales") if key not in plain]
    if missing:
        raise BadValueError(f"a saved quantized tensor lacks {', '.join(missing)}")
    try:
        plain = with_text(plain)
        check_format(plain, "a saved quantized tensor")
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
    q = quantizer_in(plain)
    shape = tuple(plain["shape"])
    if not all(isinstance(size, int) for size in shape):
        raise BadValueError(
            f"shape={shown(plain['shape'])} of a saved quantized tensor must consist of ints"
        )
    needed, saved = q.beside(shape), plain.get("beside", ())
    if len(saved) != len(needed):
        raise BadValueError(
            f"beside of a saved quantized tensor holds {len(saved)} tensors; {q.spec} "
            f"needs {len(needed)}"
        )
    beside = tuple(
        QuantizedTensor(of, size, parts["packed"], tuple(parts["scales"]))
        for (of, size), parts in zip(needed, saved, strict=True)
    )
    return QuantizedTensor(q, shape, plain["packed"], tuple(plain["scales"]), beside)


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
    check_values(t.quantizer, t.scales, t.codes)
    for part in t.beside:
        check_codes(part)


def check_values(
    q: Quantizer,
    scales: Scales,
    codes: Callable[[], Tensor],
    of: str = "",
    holds: str = "packed holds",
) -> None:
    """Raise if a scale is negative, or one of the codes is not in the codebook."""
    if not q.normalizer.log_domain and any(bool((scale < 0).any()) for scale in scales):
        raise BadValueError(f"scales of {of}{q.spec} must not be negative; at least one is")
    size = len(table(q.map))
    if size == 2**q.map.bits or not (unpacked := codes()).numel():
        return
    if (largest := int(unpacked.max())) >= size:
        raise BadValueError(f"{holds} the code {largest}; {q.spec} has {size} codes")
