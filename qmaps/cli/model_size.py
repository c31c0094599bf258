"""Models by what people have: a size, or files of Hugging Face."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import nn

from qmaps.capture.naming import CONFIG, FILES, Unnamed, model_of_config
from qmaps.capture.snapshot import header_of
from qmaps.errors import BadValueError, shown

UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
"""Letters behind a number of parameters."""
LONGEST = 200
"""Characters of a path; systems refuse longer names."""
COLUMNS = 4096
"""Columns of the matrix that stands for a model of which only the size is known."""
EXPECTED = f"a size such as 7B, a {CONFIG}, a .safetensors file or its index, or a folder of them"


class Sized(nn.ParameterList):
    """A model of which only the size is known: a matrix, and a vector of the rest."""


def model_of(text: str) -> nn.Module:
    """A module with the parameters of a model, on the meta device.

    Args:
        text: a size such as ``7B``, which stands for bfloat16; a ``config.json``, whose model
            transformers makes without weights; a ``.safetensors`` file or its index; or a folder
            of them.

    Raises:
        BadValueError: it is none of these, or a file cannot be read.
    """
    size = re.fullmatch(r"(\d{1,16}(?:\.\d{1,9})?)([KMBT]?)", text.upper().replace("_", ""))
    if size is not None:
        rows, rest = divmod(round(float(size[1]) * UNITS[size[2]]), COLUMNS)
        shapes = [(rows, COLUMNS)] * bool(rows) + [(rest,)] * bool(rest)
        return Sized(torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in shapes)
    try:
        path = Path(text[:LONGEST])
        if path.is_dir():
            files = (path / name for name in (*FILES[:2], CONFIG))
            path = next((file for file in files if file.is_file()), path)
        if path.suffix in (".json", ".safetensors") and path.is_file():
            return _of_file(path)
    except (AttributeError, LookupError, OSError, TypeError, Unnamed, ValueError) as error:
        raise BadValueError(f"model={shown(text)} cannot be read ({error})") from None
    raise BadValueError(f"model={shown(text)} must be {EXPECTED}")


def _of_file(path: Path) -> nn.Module:
    """The model of a file; without the shards of an index, that of its config."""
    if path.suffix == ".safetensors":
        return _stored([path])
    content = json.loads(path.read_text(encoding="utf-8"))
    if "weight_map" not in content:
        dtype = getattr(torch, str(content.get("dtype") or content.get("torch_dtype")), None)
        return model_of_config(path).to(dtype)
    shards = [path.parent / Path(name).name for name in sorted({*content["weight_map"].values()})]
    if shards and all(shard.is_file() for shard in shards):
        return _stored(shards)
    config = path.parent / CONFIG
    if config == path or not config.is_file():
        raise Unnamed(f"neither the shards of {path.name} nor a {CONFIG} are beside it")
    return _of_file(config)


def _stored(files: Iterable[Path]) -> nn.Module:
    """The floating-point tensors of safetensors files."""
    return nn.ParameterList(
        torch.empty(parts.shape, dtype=parts.dtype, device="meta")
        for file in files
        for parts in header_of(file)[1].values()
        if parts.dtype.is_floating_point
    )
