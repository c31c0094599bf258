"""Changing the tensors of checkpoint files in place; everything else in them stays as it is.

A file's pickle names classes of other packages, not imported here, so it could not be written
again. So no file is made anew: the bytes of tensors are replaced in a copy.
"""

from __future__ import annotations

import mmap
import os
import pickle
import pickletools
import shutil
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qmaps.errors import BadValueError
from qmaps.storage import checkpoint, checksums

NUMBERS = ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT")
"""Opcodes of numbers in a pickle."""


@contextmanager
def editing(paths: Iterable[Path]) -> Iterator[None]:
    """Within the block, writing to tensors mapped from these files writes to the files.

    Tensors are mapped by `checkpoint.load` with `mmap`. The files' checksums are verified
    before the block, and made to fit after it. Files are on disk then.

    Args:
        paths: files of ``torch.save`` without another writer.

    Raises:
        BadValueError: a file is damaged or in torch's format from before 1.6, or the system is
            Windows, where torch cannot do it.
    """
    before = torch.serialization.get_default_mmap_options()
    if before is None:
        raise BadValueError("checkpoints cannot be changed on Windows; use another system")
    files = list(paths)
    for path in files:
        checkpoint.verify(path)
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


def put(path: Path, start: int, length: int, tensor: Tensor) -> None:
    """Replace the tensor in a stream of ``torch.save`` inside a larger file.

    Args:
        path: the file.
        start: where the stream begins.
        length: bytes of the stream.
        tensor: of the shape of the stored one; it is rounded to its dtype.

    Raises:
        BadValueError: the stream is damaged, or holds something else than such a tensor.
    """
    with tempfile.TemporaryDirectory() as folder:
        stream = Path(folder, "stream")
        with path.open("rb") as file, stream.open("wb") as copy:
            file.seek(start)
            copy.write(file.read(length))
        with editing([stream]):
            stored = checkpoint.load(stream, mmap=True)
            if type(stored) is not Tensor or stored.shape != tensor.shape:
                raise BadValueError(
                    f"{str(path)!r} has {type(stored).__name__} at byte {start}; expected a tensor "
                    f"of shape {tuple(tensor.shape)}"
                )
            stored.copy_(tensor)
        with path.open("r+b") as file, stream.open("rb") as changed:
            file.seek(start)
            shutil.copyfileobj(changed, file)
            file.flush()
            os.fsync(file.fileno())


def renumber(path: Path, key: str, old: float, new: float) -> None:
    """Replace the number under a key of dicts in a file of ``torch.save``.

    The new pickle is appended to the archive, and its directory entry replaced.

    Args:
        path: the file.
        key: the key, in whatever dicts.
        old: the number there; entries with another value stay.
        new: the number to put in its place, as an integer where the old one is.

    Raises:
        zipfile.BadZipFile: the file is damaged.
    """
    with zipfile.ZipFile(path, "a") as archive:
        (record,) = (entry for entry in archive.infolist() if entry.filename.endswith("/data.pkl"))
        content = archive.read(record)
        changed = _renumbered(content, key, old, new)
        if changed != content:
            archive.filelist.remove(record)
            del archive.NameToInfo[record.filename]
            archive.writestr(record.filename, changed)


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
            if last == key and opcode.name in NUMBERS and argument == old:
                number = pickle.dumps(type(argument)(new), 2)[2:-1]  # no protocol, no end
                changed += content[copied:position] + number
                copied = end
                matched = True
            last = None
    return changed + content[copied:] if matched else content
