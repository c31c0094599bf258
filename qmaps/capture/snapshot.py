"""One file per captured step: safetensors with JSON metadata.

Tensors are named by number. The metadata entry ``qmaps_capture`` has the parameter and the state of
each, so names may hold any character; ``qmaps_xxh3`` has the checksums of that entry and of each
tensor (`qmaps.storage.checksums`).
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from qmaps.errors import DAMAGE, BadValueError, CaptureError, shown
from qmaps.storage import checksums
from qmaps.storage.files import IrregularFileError, exists, replacing, size_of

if TYPE_CHECKING:
    from qmaps.algebra.quantizer import QuantizedTensor

FORMAT = 1
PIECE = 2**24
"""Bytes that are read at a time where a checksum alone is wanted."""

KEY = "qmaps_capture"

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Dtypes in a snapshot, and their names in safetensors."""

_BY_CODE = {code: dtype for dtype, code in DTYPES.items()}
_CODES = {str(dtype).removeprefix("torch."): code for dtype, code in DTYPES.items()}

Part = Callable[[int, int], Tensor]
"""Reads elements ``begin`` to ``end`` (exclusive) of a flattened tensor, of shape (n,)."""


@dataclass(frozen=True)
class Lazy:
    """A tensor to read on demand, so one at a time is in memory.

    Attributes:
        shape: shape of the tensor.
        dtype: dtype of the tensor.
        read: reads the tensor.
        store: writes another tensor of this shape in its place, rounded to `dtype`, into files
            read within `qmaps.storage.checkpoint.editing`; None if the file does not store
            the tensor as it is.
        parts: returns a `Part`; None if only the whole tensor can be read.
        quantized: whether the tensor is decoded from codes.
        codes: reads these codes with their scales; None if they are not at hand.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], Tensor]
    store: Callable[[Tensor], None] | None = None
    parts: Callable[[], Part] | None = None
    quantized: bool = False
    codes: Callable[[], QuantizedTensor | None] | None = None

    @property
    def nbytes(self) -> int:
        """Number of bytes of the elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    @classmethod
    def of(cls, tensor: Tensor) -> Lazy:
        """Wrap a tensor in memory, or mapped into it."""
        return cls(
            tuple(tensor.shape),
            tensor.dtype,
            lambda: tensor,
            parts=lambda: partial(_part_of, tensor.detach().reshape(-1)),
        )

    def opened(self) -> Part:
        """Return a `Part` of the tensor.

        If only the whole tensor can be read, it is read now and stays in memory with the function.
        """
        return self.parts() if self.parts is not None else Lazy.of(self.read()).opened()


def _part_of(flat: Tensor, begin: int, end: int) -> Tensor:
    return flat[begin:end]


@dataclass(frozen=True)
class Entry:
    """Name, shape and dtype (without ``torch.``) of one tensor in a snapshot."""

    parameter: str
    state: str
    shape: list[int]
    dtype: str


Key = tuple[str, str]
"""Parameter and state name."""


@dataclass(frozen=True)
class Info:
    """Contents of a snapshot, without the tensors.

    Attributes:
        step: number of optimizer steps taken.
        optimizer: class name of the optimizer.
        hyperparameters: options of each parameter's group, by parameter name.
        tensors: the tensors in the order of their numbers; filled by `write`.
        scalars: numbers among the states, and ``step``, by parameter and state name.
        skipped: ``parameter: state (type)`` of states that cannot be recorded.
        parameters: shape of each captured parameter, with a state or without.
        window: of a file of gradients, the step (`start`) and the digest (`states`) of the last
            snapshot before it; empty for snapshots.
        format: version of this layout.
    """

    step: int
    optimizer: str
    hyperparameters: dict[str, dict[str, Any]] = field(default_factory=dict)
    tensors: list[Entry] = field(default_factory=list)
    scalars: dict[str, dict[str, float]] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    parameters: dict[str, list[int]] = field(default_factory=dict)
    window: dict[str, Any] = field(default_factory=dict)
    format: int = FORMAT

    def of(self, tensors: Mapping[Key, Lazy]) -> Info:
        """Return a copy that lists these tensors."""
        entries = [
            Entry(parameter, state, list(lazy.shape), str(lazy.dtype).removeprefix("torch."))
            for (parameter, state), lazy in tensors.items()
        ]
        return replace(self, tensors=entries)


def path_of(folder: Path, step: int, kind: str = "step") -> Path:
    """Return the path of a snapshot, ``step-00000250.safetensors``, or of ``gradients``."""
    return folder / f"{kind}-{step:08d}.safetensors"


def steps_in(folder: Path, kind: str = "step") -> list[int]:
    """Return the steps captured in `folder`, ascending, without unfinished files."""
    name = re.compile(rf"{kind}-(\d{{8,}})\.safetensors")
    matches = (name.fullmatch(path.name) for path in folder.iterdir())
    return sorted(int(match[1]) for match in matches if match)


def write(path: Path, info: Info, tensors: Mapping[Key, Lazy]) -> None:
    """Write a snapshot, holding one tensor in memory at a time; it appears whole or not at all."""
    content = asdict(info.of(tensors))
    if not info.window:  # earlier versions read snapshots, and do not know the entry
        del content["window"]
    with replacing(path) as temporary:
        numbered = {str(number): lazy for number, lazy in enumerate(tensors.values())}
        save_file(numbered, temporary, metadata={KEY: json.dumps(content)})


def save_file(tensors: Mapping[str, Lazy], path: Path, metadata: Mapping[str, str]) -> None:
    """Write tensors as `safetensors.torch.save_file` does, fetching each as it is written.

    The library's own function needs all tensors on the CPU at once, and copies each to bytes. The
    header is written again at the end, with the checksums of the tensors. A tensor of another shape
    or dtype than its `Lazy` says is a RuntimeError.
    """
    sums: dict[str, str] = {}
    with path.open("wb") as file:
        file.write(_header(tensors, metadata))
        for name in _order(tensors):
            content = _bytes(tensors[name])
            file.write(content)
            sums[name] = checksums.of(content)
        file.seek(0)
        file.write(_header(tensors, metadata, sums))  # has the same length as before
        file.flush()
        # Otherwise a power cut could leave the new name on an incomplete file.
        os.fsync(file.fileno())


class Snapshot:
    """A snapshot, or a file of gradients.

    It has `info`, and `tensors` by parameter and state name, whose checksums are verified when they
    are read or opened. Whatever is wrong with the file is a CaptureError, now or later.
    """

    def __init__(self, path: Path) -> None:
        entries, parts = header_of(path)
        if KEY not in entries:
            raise CaptureError(f"{str(path)!r} is a safetensors file {_of_others(parts)}")
        try:
            sums = checksums.in_metadata(entries, parts)
        except BadValueError as error:
            raise CaptureError(f"{str(path)!r} is damaged: {error}") from None
        self.info = _parsed(path, entries[KEY])
        listed = {
            str(number): (entry.shape, _CODES[entry.dtype])
            for number, entry in enumerate(self.info.tensors)
        }
        if listed != {name: (list(part.shape), part.code) for name, part in parts.items()}:
            raise CaptureError(f"{str(path)!r} does not hold the tensors that its metadata lists")
        self.tensors: dict[Key, Lazy] = {}
        for name, entry in zip(listed, self.info.tensors, strict=True):
            checksum = sums[name] if sums else None
            about = (name, parts[name], checksum)
            read, opened = partial(_read, *about), partial(_opened, *about)
            lazy = replace(parts[name].lazy(), read=read, parts=opened)
            self.tensors[entry.parameter, entry.state] = lazy


def _of_others(names: Iterable[str]) -> str:
    """Description of a safetensors file whose tensors have no names of states."""
    ends = {name.rpartition(".")[2] for name in names}
    if {"m", "v"} <= ends:
        return "of MLX; rename its tensors .m and .v to .exp_avg and .exp_avg_sq"
    tensor = f"the tensor {shown(min(names))}" if ends else "no tensors"
    return f"with {tensor}; states are named PARAMETER.STATE, such as layer.weight.exp_avg"


@dataclass(frozen=True)
class Parts:
    """Reads parts of one tensor of a safetensors file; `code` is its dtype's name in the file."""

    path: Path
    offset: int
    nbytes: int
    code: str
    shape: tuple[int, ...]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype; a KeyError if it is not in `DTYPES`."""
        return _BY_CODE[self.code]

    def __call__(self, begin: int, end: int) -> Tensor:
        """Read elements `begin` to `end` (exclusive), of shape (n,)."""
        size = self.dtype.itemsize
        return self.bytes(begin * size, end * size).view(self.dtype)

    def whole(self) -> Tensor:
        """Read the tensor; raises as `__call__`."""
        return self.bytes(0, self.nbytes).view(self.dtype).view(self.shape)

    def bytes(self, begin: int, end: int) -> Tensor:
        """Read bytes `begin` to `end` (exclusive), uint8 of shape (n,); raises as `__call__`."""
        content = torch.empty(end - begin, dtype=torch.uint8)
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset + begin)
                if content.numel() and file.readinto(content.numpy().data) != content.numel():
                    raise OSError("the file ends early")
        except OSError as error:
            raise unreadable(self.path, error) from None
        return content

    def lazy(self) -> Lazy:
        """Return the tensor, to be read on demand, without a check."""
        return Lazy(self.shape, self.dtype, self.whole, parts=lambda: self)

    def pieces(self) -> Iterator[memoryview]:
        """Yield all bytes in pieces; raises as `__call__`."""
        for begin in range(0, self.nbytes, PIECE):
            yield self.bytes(begin, min(begin + PIECE, self.nbytes)).numpy().data


def _read(name: str, parts: Parts, checksum: str | None) -> Tensor:
    tensor = parts.whole()
    _check(name, parts, checksum, checksums.of_tensor(tensor))
    return tensor


def _opened(name: str, parts: Parts, checksum: str | None) -> Part:
    _check(name, parts, checksum, checksums.of(*parts.pieces()))
    return parts


def _check(name: str, parts: Parts, expected: str | None, checksum: str) -> None:
    if expected not in (None, checksum):
        raise CaptureError(
            f"{str(parts.path)!r} is damaged: the checksum of tensor {name} is wrong"
        )


def header_of(path: Path) -> tuple[dict[str, str], dict[str, Parts]]:
    """Read the metadata of a safetensors file, and the place of each tensor by name.

    The library checks the header. It does not read the tensors: it maps the whole file into memory
    as if to write to it, which systems refuse for files larger than memory.
    """
    try:
        size_of(path)  # a pipe would be waited for
        with safe_open(path, framework="numpy"), path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            entries = json.loads(file.read(length))
    except (OSError, SafetensorError) as error:
        raise unreadable(path, error) from None
    metadata = entries.pop("__metadata__", None) or {}
    parts = {}
    for name, entry in entries.items():
        begin, end = entry["data_offsets"]
        place = 8 + length + begin
        parts[name] = Parts(path, place, end - begin, entry["dtype"], tuple(entry["shape"]))
    return metadata, parts


def digest(path: Path) -> str:
    """Return a digest of a snapshot, from the checksums in its header."""
    entries, _ = header_of(path)
    return checksums.of("".join(entries[key] for key in sorted(entries)).encode())


def unreadable(path: Path, error: Exception) -> CaptureError:
    """Return the error for a missing, forbidden, corrupt or truncated file."""
    if not exists(path):
        return CaptureError(f"{str(path)!r} does not exist")
    if isinstance(error, (PermissionError, IrregularFileError)):
        return CaptureError(f"{str(path)!r} cannot be read ({error.strerror or error})")
    if path.is_file() and path.stat().st_size == 0:
        return CaptureError(f"{str(path)!r} is empty")
    reason = (str(error) or type(error).__name__).splitlines()[0]
    return CaptureError(f"{str(path)!r} is corrupt or truncated ({reason})")


def _parsed(path: Path, text: str) -> Info:
    """Return the contents in the metadata of a snapshot."""
    try:
        content = json.loads(text)
        version = content.get("format")
        if version != FORMAT:
            raise CaptureError(
                f"{str(path)!r} has capture format {version}; the supported format is {FORMAT}"
            )
        content["tensors"] = [Entry(**entry) for entry in content["tensors"]]
        info = Info(**content)
        if not _fits(info):
            raise TypeError
    except CaptureError:
        raise
    except DAMAGE:
        raise CaptureError(f"{str(path)!r} has qmaps metadata that cannot be read") from None
    return info


def _fits(info: Info) -> bool:
    """Return True if every part has the expected type; what is no dict has no `values`."""
    types = {"step": int, "optimizer": str, "skipped": list, "parameters": dict, "window": dict}
    return (
        all(type(getattr(info, name)) is expected for name, expected in types.items())
        and all(isinstance(e.parameter, str) and isinstance(e.state, str) for e in info.tensors)
        and all(entry.dtype in _CODES for entry in info.tensors)
        and all(isinstance(options, dict) for options in info.hyperparameters.values())
        and all(isinstance(x, (int, float)) for s in info.scalars.values() for x in s.values())
    )


def _order(tensors: Mapping[str, Lazy]) -> list[str]:
    """Return the names in the order of the file: wide dtypes first, so all are aligned."""
    return sorted(tensors, key=lambda name: -tensors[name].dtype.itemsize)


def _header(
    tensors: Mapping[str, Lazy], metadata: Mapping[str, str], sums: Mapping[str, str] | None = None
) -> bytes:
    """Return the bytes before the first tensor, with zeros in place of unknown checksums."""
    checked = checksums.with_checksums(
        metadata, sums or dict.fromkeys(tensors, "0" * checksums.DIGITS)
    )
    header: dict[str, Any] = {"__metadata__": checked}
    end = 0
    for name in _order(tensors):
        lazy = tensors[name]
        start, end = end, end + lazy.nbytes
        header[name] = {
            "dtype": DTYPES[lazy.dtype],
            "shape": list(lazy.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _bytes(lazy: Lazy) -> memoryview:
    tensor = lazy.read().detach()
    if (tuple(tensor.shape), tensor.dtype) != (lazy.shape, lazy.dtype):
        raise RuntimeError(
            f"expected a {lazy.dtype} tensor of shape {lazy.shape}, got {tensor.dtype} of shape "
            f"{tuple(tensor.shape)}"
        )
    plain = tensor.cpu().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().data
