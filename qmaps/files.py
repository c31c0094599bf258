"""Writing files so that an interruption leaves the old file or the new one, never half of one."""

from __future__ import annotations

import errno
import json
import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from qmaps.errors import OutputError


def output_folder(path: str | os.PathLike[str], parameter: str = "out") -> Path:
    """Create the folder `path`, prove that it can be written, and return it.

    Raises:
        OutputError: if it cannot be created or written; nothing is left behind.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(
            f"{parameter}={str(folder)!r} cannot be written ({reason}); give a writable folder"
        ) from None
    return folder


def output_file(path: str | os.PathLike[str], parameter: str = "out") -> Path:
    """Create the folder of `path`, prove that the file can be written, and return it.

    To be called before long work; what is at `path` stays as it is.

    Raises:
        OutputError: if it cannot be written; nothing but its folder is left behind.
    """
    target = Path(path)
    output_folder(target.parent, parameter)
    beside = _beside(target)
    try:
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        beside.touch()
        beside.unlink()
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(
            f"{parameter}={str(target)!r} cannot be written ({reason}); give a writable file"
        ) from None
    return target


def exists(path: Path) -> bool:
    """Whether there is something at `path`; False where the name is one that nothing can have."""
    try:
        return path.exists()
    except OSError:  # it is too long
        return False


def _beside(target: Path) -> Path:
    # The process id keeps two runs that share a folder from writing into one another's file.
    return target.with_name(f".{target.name}.{os.getpid()}.tmp")


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path beside `path`; rename it to `path` only if the block succeeds.

    Raises:
        OutputError: if the file cannot be written.
    """
    target = Path(path)
    temporary = _beside(target)
    try:
        yield temporary
        temporary.replace(target)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(f"{str(target)!r} cannot be written ({reason})") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    write_text(path, json_text(value, sort_keys=True) + "\n")


def json_text(value: Any, *, sort_keys: bool = False) -> str:
    """`value` as indented JSON that any reader takes: null for NaN and infinity.

    >>> print(json_text({"std": float("nan")}))
    {
      "std": null
    }
    """
    return json.dumps(_finite(value), indent=2, sort_keys=sort_keys, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(member) for name, member in value.items()}
    return [_finite(member) for member in value] if isinstance(value, (list, tuple)) else value


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` in UTF-8, atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
