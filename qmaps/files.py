"""Writing files so that an interruption leaves the old file or the new one, never half of one."""

from __future__ import annotations

import json
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


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path beside `path`; rename it to `path` only if the block succeeds.

    Raises:
        OutputError: if the file cannot be written.
    """
    target = Path(path)
    # The process id keeps two runs that share a folder from writing into one another's file.
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
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
    write_text(path, json.dumps(value, indent=2, sort_keys=True) + "\n")


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` in UTF-8, atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
