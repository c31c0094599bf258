"""Models by what people have: a size, or files of Hugging Face."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from qmaps.capture.naming import CONFIG, FILES, STATISTICS, Unnamed, model_of_config
from qmaps.capture.snapshot import Parts, header_of
from qmaps.cli.sizes import COLUMNS, DTYPE, numel_of
from qmaps.errors import BadValueError, shown
from qmaps.storage.files import exists

ALL_LINEAR = "all-linear"
"""PEFT's name for all linear layers but the output's."""
EXPECTED = f"a size such as 7B, a {CONFIG}, a .safetensors file or its index, or a folder of them"
PLAIN = ("F64", "F32", "F16", "BF16")
"""Dtypes of weights in safetensors files, by their names there; others hold packed weights."""
BESIDE_CODES = ".quant_state."
"""Part of the name of what bitsandbytes stores beside codes of 4 bits."""
INDICES = ("I64", "U64", "BOOL")
"""Dtypes of positions, counts, shapes and masks, which are no weights."""


class Sized(nn.ParameterList):
    """A model of which only the size is known: a matrix, and a vector of the rest."""


class Adapted(nn.Module):
    """A frozen model and its LoRA adapters, as PEFT makes them.

    Attributes:
        layers: number of linear layers with adapters.
    """

    def __init__(self, model: nn.Module, shapes: Sequence[tuple[int, int]], rank: int) -> None:
        super().__init__()
        self.model = model.requires_grad_(False)
        self.layers = len(shapes)
        # PEFT keeps adapters of models in 16 bits in float32 (`autocast_adapter_dtype`).
        self.adapters = nn.ParameterList(
            torch.empty(shape, dtype=torch.float32, device="meta")
            for rows, columns in shapes
            for shape in ((rank, columns), (rows, rank))
        )


def with_lora(text: str, rank: int, targets: str) -> Adapted:
    """The model of a ``config.json`` with LoRA adapters.

    Args:
        text: a ``config.json``, or a folder or a file beside one.
        rank: PEFT's ``r``.
        targets: PEFT's ``target_modules``: ``all-linear``, all linear layers but the output's, or
            names of modules with commas between them.

    Raises:
        BadValueError: there is no ``config.json``, transformers cannot make its model, or no linear
            layer has such a name.
    """
    path = Path(text)
    if exists(path):
        path = path if path.name == CONFIG else (path if path.is_dir() else path.parent) / CONFIG
    if not (exists(path) and path.is_file()):
        raise BadValueError(
            f"model={shown(text)} must be a {CONFIG}, or lie beside one, for lora_rank={rank}; "
            "it tells the linear layers"
        )
    model = model_of(str(path))
    output = getattr(model, "get_output_embeddings", lambda: None)()
    linear = {
        name: _in_and_out(module)
        for name, module in model.named_modules()
        if module is not output and _is_linear(module)
    }
    wanted = [target.strip() for target in targets.split(",")]
    chosen = [
        shape
        for name, shape in linear.items()
        if targets == ALL_LINEAR or any(f".{name}".endswith(f".{target}") for target in wanted)
    ]
    if not chosen or "" in wanted:
        named = sorted({name.rpartition(".")[2] for name in linear})
        raise BadValueError(
            f"lora_targets={shown(targets)} must be {ALL_LINEAR} or names of linear layers with "
            f"commas between them: {', '.join(named) or 'the model has none'}"
        )
    return Adapted(model, chosen, rank)


def _is_linear(module: nn.Module) -> bool:
    """True for layers that ``all-linear`` means; GPT-2's have a class of transformers."""
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def _in_and_out(module: nn.Module) -> tuple[int, int]:
    """Numbers of outputs and inputs of a linear layer."""
    rows, columns = module.get_parameter("weight").shape
    return (rows, columns) if isinstance(module, nn.Linear) else (columns, rows)


def model_of(text: str) -> nn.Module:
    """A module with the parameters of a model, on the meta device.

    Args:
        text: a size such as ``7B``, which stands for bfloat16; a ``config.json``, whose model
            transformers makes without weights; a ``.safetensors`` file or its index; or a folder
            of them.

    Raises:
        BadValueError: it is none of these, or a file cannot be read.
    """
    if (count := numel_of(text)) is not None:
        rows, rest = divmod(count, COLUMNS)
        shapes = [(rows, COLUMNS)] * bool(rows) + [(rest,)] * bool(rest)
        dtype = getattr(torch, DTYPE)
        return Sized(torch.empty(shape, dtype=dtype, device="meta") for shape in shapes)
    try:
        path = Path(text)
        if exists(path) and path.is_dir():
            files = (path / name for name in (*FILES[:2], CONFIG))
            path = next((file for file in files if file.is_file()), path)
        if path.suffix in (".json", ".safetensors") and exists(path) and path.is_file():
            return _of_file(path)
    except (AttributeError, LookupError, OSError, TypeError, Unnamed, ValueError) as error:
        raise BadValueError(f"model={shown(text)} cannot be read ({error})") from None
    except RecursionError:
        raise BadValueError(
            f"model={shown(text)} cannot be read (its JSON is nested too deeply)"
        ) from None
    raise BadValueError(f"model={shown(text)} must be {EXPECTED}")


def _of_file(path: Path) -> nn.Module:
    """The model of a file; without the shards of an index, that of its config."""
    if path.suffix == ".safetensors":
        return _stored([path])
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise Unnamed(f"{path.name} holds no JSON object")
    if "weight_map" not in content:
        return _of_config(path, content)
    shards = [path.parent / Path(name).name for name in sorted({*content["weight_map"].values()})]
    if shards and all(shard.is_file() for shard in shards):
        return _stored(shards)
    config = path.parent / CONFIG
    if config == path or not config.is_file():
        raise Unnamed(f"neither the shards of {path.name} nor a {CONFIG} are beside it")
    return _of_file(config)


def _of_config(
    path: Path, content: Mapping[str, Any], otherwise: torch.dtype | None = None
) -> nn.Module:
    """The model of a config in the dtype that it names, `otherwise` in another."""
    dtype = otherwise
    # The dtype is an entry of the config or, of several models in one, of the language model's.
    others = [
        part
        for name, part in content.items()
        if name.endswith("_config") and name != "quantization_config"
    ]
    for part in (content, content.get("text_config"), *others):
        name = (part.get("dtype") or part.get("torch_dtype")) if isinstance(part, dict) else None
        if name not in (None, "auto"):
            dtype = getattr(torch, str(name).removeprefix("torch."), None)
            if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
                raise Unnamed(f"dtype={shown(name)} of {path.name} is no dtype of floating point")
            break
    return model_of_config(path).to(dtype)


def _stored(files: Iterable[Path]) -> nn.Module:
    """The parameters in safetensors files; the model of the config beside them if they are packed.

    Codes of fewer bits do not tell the shapes of the weights, and their scales are no parameters.
    """
    held = {name: parts for file in files for name, parts in header_of(file)[1].items()}
    weights = {name: parts for name, parts in held.items() if not _is_buffer(name, held)}
    coded = {name for name, parts in weights.items() if parts.code not in PLAIN}
    # bitsandbytes may store its codes as if they were numbers of another dtype.
    coded |= {name.split(BESIDE_CODES)[0] for name in held if BESIDE_CODES in name} & held.keys()
    if not coded:
        return nn.ParameterList(
            torch.empty(parts.shape, dtype=parts.dtype, device="meta") for parts in weights.values()
        )
    packed = min(coded)
    file, code = held[packed].path, held[packed].code
    why = f"{packed!r} in {file.name} holds packed weights ({code})"
    config = file.parent / CONFIG
    if not config.is_file():
        raise Unnamed(f"{why}, and there is no {CONFIG} beside it")
    try:
        content = json.loads(config.read_text(encoding="utf-8"))
        return _of_config(config, content, _unpacked(weights.values()))
    except Unnamed as error:
        raise Unnamed(f"{why}, and {error}") from None


def _is_buffer(name: str, held: Mapping[str, Parts]) -> bool:
    """True if a tensor of a model's files is no parameter."""
    parts = held[name]
    prefix, _, last = name.rpartition(".")
    if last in STATISTICS and f"{prefix}.num_batches_tracked".lstrip(".") in held:
        return True
    # Causal masks and their fill value, in the files of GPT-2, GPT-J and GPT-NeoX.
    mask = last == "bias" and len(parts.shape) == 4 and parts.shape[:2] == (1, 1)
    if mask or last in ("masked_bias", "inv_freq"):
        return True
    # Positions, counts, shapes and masks; or what lies beside codes, which have two dimensions.
    return parts.code in INDICES or (parts.code not in PLAIN and len(parts.shape) < 2)


def _unpacked(held: Iterable[Parts]) -> torch.dtype | None:
    """The dtype of most elements that are not packed; None if there are none."""
    counts: Counter[torch.dtype] = Counter()
    for parts in held:
        if parts.code in PLAIN:
            counts[parts.dtype] += math.prod(parts.shape)
    return max(counts, key=counts.__getitem__, default=None)
