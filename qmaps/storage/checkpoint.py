"""Checkpoint files written atomically and loaded without running code."""

from __future__ import annotations

import copy
import io
import mmap
import os
import pickle
import pickletools
import re
import tempfile
import threading
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, cast

import numpy as np
import torch
from torch import Tensor

from qmaps.errors import BadTypeError, BadValueError
from qmaps.storage import checksums, kinds
from qmaps.storage.files import IrregularFileError, replacing, size_of

__all__ = ["NeedsCodeError", "load", "save", "verify"]

Know = Callable[[Collection[str]], None]
"""What makes classes known to ``torch.load``, by their full names."""


class NeedsCodeError(BadValueError):
    """A file with an object of the class `name`, which would have to run code to load."""

    def __init__(self, path: str | os.PathLike[str], name: str) -> None:
        super().__init__(
            f"{str(path)!r} would have to run code to load ({name}); save the optimizer's "
            "state_dict() with plain tensors and numbers"
        )
        self.name = name


def save(state: Any, path: str | os.PathLike[str]) -> None:
    """Save `state` with ``torch.save``; a kill at any moment leaves the old file or the new one.

    A kill may leave a file ``.NAME.PID-HOST-NUMBER.tmp`` beside it. The next call for the same path
    on the same machine removes it.

    Args:
        state: tensors, numbers (NumPy's are saved as Python's), strings, and dicts and lists of
            them.
        path: the file; an existing one is replaced, or unchanged after an error. The target of a
            link is replaced, and the link stays.

    Raises:
        OutputError: the file cannot be written.
        BadTypeError: `state` has an object refused by `load`.
    """
    with replacing(path) as temporary, temporary.open("wb") as file:
        target = _Target(file)
        try:
            torch.save(_plain(state), cast(IO[bytes], target))  # it only writes and flushes
        except RuntimeError:
            if target.failed is None:
                raise
            raise target.failed from None
        file.flush()
        if refused := unknown_classes(temporary):
            raise BadTypeError(
                f"state must consist of tensors, numbers, strings, dicts and lists, got "
                f"{min(refused)}, which could not be loaded without running code"
            )
        os.fsync(file.fileno())


def _plain(value: Any) -> Any:
    """`value` with Python's numbers in place of NumPy's; the same object where it has none."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        pairs = [(_plain(key), _plain(member)) for key, member in value.items()]
        if all(k is key and m is value[key] for (k, m), key in zip(pairs, value, strict=True)):
            return value
        copied = copy.copy(value)  # with what else it has, such as a model's versions
        copied.clear()
        copied.update(pairs)
        return copied
    if type(value) in (list, tuple):
        members = [_plain(member) for member in value]
        same = all(new is old for new, old in zip(members, value, strict=True))
        return value if same else type(value)(members)
    return value


def load(
    path: str | os.PathLike[str],
    *,
    mmap: bool = False,
    verify_large: bool = True,
    stand_ins: Mapping[str, type] = MappingProxyType({}),
    know: Know | None = None,
) -> Any:
    """Load a file of `save` or ``torch.save``, with ``weights_only=True``.

    The checksums in the file are verified first, unlike in ``torch.load``. Files in torch's format
    from before 1.6 have none; neither have files written after
    ``torch.serialization.set_crc32_options(False)``. NumPy's numbers are loaded as Python's.

    Args:
        path: the file.
        mmap: whether to leave tensors on disk until they are read, in torch's format since 1.6.
        verify_large: whether the checksums of tensors of more than 256 KiB are verified, too. If
            not, call `verify` before such a tensor is used.
        stand_ins: classes of our own by the full names of the classes in the file they replace.
        know: called with the full names of classes in the file that ``torch.load`` does not know,
            if there are any; it may make some of them known.

    Raises:
        BadValueError: the file is missing, damaged, truncated, of another kind, or would run code.
    """
    with _reading(path):
        if size_of(Path(path)) == 0:
            raise BadValueError(f"{str(path)!r} is empty")
        archive = zipfile.is_zipfile(path)
        if archive:
            checksums.check_archive(Path(path), large=verify_large)
        if know is not None and (names := unknown_classes(path)):
            try:
                know(names)
            except BadValueError as error:
                raise BadValueError(f"{str(path)!r}: {error}") from None
        mapped = mmap and archive
        read = partial(torch.load, path, "cpu", weights_only=True, mmap=mapped)
        return _loaded(read, stand_ins)


def verify(path: str | os.PathLike[str]) -> None:
    """Verify all checksums of a file loaded by `load`; a BadValueError if it is damaged."""
    with _reading(path):
        if zipfile.is_zipfile(path):
            checksums.check_archive(Path(path))


@dataclass(frozen=True)
class Part:
    """Location of a stream of ``torch.save``: a file, its first byte in it, and number of bytes."""

    path: Path
    start: int
    length: int


def load_part(stream: Part, know: Know | None = None) -> Any:
    """Load a stream of ``torch.save`` inside a larger file, as `load` does, on the CPU."""
    with _reading(stream.path):
        with stream.path.open("rb") as file:
            file.seek(stream.start)
            content = file.read(stream.length)
        part = io.BytesIO(content)
        if zipfile.is_zipfile(part):
            checksums.check_archive(part)
        part.seek(0)
        if know is not None and (names := unknown_classes(part)):
            know(names)

        def read() -> Any:
            part.seek(0)
            return torch.load(part, map_location="cpu", weights_only=True)

        return _loaded(read)


def saved_as(path: Path) -> str:
    """Name without its ending under which ``torch.save`` wrote a file, also if it has been renamed.

    ``"archive"`` if it was written to a stream, empty in torch's format from before 1.6.
    """
    with _reading(path):
        if not zipfile.is_zipfile(path):
            return ""
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()[0].partition("/")[0]


def unknown_classes(path: str | os.PathLike[str] | IO[bytes]) -> list[str]:
    """Full names of the classes in a file refused by ``torch.load``; empty if it is unreadable."""
    try:
        return list(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    except MemoryError:
        raise
    except Exception:  # torch raises many kinds on damaged files
        return []


class _NumberType:
    """In place of ``numpy.dtype``: the type of one number."""

    def __init__(self, code: str, *_: Any) -> None:
        if code not in ("b1", "f2", "f4", "f8", *(f"{sign}{n}" for sign in "iu" for n in "1248")):
            raise pickle.UnpicklingError("GLOBAL numpy.dtype")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: Any) -> None:
        self.dtype = self.dtype.newbyteorder(state[1])


def _number(kind: _NumberType, content: bytes) -> Any:
    """Replacement of the function for NumPy's numbers."""
    return np.frombuffer(content, kind.dtype, count=1)[0].item()


NUMBERS: dict[str, Callable[..., Any]] = {
    "numpy.dtype": _NumberType,
    "numpy.core.multiarray.scalar": _number,  # before NumPy 2
    "numpy._core.multiarray.scalar": _number,
}


LOCK = threading.Lock()


def _loaded(load: Callable[[], Any], stand_ins: Mapping[str, type] = MappingProxyType({})) -> Any:
    """Call ``torch.load`` with `stand_ins` and `NUMBERS` allowed."""
    try:
        with torch.serialization.safe_globals([(kind, name) for name, kind in stand_ins.items()]):
            return load()
    except pickle.UnpicklingError as error:
        if "numpy" not in str(error):
            raise
    ours = {**NUMBERS, **stand_ins}
    with LOCK:
        before = torch.serialization.get_safe_globals()
        allowed: list[Any] = [entry for entry in before if _name_of(entry) not in ours]
        allowed += [(kind, name) for name, kind in ours.items()]
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(allowed)
        try:
            return load()
        finally:
            torch.serialization.clear_safe_globals()
            torch.serialization.add_safe_globals(before)


def _name_of(entry: Any) -> str:
    return entry[1] if isinstance(entry, tuple) else f"{entry.__module__}.{entry.__qualname__}"


@contextmanager
def _reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn torch's error on an unreadable file into one line."""
    shown = repr(str(path))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's advice on other kinds of file
            size_of(Path(path))  # a pipe would be waited for
            yield
    except (BadValueError, MemoryError):
        raise
    except (FileNotFoundError, PermissionError, IsADirectoryError, IrregularFileError) as error:
        raise BadValueError(f"{shown} cannot be read ({error.strerror})") from None
    except UnicodeEncodeError:
        raise BadValueError(f"{shown} cannot be read (torch needs a path in Unicode)") from None
    except Exception as error:  # torch raises many kinds on damaged files
        if other := kinds.refusal(Path(path)):
            raise BadValueError(other) from None
        refused = re.search(r"GLOBAL ([\w.]+)", str(error))
        if refused:
            raise NeedsCodeError(path, refused[1]) from None
        if "Unsupported operand 149" in str(error):  # frames, which all of them begin with
            raise BadValueError(
                f"{shown} was saved with pickle_protocol=4 or later, which torch.load does not "
                "read; save it without pickle_protocol"
            ) from None
        raise BadValueError(
            f"{shown} is not a checkpoint that torch can load; it is corrupt, truncated, or a file "
            "of another kind"
        ) from None


class _Target:
    """File for ``torch.save`` that remembers the exception of a failed write."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.failed: BaseException | None = None

    def write(self, data: bytes) -> int:
        try:
            return self._file.write(data)
        except BaseException as error:
            self.failed = error
            raise

    def flush(self) -> None:
        self._file.flush()


NUMBER_OPCODES = ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT")
"""Opcodes of numbers in a pickle."""


@contextmanager
def editing(paths: Iterable[Path]) -> Iterator[None]:
    """Within the block, writing to tensors mapped from these files writes to the files.

    Tensors are mapped by `load` with `mmap`, and files have no other writer. Their checksums are
    verified before the block, and made to fit after it. Files in torch's format from before 1.6 are
    refused, and all on Windows, where torch cannot do it.
    """
    before = torch.serialization.get_default_mmap_options()
    if before is None:
        raise BadValueError("checkpoints cannot be changed on Windows; use another system")
    files = list(paths)
    for path in files:
        verify(path)
        if not zipfile.is_zipfile(path):
            raise BadValueError(
                f"{str(path)!r} is not a zip archive, as torch.save writes since version 1.6"
            )
    torch.serialization.set_default_mmap_options(mmap.MAP_SHARED)
    try:
        yield
    finally:
        torch.serialization.set_default_mmap_options(before)
    for path in files:
        with path.open("r+b") as file:
            checksums.mend_archive(file)
            file.flush()
            os.fsync(file.fileno())


def put(part: Part, tensor: Tensor) -> None:
    """Replace the tensor, rounded to its dtype, in a stream of ``torch.save`` in a larger file."""
    with tempfile.TemporaryDirectory() as folder:
        stream = Path(folder, "stream")
        with part.path.open("rb") as file:
            file.seek(part.start)
            stream.write_bytes(file.read(part.length))
        with editing([stream]):
            stored = load(stream, mmap=True)
            if type(stored) is not Tensor or stored.shape != tensor.shape:
                kind, shape = type(stored).__name__, tuple(tensor.shape)
                raise BadValueError(
                    f"{str(part.path)!r} has {kind} at byte {part.start}; expected a tensor of "
                    f"shape {shape}"
                )
            stored.copy_(tensor)
        _write(part, stream.read_bytes())


def renumber(place: Path | Part, key: str, old: float, new: float) -> None:
    """Replace the number under a key of dicts in a file or a `Part`, where it is `old`.

    The new number is an integer where the old one is. The new pickle is appended to the archive of
    a file; that of a `Part`, whose length others know, gets the place of the old one.
    """
    if isinstance(place, Part):
        _renumber_within(place, key, old, new)
        return
    with zipfile.ZipFile(place, "a") as archive:
        (record,) = (entry for entry in archive.infolist() if entry.filename.endswith("/data.pkl"))
        content = archive.read(record)
        changed = _renumbered(content, key, old, new)
        if changed != content:
            archive.filelist.remove(record)
            del archive.NameToInfo[record.filename]
            archive.writestr(record.filename, changed)


def _renumber_within(part: Part, key: str, old: float, new: float) -> None:
    """Renumber a stream of ``torch.save``, whose records are not compressed, and keep its length.

    Larger numbers may need more bytes. A pickle can do without most of its PUT opcodes, and what
    follows its end is not read.
    """
    with part.path.open("rb") as file:
        file.seek(part.start)
        stream = io.BytesIO(file.read(part.length))
    with zipfile.ZipFile(stream) as archive:
        (record,) = (entry for entry in archive.infolist() if entry.filename.endswith("/data.pkl"))
        content = archive.read(record)
    changed = _renumbered(content, key, old, new)
    if changed == content:
        return
    if len(changed) > len(content):
        changed = pickletools.optimize(changed)
    if len(changed) > len(content):
        raise BadValueError(
            f"{str(part.path)!r} has no room for {key}={new:.0f} in place of {old:.0f}"
        )
    stream.seek(checksums.start_of(record, stream))
    stream.write(changed.ljust(len(content), b"\0"))
    checksums.mend_archive(stream)
    _write(part, stream.getvalue())


def _write(part: Part, content: bytes) -> None:
    with part.path.open("r+b") as file:
        file.seek(part.start)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _renumbered(content: bytes, key: str, old: float, new: float) -> bytes:
    steps = [*pickletools.genops(content)]
    ends = [position or 0 for _, _, position in steps[1:]] + [len(content)]
    texts: dict[Any, Any] = {}  # what the pickle remembers, where that is text
    last: Any = None
    changed = b""
    copied, matched = 0, False
    for (opcode, argument, position), end in zip(steps, ends, strict=True):
        if opcode.name == "FRAME":  # says how long what follows is, and may be left out
            changed += content[copied:position]
            copied = end
        elif "PUT" in opcode.name:
            texts[argument] = last
        elif opcode.name == "MEMOIZE":
            texts[len(texts)] = last
        elif "GET" in opcode.name:
            last = texts.get(argument)
        elif "UNICODE" in opcode.name:
            last = argument
        else:
            if last == key and opcode.name in NUMBER_OPCODES and argument == old:
                number = pickle.dumps(type(argument)(new), 2)[2:-1]  # no protocol, no end
                changed += content[copied:position] + number
                copied = end
                matched = True
            last = None
    return changed + content[copied:] if matched else content
