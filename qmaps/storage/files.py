"""Atomic writes: an interruption leaves the old file or the new one, never a part of one."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import platform
import re
import stat
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qmaps.errors import OutputError
from qmaps.storage import checksums

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    import pandas as pd


HOST = f"{zlib.crc32(platform.node().encode()):08x}"
"""This machine in names of temporary files."""

_NUMBERS = count()


class IrregularFileError(OSError):
    """A pipe, a device, or anything else that is not a file with content of its own."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.EINVAL, "it is not a regular file", str(path))


def output_folder(path: str | os.PathLike[str], parameter: str = "out") -> Path:
    """Create the folder `path` with its parents, check its write access, and return it."""
    folder = Path(path)
    with writable(folder, "folder", parameter):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    return folder


def output_file(path: str | os.PathLike[str]) -> Path:
    """Create the folder of `path`, check write access before long work, and return the path."""
    target = Path(path)
    output_folder(target.parent)
    with writable(target, "file"), _temporary(_replaceable(target)) as temporary:
        temporary.unlink()
    return target


@contextmanager
def writable(path: Path, kind: str, parameter: str = "out") -> Iterator[None]:
    """Turn the system's error within the block into one about an argument."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(
            f"{parameter}={str(path)!r} cannot be written ({reason}); give a writable {kind}"
        ) from None


def exists(path: Path) -> bool:
    """Return True if there is something at `path`; False for an invalid file name."""
    try:
        return path.exists()
    except OSError:  # the name is too long
        return False


def size_of(path: Path) -> int:
    """Number of bytes of a regular file; an OSError for folders, pipes and devices."""
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise IrregularFileError(path)
    return status.st_size


def content_of(path: Path, limit: float = math.inf) -> bytes:
    """The bytes of a regular file; an OSError if it has more than `limit`."""
    if size_of(path) > limit:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return path.read_bytes()


def _replaceable(path: Path) -> Path:
    """The file that `path` names, behind links; it may be missing.

    Raises:
        OSError: a folder, a pipe, a device or the like is there, or links lead in a circle.
    """
    with suppress(FileNotFoundError):
        size_of(path)
    return Path(os.path.realpath(path)) if path.is_symlink() else path


@contextmanager
def _temporary(target: Path) -> Iterator[Path]:
    """Create an empty file beside `target`; it is locked, and removed if the block fails.

    The lock ends with the process. It shows `remove_leftovers` which files are being written, by
    processes of other containers, too.
    """
    while True:
        path = target.with_name(f".{target.name}.{os.getpid()}-{HOST}-{next(_NUMBERS)}.tmp")
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            continue
        locked = _lock(file)
        if locked is None:  # Windows renames no open file
            os.close(file)
        # Another process may have removed the file between the two calls.
        elif not locked or not os.fstat(file).st_nlink:
            os.close(file)
            continue
        try:
            yield path
        except BaseException:  # after a rename, another process may use the path
            with suppress(OSError):
                path.unlink()
            raise
        finally:
            if locked:
                os.close(file)
        return


def _lock(file: int) -> bool | None:
    """Lock an open file; False if it is locked already, None where there are no locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def remove_leftovers(target: Path) -> None:
    """Remove the temporary files of `replacing` for this path whose processes were killed.

    Those of other machines stay: whether their processes are alive is not known here.
    """
    name = re.compile(rf"\.{re.escape(target.name)}\.([0-9]{{1,9}})-{HOST}(?:-[0-9]+)?\.tmp")
    with suppress(OSError):  # of a folder that cannot be read
        for path in target.parent.iterdir():
            if match := name.fullmatch(path.name):
                with suppress(OSError):  # it is gone by now, or another user's
                    _remove_unlocked(path, int(match[1]))


def _remove_unlocked(path: Path, process: int) -> None:
    """Remove a temporary file, if no process is writing it."""
    own = process == os.getpid()  # that of a killed process which had the same number
    if not own and _runs(process):
        return
    file = os.open(path, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0))
    try:
        locked = _lock(file)
        if locked or (locked is None and not own):
            path.unlink()
    finally:
        os.close(file)


def _runs(process: int) -> bool:
    """Return True if a process of this machine runs, or may run."""
    try:
        if os.name == "posix":  # elsewhere it would end the process
            os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        pass
    return True


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield the path of a temporary file, and rename it to `path` if the block succeeds.

    A link at `path` stays, and the file that it leads to is replaced. Temporary files that killed
    processes of this machine have left for the same file are removed first.

    Raises:
        OutputError: the file cannot be written, or `path` is a folder, a pipe or a device.
    """
    try:
        target = _replaceable(Path(path))
        remove_leftovers(target)
        with _temporary(target) as temporary:
            yield temporary
            temporary.replace(target)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(f"{str(path)!r} cannot be written ({reason})") from error


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    write_text(path, json_text(value, sort_keys=True) + "\n")


def json_text(value: Any, *, sort_keys: bool = False) -> str:
    """`value` as indented standard JSON: null for NaN and infinity."""
    return json.dumps(_finite(value), indent=2, sort_keys=sort_keys, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(member) for name, member in value.items()}
    return [_finite(member) for member in value] if isinstance(value, (list, tuple)) else value


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` in UTF-8, atomically; characters invalid in UTF-8 are escaped."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_record(path: str | os.PathLike[str], value: dict[str, Any]) -> None:
    """Write a dict as JSON like `write_json`, with a checksum for `read_record`."""
    text = json_text({**value, "checksum": checksums.UNSEALED}, sort_keys=True) + "\n"
    content = checksums.sealed(text.encode())
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def read_record(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a dict of `write_record`, or of `write_json` by earlier versions."""
    try:
        content = content_of(Path(path))
        value = json.loads(content)
        fits = checksums.intact(content)
        if not isinstance(value, dict) or fits is False or (fits is None and "checksum" in value):
            raise ValueError
    except (OSError, ValueError, RecursionError):
        raise _damaged(path) from None
    return {name: member for name, member in value.items() if name != "checksum"}


def claim(path: Path, identity: dict[str, Any], content: str) -> bool:
    """Record the identity of a folder's content in a file; return True if it was recorded already.

    Raises:
        OutputError: the folder holds other `content`, such as ``frames of other states``, or the
            record is damaged.
    """
    if not exists(path):
        write_record(path, identity)
        return False
    try:
        written = read_record(path)
    except OutputError:
        raise OutputError(
            f"out={str(path.parent)!r} has a damaged {path.name}; delete the folder or give "
            "another one"
        ) from None
    if written != json.loads(json_text(identity)):
        raise OutputError(
            f"out={str(path.parent)!r} holds {content}; delete the folder or give another one"
        )
    return True


def write_frame(path: str | os.PathLike[str], frame: pd.DataFrame) -> None:
    """Write a frame as Parquet without its index, atomically and with a checksum."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pandas(frame, preserve_index=False)
    metadata = {**(table.schema.metadata or {}), "checksum": checksums.UNSEALED}
    content = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata(metadata), content)
    with replacing(path) as temporary:
        temporary.write_bytes(checksums.sealed(content.getvalue().to_pybytes()))


def earlier_frame(path: Path) -> pd.DataFrame | None:
    """Read a frame of an earlier call; None if there is none, a damaged one, or no checksum."""
    try:
        return read_frame(path, must_be_sealed=True) if path.exists() else None
    except OutputError:
        return None


def read_frame(path: str | os.PathLike[str], *, must_be_sealed: bool = False) -> pd.DataFrame:
    """Read a frame from Parquet; one without a checksum is refused if it `must_be_sealed`."""
    import pandas as pd

    try:
        content = content_of(Path(path))
        fits = checksums.intact(content)
        if fits is False or (fits is None and must_be_sealed):
            raise _damaged(path)
        return pd.read_parquet(io.BytesIO(content))
    except (OutputError, MemoryError):
        raise
    except Exception:  # pyarrow and pandas raise many kinds on damaged files
        raise _damaged(path) from None


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a frame as dicts by column."""
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def _damaged(path: str | os.PathLike[str]) -> OutputError:
    return OutputError(f"{str(path)!r} is missing or damaged; delete it, and it will be made again")
