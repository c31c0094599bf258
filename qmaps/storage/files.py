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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qmaps.errors import OutputError
from qmaps.storage import checksums

if TYPE_CHECKING:
    import pandas as pd


HOST = f"{zlib.crc32(platform.node().encode()):08x}"
"""This machine in names of temporary files."""


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
    beside = _beside(target)
    with writable(target, "file"):
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        beside.touch()
        beside.unlink()
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
    """Number of bytes of a regular file; an OSError for pipes and devices."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return status.st_size


def content_of(path: Path, limit: float = math.inf) -> bytes:
    """The bytes of a regular file; an OSError if it has more than `limit`."""
    if size_of(path) > limit:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return path.read_bytes()


def _beside(target: Path) -> Path:
    # Process and machine keep two runs that share a folder from writing into one another's file.
    return target.with_name(f".{target.name}.{os.getpid()}-{HOST}.tmp")


def remove_leftovers(target: Path) -> None:
    """Remove the temporary files of `replacing` for this path whose processes were killed.

    Those of other machines stay: whether their processes are alive is not known here.
    """
    name = re.compile(rf"\.{re.escape(target.name)}\.([0-9]{{1,9}})-{HOST}\.tmp")
    with suppress(OSError):  # of a folder that cannot be read
        for path in target.parent.iterdir():
            if (match := name.fullmatch(path.name)) and not _runs(int(match[1])):
                path.unlink(missing_ok=True)


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
    """Yield a temporary path beside `path`, and rename it to `path` if the block succeeds.

    Failures are an OutputError.
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
        content = Path(path).read_bytes()
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
        content = Path(path).read_bytes()
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
