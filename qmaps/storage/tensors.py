"""Quantized tensors as plain tensors, and as safetensors files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from qmaps.algebra.quantizer import QuantizedTensor, Quantizer
from qmaps.algebra.spec import parse, parse_normalizer
from qmaps.engines.dense import lack
from qmaps.errors import DAMAGE, BadTypeError, BadValueError, OutputError, shown
from qmaps.maps.base import table
from qmaps.maps.codebook import Codebook
from qmaps.storage import checksums
from qmaps.storage.files import replacing

FORMAT = 1


def to_plain(t: QuantizedTensor) -> dict[str, Any]:
    """`t` as a dict of tensors, strings and numbers, which ``torch.load`` reads safely."""
    return {
        **described(t.quantizer),
        "format": FORMAT,
        "shape": list(t.shape),
        "packed": t.packed,
        "scales": list(t.scales),
    }


def described(q: Quantizer) -> dict[str, Any]:
    """A quantizer as its spec, and where that names no map, as its codebook."""
    if not isinstance(q.map, Codebook):
        return {"spec": q.spec}
    about = {
        "bits": q.map.bits,
        "signed": q.map.signed,
        "label": q.map.label,
        "per_tensor": q.map.per_tensor,
        "normalizer": q.normalizer.spec,
        "stochastic": q.stochastic,
    }
    return {"spec": q.spec, "codebook": table(q.map).clone(), "map": about}


def quantizer_in(plain: Mapping[str, Any]) -> Quantizer:
    """What `described` described."""
    if "codebook" not in plain:
        return Quantizer(*parse(plain["spec"]))
    about = dict(plain["map"])
    normalizer = parse_normalizer(about.pop("normalizer"))
    stochastic = bool(about.pop("stochastic"))
    return Quantizer(normalizer, Codebook(plain["codebook"], **about), stochastic)


def from_plain(plain: Mapping[str, Any]) -> QuantizedTensor:
    """What `to_plain` took apart.

    Raises:
        BadValueError, BadTypeError: the parts do not fit together.
    """
    if not isinstance(plain, Mapping):
        raise BadTypeError(f"a quantized tensor is a {type(plain).__name__}; a dict is needed")
    missing = [key for key in ("format", "spec", "shape", "packed", "scales") if key not in plain]
    if missing:
        raise BadValueError(f"a quantized tensor lacks {', '.join(missing)}")
    if plain["format"] != FORMAT:
        raise BadValueError(
            f"format={shown(plain['format'])} of a quantized tensor is not supported; {FORMAT} is"
        )
    try:
        t = _assembled(plain)
        check_codes(t)
    except BadValueError:
        raise
    except DAMAGE as error:
        reason = f"{type(error).__name__}: {error}"
        raise BadValueError(f"the parts of a quantized tensor are damaged ({reason})") from None
    return t


def _assembled(plain: Mapping[str, Any]) -> QuantizedTensor:
    """The tensor of these parts, whether or not they fit together."""
    quantizer = quantizer_in(plain)
    shape = tuple(plain["shape"])
    if not all(isinstance(size, int) for size in shape):
        raise BadValueError(f"shape={shown(plain['shape'])} of a quantized tensor must be ints")
    return QuantizedTensor(quantizer, shape, plain["packed"], tuple(plain["scales"]))


def save(tensors: Mapping[str, QuantizedTensor], path: str | os.PathLike[str]) -> None:
    """Write quantized tensors to one safetensors file, atomically.

    Args:
        tensors: by name.
        path: the file; an existing one is replaced.

    Raises:
        OutputError: the file cannot be written.
    """
    arrays: dict[str, Tensor] = {}
    about = []
    for number, (name, t) in enumerate(tensors.items()):
        plain = to_plain(t)
        arrays[f"{number}.packed"] = plain.pop("packed").contiguous().cpu()
        for part, scale in enumerate(plain.pop("scales")):
            arrays[f"{number}.scale{part}"] = scale.contiguous().cpu()
        if "codebook" in plain:
            arrays[f"{number}.codebook"] = plain.pop("codebook").cpu()
        about.append({"name": name, "parts": len(t.scales), **plain})
    with replacing(path) as temporary:
        # safetensors refuses storage shared between tensors, as clones never are.
        try:
            save_file(
                {key: array.clone() for key, array in arrays.items()},
                temporary,
                metadata=checksums.with_checksums(
                    {"qmaps_tensors": json.dumps(about)},
                    {key: checksums.of_tensor(array) for key, array in arrays.items()},
                ),
            )
        except SafetensorError as error:  # how it reports a failed write
            raise OutputError(f"{str(path)!r} cannot be written ({error})") from error


def load(path: str | os.PathLike[str]) -> dict[str, QuantizedTensor]:
    """Read what `save` wrote.

    Raises:
        BadValueError: the file is missing, truncated, or not of this kind.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if "qmaps_tensors" not in metadata:
                raise BadValueError(f"{str(path)!r} holds no quantized tensors of qmaps")
            arrays = _checked(file, metadata, path)
            tensors = {}
            for number, about in enumerate(json.loads(metadata["qmaps_tensors"])):
                about["packed"] = arrays[f"{number}.packed"]
                scales = range(about.pop("parts"))
                about["scales"] = [arrays[f"{number}.scale{part}"] for part in scales]
                if "map" in about:
                    about["codebook"] = arrays[f"{number}.codebook"]
                tensors[about.pop("name")] = from_plain(about)
            return tensors
    except (OSError, SafetensorError) as error:
        reason = str(error).splitlines()[0]
        raise BadValueError(f"{str(path)!r} cannot be read as safetensors ({reason})") from None
    except BadValueError:
        raise
    except DAMAGE as error:
        reason = f"{type(error).__name__}: {error}"
        raise BadValueError(f"{str(path)!r} holds damaged metadata ({reason})") from None


def _checked(
    file: Any, metadata: dict[str, str], path: str | os.PathLike[str]
) -> dict[str, Tensor]:
    """All tensors of an open safetensors file, each with its checksum if it has one."""
    arrays: dict[str, Tensor] = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    try:
        expected = checksums.in_metadata(metadata, arrays.keys())
    except BadValueError as error:
        raise BadValueError(f"{str(path)!r} is damaged: {error}") from None
    for key, checksum in expected.items():
        if checksums.of_tensor(arrays[key]) != checksum:
            raise BadValueError(f"{str(path)!r} is damaged: the checksum of {key!r:.50} is wrong")
    return arrays


def check_codes(t: QuantizedTensor) -> None:
    """Raise if a code is none of the codebook's, or a scale is negative."""
    if any(map(lack, (t.packed, *t.scales))):
        raise BadValueError("packed and scales of a quantized tensor must be dense")
    log_domain = t.quantizer.normalizer.log_domain
    if not log_domain and any(bool((scale < 0).any()) for scale in t.scales):
        raise BadValueError(f"scales of {t.quantizer.spec} hold negative numbers; none may be")
    codebook = table(t.quantizer.map)
    if len(codebook) < 2**t.quantizer.map.bits and t.packed.numel():
        largest = int(t.codes().max())
        if largest >= len(codebook):
            raise BadValueError(
                f"packed holds the code {largest}; {t.quantizer.spec} has {len(codebook)} codes"
            )
