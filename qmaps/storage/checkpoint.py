"""Checkpoint files that appear whole or not at all, and load without running code."""

from __future__ import annotations

import io
import os
import re
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, cast

import torch

from qmaps.errors import BadValueError
from qmaps.storage import checksums
from qmaps.storage.files import replacing


def save(state: Any, path: str | os.PathLike[str]) -> None:
    """Save `state` with ``torch.save``; a kill at any moment leaves the old file or the new one.

    The new file is on disk before it replaces the old one. A kill leaves a file
    ``.NAME.PID.tmp`` beside it, which may be deleted.

    Args:
        state: tensors, numbers, strings, and dicts and lists of them, such as state_dicts.
        path: the file; an existing one is replaced.

    Raises:
        OutputError: the file cannot be written; an old one is unchanged.
    """
    with replacing(path) as temporary, temporary.open("wb") as file:
        target = _Target(file)
        try:
            torch.save(state, cast(IO[bytes], target))  # it only writes and flushes
        except RuntimeError:
            if target.failed is None:
                raise
            raise target.failed from None
        file.flush()
        os.fsync(file.fileno())


def load(
    path: str | os.PathLike[str],
    *,
    map_location: str | torch.device = "cpu",
    mmap: bool = False,
    verify_large: bool = True,
    stand_ins: Mapping[str, type] = MappingProxyType({}),
) -> Any:
    """Load a file of `save` or ``torch.save``, with ``weights_only=True``.

    The checksums in the file are verified first, which ``torch.load`` does not do. Files in torch's
    format from before 1.6 have none; neither have files that were written after
    ``torch.serialization.set_crc32_options(False)``.

    Args:
        path: the file.
        map_location: the device of the tensors, as in ``torch.load``.
        mmap: whether to leave tensors on disk until they are read; it is ignored for torch's format
            from before 1.6. The checksums still take one pass over the file.
        verify_large: whether the checksums of tensors of more than 256 KiB are verified, too. If
            not, call `verify` before such a tensor is used.
        stand_ins: classes of our own by the full names of those in the file that they are loaded
            in place of.

    Returns:
        What was saved.

    Raises:
        BadValueError: the file is missing, damaged, truncated, of another kind, or would run code.
    """
    with _reading(path):
        if Path(path).stat().st_size == 0:
            raise BadValueError(f"{str(path)!r} is empty")
        archive = zipfile.is_zipfile(path)
        if archive:
            checksums.check_archive(Path(path), large=verify_large)
        with torch.serialization.safe_globals([(kind, name) for name, kind in stand_ins.items()]):
            return torch.load(
                path, map_location=map_location, weights_only=True, mmap=mmap and archive
            )


def verify(path: str | os.PathLike[str]) -> None:
    """Verify all checksums of a file that `load` has loaded.

    Raises:
        BadValueError: the file is damaged.
    """
    with _reading(path):
        if zipfile.is_zipfile(path):
            checksums.check_archive(Path(path))


def load_part(
    path: str | os.PathLike[str],
    offset: int,
    length: int,
    *,
    know: Callable[[Collection[str]], None] | None = None,
) -> Any:
    """Load a stream of ``torch.save`` that is part of a larger file, as `load` does.

    Args:
        path: the file.
        offset: where the stream begins.
        length: bytes of the stream.
        know: called with the full names of classes in the stream that ``torch.load`` does not
            know, if there are any; it may make some of them known.

    Returns:
        What was saved, on the CPU.

    Raises:
        BadValueError: as `load`, or the file ends before the stream does.
    """
    with _reading(path):
        with Path(path).open("rb") as file:
            file.seek(offset)
            content = file.read(length)
        part = io.BytesIO(content)
        if zipfile.is_zipfile(part):
            checksums.check_archive(part)
        part.seek(0)
        if know is not None and (names := unknown_classes(part)):
            know(names)
        part.seek(0)
        return torch.load(part, map_location="cpu", weights_only=True)


def unknown_classes(path: str | os.PathLike[str] | IO[bytes]) -> list[str]:
    """Full names of the classes in a file that ``torch.load`` refuses; nothing is loaded.

    It is empty for a file that cannot be read: loading says why.
    """
    try:
        return list(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    except Exception:  # torch raises many kinds on damaged files
        return []


@contextmanager
def _reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn what torch raises on a file that it cannot load into one line."""
    shown = repr(str(path))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's advice on other kinds of file
            yield
    except BadValueError:
        raise
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        raise BadValueError(f"{shown} cannot be read ({error.strerror})") from None
    except UnicodeEncodeError:
        raise BadValueError(f"{shown} cannot be read (torch needs a path in Unicode)") from None
    except Exception as error:  # torch raises many kinds on damaged files
        refused = re.search(r"GLOBAL ([\w.]+)", str(error))
        if refused:
            raise BadValueError(
                f"{shown} would have to run code to load ({refused[1]}); save the optimizer's "
                "state_dict() with plain tensors and numbers"
            ) from None
        raise BadValueError(
            f"{shown} is not a checkpoint that torch can load; it is corrupt, truncated, or a file "
            "of another kind"
        ) from None


class _Target:
    """A file for ``torch.save``, which reports a failed write only as a wrong position.

    Attributes:
        failed: the exception that the write itself raised.
    """

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
