"""Quantized tensors, as plain dicts, in safetensors files with checksums."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from qmaps.errors import DAMAGE, BadValueError, OutputError
from qmaps.storage import checksums
from qmaps.storage.files import IrregularFileError, replacing, size_of


def write(tensors: Mapping[str, dict[str, Any]], path: str | os.PathLike[str]) -> None:
    """Write quantized tensors in plain form (`qmaps.algebra.saved`) to a safetensors file."""
    arrays: dict[str, Tensor] = {}
    entries = []
    for number, (name, fields) in enumerate(tensors.items()):
        plain = dict(fields)
        parts = _move_parts(arrays, f"{number}", plain)
        if "codebook" in plain:
            arrays[f"{number}.codebook"] = plain.pop("codebook").cpu()
        beside = [
            _move_parts(arrays, f"{number}.beside{place}", dict(part))
            for place, part in enumerate(plain.pop("beside", []))
        ]
        entries.append({"name": name, "parts": parts, **plain})
        if beside:
            entries[-1]["beside"] = beside
    with replacing(path) as temporary:
        # safetensors refuses tensors that share storage; clones do not.
        try:
            save_file(
                {key: array.clone() for key, array in arrays.items()},
                temporary,
                metadata=checksums.with_checksums(
                    {"qmaps_tensors": json.dumps(entries)},
                    {key: checksums.of_tensor(array) for key, array in arrays.items()},
                ),
            )
        except SafetensorError as error:  # safetensors reports a failed write this way
            raise OutputError(f"{str(path)!r} cannot be written ({error})") from error


def read(path: str | os.PathLike[str]) -> dict[str, dict[str, Any]]:
    """Read the quantized tensors of a file of `write`, as plain dicts by name."""
    try:
        size_of(Path(path))  # a pipe would be waited for
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if "qmaps_tensors" not in metadata:
                raise BadValueError(f"{str(path)!r} holds no quantized tensors of qmaps")
            arrays = _checked(file, metadata, path)
            tensors = {}
            for number, plain in enumerate(json.loads(metadata["qmaps_tensors"])):
                plain |= _parts(arrays, f"{number}", plain.pop("parts"))
                if "beside" in plain:
                    plain["beside"] = [
                        _parts(arrays, f"{number}.beside{place}", parts)
                        for place, parts in enumerate(plain["beside"])
                    ]
                if "map" in plain:
                    plain["codebook"] = arrays[f"{number}.codebook"]
                tensors[plain.pop("name")] = plain
            return tensors
    except IrregularFileError as error:
        raise BadValueError(f"{str(path)!r} cannot be read ({error.strerror})") from None
    except (OSError, SafetensorError) as error:
        reason = str(error).splitlines()[0]
        raise BadValueError(f"{str(path)!r} cannot be read as safetensors ({reason})") from None
    except BadValueError:
        raise
    except DAMAGE as error:
        reason = f"{type(error).__name__}: {error}"
        raise BadValueError(f"{str(path)!r} has damaged metadata ({reason})") from None


def _move_parts(arrays: dict[str, Tensor], name: str, plain: dict[str, Any]) -> int:
    """Move codes and scales from `plain` into `arrays`; returns the number of scales' tensors."""
    scales = plain.pop("scales")
    arrays[f"{name}.packed"] = plain.pop("packed").contiguous().cpu()
    arrays |= {f"{name}.scale{n}": scale.contiguous().cpu() for n, scale in enumerate(scales)}
    return len(scales)


def _parts(arrays: Mapping[str, Tensor], name: str, parts: int) -> dict[str, Any]:
    """The codes and the scales moved by `_move_parts`."""
    return {
        "packed": arrays[f"{name}.packed"],
        "scales": [arrays[f"{name}.scale{part}"] for part in range(parts)],
    }


def _checked(
    file: Any, metadata: dict[str, str], path: str | os.PathLike[str]
) -> dict[str, Tensor]:
    """All tensors of an open safetensors file, after their checksums were verified."""
    arrays: dict[str, Tensor] = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    try:
        expected = checksums.in_metadata(metadata, arrays.keys())
    except BadValueError as error:
        raise BadValueError(f"{str(path)!r} is damaged: {error}") from None
    for key, checksum in expected.items():
        if checksums.of_tensor(arrays[key]) != checksum:
            raise BadValueError(f"{str(path)!r} is damaged: the checksum of {key!r:.50} is wrong")
    return arrays
