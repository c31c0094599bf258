"""Safetensors files of optimizer states with names for parameter and state."""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import index
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from qmaps.capture import snapshot
from qmaps.capture.readers.base import OF_PARTS, Reader, StateDict, opened_spans, state_of
from qmaps.capture.snapshot import Lazy, Parts
from qmaps.errors import CaptureError, shown
from qmaps.storage.distributed import Block, check_blocks
from qmaps.storage.files import content_of

PREFIX = re.compile(r"(?:(?:optim|optimizer)\.)?state\.")
"""What may stand before all names."""

ENDING = ".safetensors"
INDEX = ".safetensors.index.json"
"""Ending of a file that lists the tensors of several files beside it."""

NUMBERED = re.compile(r"(?:shard-(\d+)-)?(.*?)-?(\d+)-of-(\d+)\.safetensors")
"""One of several files: torch's writer puts the shard of each process into files of its own."""

SHARDED = "sharded"
"""Folder of the processes' shards, in that of the files that torch joined from them."""

OFFSETS = "DCP_SHARDING_INFO"
"""Entry in the metadata of a shard: the index in the whole tensor of each part's first element."""

VERSION = "DCP_VERSION"
"""Entry in the metadata of the shards of torch's writer."""


class NamedTensors(Reader):
    """Tensors named ``PARAMETER.exp_avg``, perhaps with ``state.`` before all names.

    A file, or a folder of them, perhaps with an index: also of torch's
    ``HuggingFaceStorageWriter``, whose shards are put together. Files of `StateRecorder` are not of
    this kind: they have names in their metadata.
    """

    name: ClassVar[str] = "safetensors"
    counts_steps: ClassVar[bool] = False
    writable: ClassVar[bool] = False

    def is_here(self, path: Path) -> bool:
        """Return True for files of another package with a state's name in them, or their index."""
        if path.name.endswith(INDEX):
            return any(map(state_of, _in_index(path)))
        return any(map(_may_hold_states, _candidates(path)))

    def state_dicts(self, path: Path) -> list[StateDict]:
        """See `Reader.state_dicts`."""
        state: dict[str, dict[str, Any]] = {}
        tensors = _joined(path)
        prefixed = all(map(PREFIX.match, tensors))
        for key, (lazy, code) in tensors.items():
            name = PREFIX.sub("", key, count=1) if prefixed else key
            parameter, dot, _ = name.rpartition(".")
            if not (dot and (state_name := state_of(key))):
                raise CaptureError(
                    f"{str(path)!r} has the tensor {shown(key)}; in a file of optimizer states "
                    "every name must be PARAMETER.STATE, such as layer.weight.exp_avg"
                )
            # Integers would be codes whose scales are elsewhere.
            if lazy is None or not (lazy.dtype.is_floating_point or state_name in OF_PARTS):
                raise CaptureError(f"{str(path)!r} has {shown(key)} in {code}, which is not read")
            state.setdefault(parameter, {})[state_name] = lazy
        return [{"state": state, "param_groups": [{"params": list(state)}]}]


def _holds_states(file: Path) -> bool:
    """Return True if a file of another package has a state's name in it."""
    metadata, tensors = snapshot.header_of(file)
    return snapshot.KEY not in metadata and any(map(state_of, tensors))


def _may_hold_states(file: Path) -> bool:
    try:
        return _holds_states(file)
    except CaptureError:  # what is wrong with it is said where our own are read
        return False


def _in_index(path: Path) -> Mapping[str, str]:
    try:
        return _index(path)
    except (CaptureError, OSError):
        return {}


def _candidates(path: Path) -> Iterator[Path]:
    """Yield the file, or the files in a folder that may hold states."""
    if not path.is_dir():
        if path.suffix == ENDING and path.is_file():
            yield path
        return
    files = sorted(_folder(path).glob(f"*{ENDING}"))
    if not any(snapshot.steps_in(path, kind) for kind in ("step", "gradients")):
        yield from files


def _folder(path: Path) -> Path:
    """The folder with a checkpoint's files: that of shards, whose steps torch may lose joining."""
    shards = path / SHARDED
    return shards if any(shards.glob(f"*{ENDING}")) else path


def _index(path: Path) -> Mapping[str, str]:
    """The file of each tensor in an index."""
    try:
        files = json.loads(content_of(path))["weight_map"]
        # Anything else could lead to files of another owner.
        if not all(Path(name).name == name for name in files.values()):
            raise ValueError
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
        raise CaptureError(
            f"{str(path)!r} must have a weight_map from tensors to files beside it"
        ) from None
    return dict(files)


def _files(path: Path) -> list[Path]:
    """All files of the checkpoint at a path: a folder, an index, or one file of several."""
    if path.name.endswith(INDEX):
        files = sorted({path.parent / name for name in _index(path).values()})
    elif path.is_dir():
        files = [file for file in _candidates(path) if _holds_states(file)]
    else:
        own = NUMBERED.fullmatch(path.name)
        if own is None:
            return [path]
        files = [
            file
            for file in sorted(path.parent.glob(f"*{ENDING}"))
            if (match := NUMBERED.fullmatch(file.name))
            and (match[2], match[4], not match[1]) == (own[2], own[4], not own[1])
        ]
    _check_complete(files)
    return files


def _is_of_several(file: Path) -> bool:
    """True if torch's writer wrote a file, or an index beside it lists it."""
    indices = file.parent.glob(f"*{INDEX}")
    return not {VERSION, OFFSETS}.isdisjoint(snapshot.header_of(file)[0]) or any(
        file.name in _in_index(index).values() for index in indices
    )


def _check_complete(files: Sequence[Path]) -> None:
    """Raise if the numbers in the names of files say that one is missing."""
    for file in files:
        if not (match := NUMBERED.fullmatch(file.name)):
            continue
        names = (m for each in files if (m := NUMBERED.fullmatch(each.name)))
        alike = [m for m in names if (m[2], m[4]) == (match[2], match[4])]
        parts = {int(m[3]) for m in alike}
        if len(alike) == 1 and not _is_of_several(file):  # a name that a user gave it
            continue
        shards = {int(m[1]) for m in alike if m[1]}
        for kind, present, expected in (
            ("file", parts, range(1, int(match[4]) + 1)),
            ("shard", shards, range(1, max(shards, default=0) + 1)),
        ):
            if lost := next((number for number in expected if number not in present), None):
                raise CaptureError(
                    f"{str(file)!r} is one of several files, of which {kind} {lost} is missing "
                    "beside it"
                )
        if shards == {1}:
            warnings.warn(
                f"{str(file)!r} is the shard of one process; shards of others would have to be "
                "beside it",
                stacklevel=2,
            )


@dataclass(frozen=True)
class _Block(Block):
    """A block of a tensor, and its place in a file."""

    parts: Parts


def _joined(path: Path) -> dict[str, tuple[Lazy | None, str]]:
    """Return each tensor of a checkpoint, None if its dtype is unknown, and its dtype in files."""
    files = _files(path)
    blocks: dict[str, list[_Block]] = {}
    for file in files:
        metadata, tensors = snapshot.header_of(file)
        offsets = json.loads(metadata.get(OFFSETS, "{}"))
        for key, parts in tensors.items():
            start = offsets[key]["saved_offsets"] if key in offsets else [0] * len(parts.shape)
            blocks.setdefault(key, []).append(_Block(tuple(map(index, start)), parts.shape, parts))
    joined = {key: _tensor(key, of_key, path) for key, of_key in blocks.items()}
    _check_whole(path, {key: _shape(of_key) for key, of_key in blocks.items()}, files)
    return joined


def _shape(blocks: Sequence[Block]) -> tuple[int, ...]:
    ends = [[a + n for a, n in zip(b.offsets, b.sizes, strict=True)] for b in blocks]
    return tuple(map(max, zip(*ends, strict=True)))


def _tensor(key: str, blocks: Sequence[_Block], path: Path) -> tuple[Lazy | None, str]:
    code = blocks[0].parts.code
    if any(block.parts.code != code for block in blocks):
        raise CaptureError(f"{str(path)!r} has parts of {shown(key)} in different dtypes")
    shape = _shape(blocks)
    check_blocks(key, shape, blocks, path)
    if code not in snapshot.DTYPES.values():
        return None, code
    if len(blocks) == 1:
        return blocks[0].parts.lazy(), code
    ordered = sorted(blocks, key=lambda block: block.offsets)
    read, opened = partial(_read, shape, ordered), None
    if all(block.sizes[1:] == shape[1:] for block in ordered):  # cut along the first dimension
        lazies = [block.parts.lazy() for block in ordered]
        opened = partial(opened_spans, [(lazy, 0, math.prod(lazy.shape)) for lazy in lazies])
    return Lazy(shape, ordered[0].parts.dtype, read, parts=opened), code


def _read(shape: tuple[int, ...], blocks: Sequence[_Block]) -> Tensor:
    joined = torch.empty(shape, dtype=blocks[0].parts.dtype)
    for block in blocks:
        joined[block.place] = block.parts.whole()
    return joined


def _check_whole(path: Path, shapes: Mapping[str, tuple[int, ...]], files: Sequence[Path]) -> None:
    """Raise unless an index, and the files that torch joined, have the same tensors.

    The shards of some processes could be taken for smaller tensors.
    """
    folder = files[0].parent
    of_shards = folder.name == SHARDED
    if of_shards:
        folder = folder.parent
    one_file = path.suffix == ENDING and not of_shards
    for list_of_files in sorted(folder.glob(f"*{INDEX}")):
        listed = _index(list_of_files)
        if not any(key in listed for key in shapes):
            continue  # of the model, for example
        for key, name in listed.items():
            if (
                key not in shapes
                and state_of(key)
                and not (one_file and folder / name not in files)
            ):
                raise CaptureError(
                    f"{str(list_of_files)!r} lists the tensor {shown(key)}, which the files of "
                    f"{str(path)!r} do not have"
                )
    for file in sorted(folder.glob(f"*{ENDING}")) if of_shards else ():
        for key, parts in snapshot.header_of(file)[1].items():
            if key in shapes and shapes[key] != parts.shape:
                raise CaptureError(
                    f"the shards in {str(files[0].parent)!r} make up {shown(key)} of shape "
                    f"{shapes[key]}, but {file.name!r} has it in {parts.shape}; a shard is missing"
                )
