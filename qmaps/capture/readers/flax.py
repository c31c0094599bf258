"""Flax: MessagePack files of ``flax.serialization``, read in place."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, ClassVar

from torch import Tensor

from qmaps.capture.readers.base import (
    TRANSPOSED,
    Reader,
    Span,
    StateDict,
    dtype_of,
    in_file,
    opened_spans,
)
from qmaps.capture.readers.optax import Keys, state_dicts_of
from qmaps.capture.snapshot import Lazy
from qmaps.errors import CaptureError
from qmaps.storage import kinds
from qmaps.storage.files import size_of

DEEPEST = 64
"""Containers in one another, at most."""

NDARRAY, SCALAR = 1, 3
"""Types of Flax's extensions: an array, and a number of NumPy."""

CHUNKED = "__msgpack_chunked_array__"
"""Key of a dict in place of an array of more than 2**30 bytes."""


class Flax(Reader):
    """A file of ``flax.serialization.to_bytes``, of a ``TrainState`` or of an optax state."""

    name: ClassVar[str] = "flax"
    writable: ClassVar[bool] = False
    note: ClassVar[str] = TRANSPOSED

    def is_here(self, path: Path) -> bool:
        """Return True for a file whose name ends with ``.msgpack``."""
        return path.name.endswith(".msgpack") and path.is_file()

    def newest(self, path: Path) -> Path | None:
        """Return the only file of this kind in a folder."""
        files = [*path.glob("*.msgpack")] if path.is_dir() else []
        return files[0] if len(files) == 1 else None

    def state_dicts(self, path: Path) -> list[StateDict]:
        """See `Reader.state_dicts`."""
        size = size_of(path)
        with path.open("rb") as file:
            tree = Unpacker(file, size).value()
            if not isinstance(tree, Mapping) or file.tell() != size:
                raise CaptureError(
                    kinds.refusal(path)
                    or f"{str(path)!r} must hold a dict in MessagePack, as Flax writes it"
                )
            leaves = dict(_leaves(file, size, path, (), tree))
        return state_dicts_of(leaves, path)


@dataclass(frozen=True)
class Bytes:
    """Bytes of a file that were not read; `kind` is the type of an extension."""

    offset: int
    length: int
    kind: int | None = None


class Unpacker:
    """Reads values of MessagePack; bytes and extensions stay in the file.

    Sizes are those of the file at most: every member of a container takes a byte or more.
    """

    def __init__(self, file: IO[bytes], end: int) -> None:
        self.file = file
        self.end = end

    def value(self, depth: int = DEEPEST) -> Any:
        """Read the next value; a ValueError for what MessagePack does not have."""
        (code,) = self._read(1)
        if code < 0x80:
            return code
        if code >= 0xE0:
            return code - 0x100
        if code < 0x90:
            return self._mapping(code & 0x0F, depth)
        if code < 0xA0:
            return self._list(code & 0x0F, depth)
        if code < 0xC0:
            return self._read(code & 0x1F).decode()
        if code in CONSTANTS:
            return CONSTANTS[code]
        if code in NUMBERS:
            return self._number(NUMBERS[code])
        if 0xD4 <= code <= 0xD8:
            return self._bytes(1 << (code - 0xD4), self._number("b"))
        kind, length = CONTAINERS[code][0], self._number(CONTAINERS[code][1])
        if kind == "str":
            return self._read(length).decode()
        if kind == "map":
            return self._mapping(length, depth)
        if kind == "array":
            return self._list(length, depth)
        return self._bytes(length, self._number("b") if kind == "ext" else None)

    def _read(self, length: int) -> bytes:
        if length > self.end - self.file.tell():
            raise ValueError("the file ends early")
        return self.file.read(length)

    def _number(self, code: str) -> Any:
        return struct.unpack(f">{code}", self._read(struct.calcsize(code)))[0]

    def _bytes(self, length: int, kind: int | None) -> Bytes:
        offset = self.file.tell()
        if length > self.end - offset:
            raise ValueError("the file ends early")
        self.file.seek(length, 1)
        return Bytes(offset, length, kind)

    def _list(self, length: int, depth: int) -> list[Any]:
        return [self.value(_deeper(depth)) for _ in range(length)]

    def _mapping(self, length: int, depth: int) -> dict[Any, Any]:
        return {str(self.value(_deeper(depth))): self.value(_deeper(depth)) for _ in range(length)}


CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
"""Values by their code."""

NUMBERS = dict(zip((0xCA, 0xCB, *range(0xCC, 0xD4)), "fdBHIQbhiq", strict=True))
"""Forms of numbers, as `struct` names them."""

CONTAINERS = {
    first + place: (kind, form)
    for first, kind, forms in (
        (0xC4, "bin", "BHI"),
        (0xC7, "ext", "BHI"),
        (0xD9, "str", "BHI"),
        (0xDC, "array", "HI"),
        (0xDE, "map", "HI"),
    )
    for place, form in enumerate(forms)
}
"""Kinds of values with a length, and the form of the length."""


def _deeper(depth: int) -> int:
    if not depth:
        raise ValueError(f"more than {DEEPEST} containers in one another")
    return depth - 1


def _leaves(
    file: IO[bytes], size: int, path: Path, keys: Keys, value: Any
) -> Iterator[tuple[Keys, Any]]:
    """Yield keys and value of each array and number."""
    if isinstance(value, Mapping) and value.get(CHUNKED):
        yield keys, _joined(file, path, keys, value)
    elif isinstance(value, Mapping):
        for key, member in value.items():
            yield from _leaves(file, size, path, (*keys, key), member)
    elif isinstance(value, Bytes) and value.kind in (NDARRAY, SCALAR):
        yield keys, _array(file, path, keys, value)
    elif isinstance(value, (int, float)):
        yield keys, value


def _array(file: IO[bytes], path: Path, keys: Keys, value: Bytes) -> Lazy:
    """The array of an extension: its shape, the name of its dtype, and its elements."""
    file.seek(value.offset)
    shape, name, content = Unpacker(file, value.offset + value.length).value()
    dtype = dtype_of(str(name), ".".join(keys), path)
    return in_file(path, content.offset, content.length, dtype, tuple(shape))


def _joined(file: IO[bytes], path: Path, keys: Keys, value: Mapping[str, Any]) -> Lazy:
    """The array of a dict of flat chunks."""
    chunks = [value["chunks"][str(number)] for number in range(len(value["chunks"]))]
    parts = [_array(file, path, keys, chunk) for chunk in chunks]
    shape = tuple(value["shape"][str(number)] for number in range(len(value["shape"])))
    spans: list[Span] = [(part, 0, math.prod(part.shape)) for part in parts]
    total = sum(numel for *_, numel in spans)
    if math.prod(shape) != total or len({part.dtype for part in parts}) != 1:
        raise ValueError(f"chunks of {total} elements are no tensor of shape {shape}")

    def read() -> Tensor:
        return opened_spans(spans)(0, total).view(shape)

    return Lazy(shape, parts[0].dtype, read, parts=partial(opened_spans, spans))
