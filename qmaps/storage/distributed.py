"""Folders of ``torch.distributed.checkpoint``: one tensor is read at a time, and no code is run.

The file ``.metadata`` is a pickle of the position of each tensor's chunks in the ``.distcp``
files. It is read with classes of our own in place of torch's, so no name in it is ever imported.
Each chunk is a stream of ``torch.save``.
"""

from __future__ import annotations

import io
import math
import operator
import os
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qmaps.errors import BadValueError
from qmaps.storage import checkpoint
from qmaps.storage.checkpoint import Know, Part
from qmaps.storage.files import content_of, size_of
from qmaps.storage.pickles import BoundedUnpickler

METADATA = ".metadata"


@dataclass(frozen=True)
class Block:
    """A block of a tensor: index of its first element, and shape."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def place(self) -> tuple[slice, ...]:
        """Index of the block in the tensor."""
        spans = zip(self.offsets, self.sizes, strict=True)
        return tuple(slice(start, start + size) for start, size in spans)


@dataclass(frozen=True)
class Chunk(Block):
    """A block, and its location."""

    part: Part


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in chunks, under a key of the checkpoint."""

    key: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    chunks: tuple[Chunk, ...]

    def read(self, know: Know | None = None) -> Tensor:
        """Assemble the tensor, decoded; one chunk at a time is in memory beside it."""
        joined = torch.empty(self.shape, dtype=self.dtype)
        for chunk in self.chunks:
            values = checkpoint.load_part(chunk.part, know)
            if not isinstance(values, Tensor) or tuple(values.shape) != chunk.sizes:
                kind = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
                raise BadValueError(
                    f"{str(chunk.part.path)!r} has {kind} at byte {chunk.part.start}, where the "
                    f"metadata says that {self.key!r} has a chunk of shape {chunk.sizes}"
                )
            joined[chunk.place] = values.detach()  # which decodes quantized subclasses, too
        return joined

    def store(self, tensor: Tensor) -> None:
        """Write a tensor of this shape in its place, rounded to `dtype`."""
        for chunk in self.chunks:
            checkpoint.put(chunk.part, tensor[chunk.place])


@dataclass(frozen=True)
class Stored:
    """Tensors and places of other objects by key, and the saved dict's keys that lead to a key."""

    tensors: dict[str, StoredTensor] = field(default_factory=dict)
    objects: dict[str, Part] = field(default_factory=dict)
    paths: dict[str, tuple[str | int, ...]] = field(default_factory=dict)


def contents(folder: str | os.PathLike[str]) -> Stored:
    """Read the metadata of a folder with ``.metadata`` and ``.distcp`` files; no tensor is read.

    It must be whole and name only known classes, the files must be there, and the chunks of a
    tensor must make it up.
    """
    path = Path(folder) / METADATA
    shown = repr(str(path))
    try:
        stored = _parsed(_Unpickler(io.BytesIO(content_of(path)), shown).load(), Path(folder))
        _check_files(stored)
        for tensor in stored.tensors.values():
            check_blocks(tensor.key, tensor.shape, tensor.chunks, path)
    except (BadValueError, MemoryError):
        raise
    except OSError as error:
        raise BadValueError(f"{shown} cannot be read ({error.strerror})") from None
    except Exception:  # pickle raises many kinds on damaged files
        raise BadValueError(
            f"{shown} is not the metadata of torch.distributed.checkpoint; it is corrupt, "
            "truncated, or a file of another kind"
        ) from None
    return stored


class _Record:
    """Replacement of a class of torch's with the object's pickled contents."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)
        else:
            self.arguments = state


MODULES = (
    "megatron.core.dist_checkpointing.",
    "pathlib.",
    "torch.distributed.checkpoint.",
    "torch.serialization._get_layout",
)
"""Beginnings of the names in the metadata that are read as `_Record`."""

PLAIN: dict[str, Any] = {"torch.Size": torch.Size, "collections.OrderedDict": OrderedDict}
"""Names in the metadata that are what they say."""


class _Unpickler(BoundedUnpickler):
    def __init__(self, file: io.BytesIO, shown: str) -> None:
        super().__init__(file)
        self.shown = shown

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full.startswith(MODULES):
            return _Record
        if full in PLAIN:
            return PLAIN[full]
        if module == "torch" and isinstance(dtype := getattr(torch, name, None), torch.dtype):
            return dtype
        raise BadValueError(
            f"{self.shown} would have to run code to load ({full}); only the metadata of "
            "torch.distributed.checkpoint is read"
        )


def _parsed(metadata: Any, folder: Path) -> Stored:
    parts: dict[tuple[str, tuple[int, ...]], Part] = {}
    for index, info in metadata.storage_data.items():
        if getattr(info, "transform_descriptors", None):
            raise BadValueError(
                f"{str(folder / METADATA)!r} says that {index.fqn!r} is compressed or encrypted; "
                "save without extensions of the writer"
            )
        start, length = _counts((info.offset, info.length))
        part = Part(_inside(folder, info.relative_path), start, length)
        parts[index.fqn, _counts(getattr(index, "offset", None) or ())] = part
    stored = Stored()
    for key, entry in metadata.state_dict_metadata.items():
        if not hasattr(entry, "chunks"):
            stored.objects[key] = parts[key, ()]
            continue
        chunks = tuple(
            Chunk(_counts(chunk.offsets), _counts(chunk.sizes), parts[key, tuple(chunk.offsets)])
            for chunk in entry.chunks
        )
        dtype = entry.properties.arguments[0]
        if not isinstance(dtype, torch.dtype):
            raise TypeError
        stored.tensors[key] = StoredTensor(key, _counts(entry.size), dtype, chunks)
    paths = metadata.planner_data
    if isinstance(paths, dict):
        stored.paths.update(
            (key, tuple(path)) for key, path in paths.items() if isinstance(path, tuple)
        )
    return stored


def _counts(numbers: Iterable[Any]) -> tuple[int, ...]:
    counts = tuple(map(operator.index, numbers))
    if any(number < 0 for number in counts):
        raise ValueError
    return counts


def _inside(folder: Path, name: str) -> Path:
    """A file of the folder; anything else could be a file of another owner."""
    if Path(name).name != name:
        raise BadValueError(
            f"{str(folder / METADATA)!r} names the file {name!r}, which is not in its folder"
        )
    return folder / name


def _check_files(stored: Stored) -> None:
    """Raise if a file is missing, or ends before its last stream."""
    ends: dict[Path, tuple[int, str]] = {}
    places = [(part, key) for key, part in stored.objects.items()]
    places += [(chunk.part, t.key) for t in stored.tensors.values() for chunk in t.chunks]
    for part, key in places:
        ends[part.path] = max(ends.get(part.path, (0, "")), (part.start + part.length, key))
    for path, (end, key) in ends.items():
        try:
            size = size_of(path)
        except OSError as error:
            raise BadValueError(
                f"{str(path)!r} cannot be read ({error.strerror}); the metadata says that a part "
                f"of {key!r} is in it"
            ) from None
        if size < end:
            raise BadValueError(
                f"{str(path)!r} is truncated: it has {size} bytes, and the metadata says that "
                f"{key!r} ends at byte {end}"
            )


def check_blocks(key: str, shape: Sequence[int], blocks: Sequence[Block], path: Path) -> None:
    """Raise unless the blocks lie within a tensor, do not overlap, and fill it."""
    count = sum(math.prod(block.sizes) for block in blocks)
    inside = all(_lies_within(block, shape) for block in blocks)
    if not inside or count != math.prod(shape) or _overlap(blocks):
        raise BadValueError(
            f"{str(path)!r} has chunks of {count} elements for {key!r} of shape "
            f"{tuple(shape)}; the chunks must make up the tensor"
        )


def _lies_within(block: Block, shape: Sequence[int]) -> bool:
    return len(block.offsets) == len(block.sizes) == len(shape) and all(
        0 <= start <= start + size <= end
        for start, size, end in zip(block.offsets, block.sizes, shape, strict=True)
    )


def _overlap(blocks: Sequence[Block]) -> bool:
    """Return True if two blocks have an element in common; they have offsets of the same length."""
    filled = [block for block in blocks if 0 not in block.sizes]
    near: list[Block] = []  # those that reach as far in the first dimension as the next begins
    for block in sorted(filled, key=lambda b: b.offsets):
        near = [neighbor for neighbor in near if _meet(neighbor, block, 1)]
        if any(_meet(neighbor, block, len(block.sizes)) for neighbor in near):
            return True
        near.append(block)
    return False


def _meet(x: Block, y: Block, dims: int) -> bool:
    """Return True if two blocks have indices in common in each of the first `dims` dimensions."""
    spans = zip(x.offsets, x.sizes, y.offsets, y.sizes, strict=True)
    return all(a < b + n and b < a + m for a, m, b, n in list(spans)[:dims])
