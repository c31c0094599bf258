"""Orbax: folders of JAX's arrays, read by tensorstore."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from qmaps.capture.readers.base import (
    TRANSPOSED,
    Reader,
    StateDict,
    dtype_of,
    needed,
    tensor_of,
)
from qmaps.capture.readers.optax import Keys, state_dicts_of
from qmaps.capture.snapshot import Lazy
from qmaps.errors import CaptureError, shown
from qmaps.storage.files import content_of, exists, size_of

ABOUT = "_METADATA"
"""File with the keys of the tree."""

LARGEST = 2**28
"""Bytes of `ABOUT`, at most."""

STEP = re.compile(r"(?:\w+_)?(\d+)")
"""Folder of a step in that of a ``CheckpointManager``; those being written have other names."""

MOST = 2**15
"""Elements' bytes for each byte in the folder, at most: chunks that are missing are zeros."""

ARRAYS = ("jax.Array", "np.ndarray", "scalar")
"""Types of leaves that are arrays in the folder."""


class Orbax(Reader):
    """A folder with ``_METADATA``, that of a step, or that of a ``CheckpointManager``.

    Arrays are in one store (OCDBT) or in a folder each, in zarr 2 or 3. Leaves that are not read
    back, such as those of masked nodes, are left out.
    """

    name: ClassVar[str] = "orbax"
    writable: ClassVar[bool] = False
    note: ClassVar[str] = TRANSPOSED

    def is_here(self, path: Path) -> bool:
        """Return True for a folder with ``_METADATA``."""
        return exists(path / ABOUT)

    def newest(self, path: Path) -> Path | None:
        """Return the item of the last step with an optimizer, in the folder of steps or of one."""
        if not path.is_dir():
            return None
        steps = {int(m[1]): each for each in path.iterdir() if (m := STEP.fullmatch(each.name))}
        folder = path / steps[max(steps)].name if steps else path
        items = sorted(item.parent for item in folder.glob(f"*/{ABOUT}"))
        return next((item for item in items if _has_optimizer(item)), items[0] if items else None)

    def state_dicts(self, path: Path) -> list[StateDict]:
        """See `Reader.state_dicts`."""
        about = _about(path)
        sizes = [size_of(each) for each in path.rglob("*") if not each.is_dir()]  # no pipe is read
        most = MOST * sum(sizes)
        leaves = {keys: _leaf(path, keys, about, most) for keys in _arrays(about)}
        return state_dicts_of(leaves, path)


def _about(folder: Path) -> Mapping[str, Any]:
    about = json.loads(content_of(folder / ABOUT, LARGEST))
    if not isinstance(about, Mapping) or not isinstance(about.get("tree_metadata"), Mapping):
        raise CaptureError(f"{str(folder / ABOUT)!r} must have tree_metadata, as Orbax writes it")
    return about


def _arrays(about: Mapping[str, Any]) -> Iterator[Keys]:
    """Yield the keys of each array of the tree."""
    for entry in about["tree_metadata"].values():
        value = entry["value_metadata"]
        if value["value_type"] in ARRAYS and not value.get("skip_deserialize"):
            yield tuple(str(part["key"]) for part in entry["key_metadata"])


def _has_optimizer(folder: Path) -> bool:
    try:
        return bool(state_dicts_of(dict.fromkeys(_arrays(_about(folder)), 0), folder))
    except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError):
        return False


def _leaf(folder: Path, keys: Keys, about: Mapping[str, Any], most: int) -> Lazy:
    store = _opened(folder, keys, about)
    name = ".".join(keys)
    shape, code = tuple(store.shape), store.dtype.name
    dtype = dtype_of(code, name, folder)
    layout = store.chunk_layout
    sizes = (shape, layout.read_chunk.shape or (), layout.write_chunk.shape or ())
    largest = max(map(math.prod, sizes))
    if largest * dtype.itemsize > most:
        raise CaptureError(
            f"{str(folder)!r} has {shown(name)} of shape {shape}, in a folder of only "
            f"{most // MOST} bytes"
        )
    whole = partial(_rows, store, None, None)
    return Lazy(shape, dtype, whole, parts=lambda: partial(_part, store, shape))


def _opened(folder: Path, keys: Keys, about: Mapping[str, Any]) -> Any:
    tensorstore = needed("tensorstore", "jax", folder)
    name = ".".join(keys)
    base = {"driver": "file", "path": f"{folder}/"}
    if about.get("use_ocdbt", True):
        store: dict[str, Any] = {"driver": "ocdbt", "base": base, "path": f"{name}/"}
    elif Path(name).name != name:  # anything else could lead to files of another owner
        raise CaptureError(f"{str(folder)!r} names the array {shown(name)}, not in its folder")
    else:
        store = {"driver": "file", "path": f"{folder / name}/"}
    driver = "zarr3" if about.get("use_zarr3") else "zarr"
    return tensorstore.open({"driver": driver, "kvstore": store}, read=True, open=True).result()


def _rows(store: Any, begin: int | None, end: int | None) -> Tensor:
    part = store if begin is None else store[begin:end]
    return tensor_of(part.read().result())


def _part(store: Any, shape: tuple[int, ...], begin: int, end: int) -> Tensor:
    """Elements of a flattened array, from the rows that hold them."""
    row = math.prod(shape[1:])
    if not shape or begin >= end or not row:
        return _rows(store, None, None).reshape(-1)[begin:end]
    first = begin // row
    values = _rows(store, first, -(-end // row)).reshape(-1)
    return values[begin - first * row : end - first * row]
