"""Names of parameters from files of a model, or from text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from qmaps.capture.naming import architecture
from qmaps.capture.naming.fit import Group, Unnamed, fitted
from qmaps.capture.naming.known import Known, Shape
from qmaps.errors import BadValueError
from qmaps.storage import checkpoint
from qmaps.storage.files import content_of, exists

FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""Names of a model's file in a checkpoint's folder, in the order of preference."""

WRAPPERS = ("state_dict", "model_state_dict", "model")
"""Keys of the model's state_dict in larger files."""

STATISTICS = ("running_mean", "running_var")


def names_in_text(path: Path) -> list[str]:
    """Return the names in a text file: one on each line, empty lines left out.

    Args:
        path: the file, in UTF-8.

    Raises:
        BadValueError: the file cannot be read, or has no name.
    """
    try:
        names = [line.strip() for line in content_of(path).decode("utf-8").splitlines()]
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise BadValueError(
            f"names={str(path)!r} cannot be read ({reason}); expected a file of a model, or a text "
            "file with one name per line"
        ) from None
    return [name for name in names if name]


def by_place(place: Path, groups: Sequence[Group]) -> tuple[list[str], str]:
    """Return the name of each parameter in the optimizer's order, and where the names come from.

    The files of safetensors and the indices of shards do not keep the model's order. It is that of
    the model which ``config.json`` beside them describes; transformers makes it, without weights.

    Args:
        place: a folder that holds a model, or a file of one.
        groups: groups of the optimizer.

    Raises:
        Unnamed: names cannot be recovered.
    """
    path = _file(place)
    held = dict(_held(path))
    reason = f"{path.name} keeps no order of parameters, and "
    # torch keeps the order of what it saves.
    if path.suffix not in (".safetensors", ".json") or ".bin" in path.suffixes:
        try:
            return fitted(Known(path.name, held), groups), path.name
        except Unnamed as error:  # a model tells what a list of names does not
            reason = f"{error}, and "
    try:
        model = architecture.known(path.parent, held, path.name)
    except Unnamed as error:
        raise Unnamed(f"{reason}{error}") from None
    return fitted(model, groups), model.source


def _file(place: Path) -> Path:
    if not place.is_dir():
        return place
    path = next((place / name for name in FILES if exists(place / name)), None)
    if path is None:
        raise Unnamed("there is no model.safetensors or pytorch_model.bin beside the optimizer")
    return path


def _held(path: Path) -> Iterator[tuple[str, Shape]]:
    """Name and shape of each tensor of a model's file, or of its shards."""
    try:
        if not path.is_file():  # a pipe would never end
            raise ValueError
        if path.suffix == ".json":
            for shard in _shards(path):
                yield from _held(shard)
        elif path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118
                    yield name, tuple(file.get_slice(name).get_shape())
        else:
            yield from _in_torch_file(path)
    except (OSError, SafetensorError, ValueError, RecursionError):
        raise Unnamed(f"{path.name} is missing, damaged, or no file of a model") from None


def _shards(index: Path) -> list[Path]:
    parsed = json.loads(content_of(index))
    weight_map = parsed.get("weight_map") if isinstance(parsed, dict) else None
    names = list(weight_map.values()) if isinstance(weight_map, dict) else []
    # A shard lies beside its index: anything else is not what a Trainer wrote.
    if not names or not all(isinstance(n, str) and Path(n).name == n for n in names):
        raise ValueError
    return [index.parent / name for name in sorted(set(names))]


def _in_torch_file(path: Path) -> Iterator[tuple[str, Shape]]:
    loaded = checkpoint.load(path, mmap=True)
    if not isinstance(loaded, Mapping):
        raise ValueError
    state_dict = next((loaded[n] for n in WRAPPERS if isinstance(loaded.get(n), Mapping)), loaded)
    seen: set[tuple[int, int, Shape]] = set()
    for name, tensor in state_dict.items():
        if not (isinstance(name, str) and isinstance(tensor, Tensor)):
            raise ValueError
        prefix, _, last = name.rpartition(".")
        if last in STATISTICS and f"{prefix}.num_batches_tracked".lstrip(".") in state_dict:
            continue  # of batch norms; no parameters
        shape = tuple(tensor.shape)
        # Tied parameters share memory; the optimizer has the first of them.
        key = (tensor.untyped_storage().data_ptr(), int(tensor.storage_offset()), shape)
        if tensor.is_floating_point() and (key not in seen or not tensor.numel()):
            seen.add(key)
            yield name, shape
