"""One writer to a folder at a time.

Readers take no lock: files appear whole or not at all.
"""

from __future__ import annotations

import atexit
import errno
import gc
import os
import shutil
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Self

from filelock import BaseFileLock, FileLock, Timeout

from qmaps.errors import OutputError
from qmaps.storage.files import output_folder

PATIENCE = 1.0
"""Seconds to wait for a writer that may be about to end."""

UNSUPPORTED = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}
"""Error numbers by which a file system says that it has no locks."""


class FolderLock:
    """The right to write to a folder, until `release` or the end of the process.

    The lock is the operating system's, on a hidden file removed at the end. So the file of a killed
    process does not block. A child process forked from the holder does not hold the lock. Where the
    file system has no locks, any number of writers hold it, and `exclusive` is False. Writers of
    different kinds, such as ``"capture"``, do not exclude each other.

    Raises:
        OutputError: the folder cannot be written, or another writer holds the lock.
    """

    def __init__(self, out: str | os.PathLike[str], kind: str) -> None:
        self.folder = output_folder(out)
        file = self.folder / f".{kind}.lock"
        self._process = os.getpid()
        # A recorder may be closed by another thread than the one that made it.
        lock = FileLock(file, thread_local=False)
        self.exclusive = self._acquire(lock)
        self._release = weakref.finalize(self, _release_file, lock, _identity(file), self._process)
        self._release.atexit = False  # `filelock` has released by then, and the file would stay
        _HELD.add(self)
        _release_at_exit()

    @property
    def inherited(self) -> bool:
        """True if this is a forked child's copy of its parent's lock."""
        return os.getpid() != self._process

    def release(self) -> None:
        """Release the lock; releasing twice is allowed."""
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def _acquire(self, lock: BaseFileLock) -> bool:
        """Return True if the lock is held now; False where the file system has none."""
        try:
            try:
                lock.acquire(timeout=0)
            except Timeout:
                gc.collect()  # the holder may be an unreachable recorder of this process
                lock.acquire(timeout=PATIENCE)
        except Timeout:
            raise OutputError(
                f"out={str(self.folder)!r} is being written; close that recorder, wait until that "
                "process has ended, or give another folder"
            ) from None
        except NotImplementedError:
            return False
        except OSError as error:
            if error.errno in UNSUPPORTED:
                return False
            reason = error.strerror or str(error)
            raise OutputError(
                f"out={str(self.folder)!r} cannot be locked ({reason}); give another folder"
            ) from None
        return True


@contextmanager
def new_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield an empty folder, and rename it to `path` if the block succeeds.

    Until then it is in the hidden folder ``.NAME.tmp`` beside `path`. If the process is killed, the
    hidden folder stays, and the next call for the same path removes it.
    """
    target = Path(path)
    hidden = target.with_name(f".{target.name}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FolderLock(hidden, "new"):
            new = hidden / "new"
            try:
                shutil.rmtree(new, ignore_errors=True)
                new.mkdir()
                yield new
                new.rename(target)
            finally:
                shutil.rmtree(new, ignore_errors=True)
    except OSError as error:
        raise OutputError(f"{str(target)!r} cannot be written ({error.strerror})") from error
    finally:
        with suppress(OSError):  # another process writes there
            hidden.rmdir()


_HELD: weakref.WeakSet[FolderLock] = weakref.WeakSet()


@cache
def _release_at_exit() -> None:
    """Release locks when the process ends, before `filelock` does, which registers at its first."""
    atexit.register(_release_all)


def _release_all() -> None:
    for lock in list(_HELD):
        lock.release()


def _identity(file: Path) -> tuple[int, int] | None:
    """Identify a file among files of the same name; None if there is no file."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _release_file(lock: BaseFileLock, identity: tuple[int, int] | None, process: int) -> None:
    """Release a lock taken by `process`, and remove its file."""
    if os.getpid() != process or not lock.is_locked:
        return
    file = Path(lock.lock_file)
    # Unless the folder was deleted and the file now belongs to another writer.
    if identity is not None and _identity(file) == identity:
        with suppress(OSError):
            # While it is held: who opened it meanwhile sees that it is gone (`filelock` looks).
            file.unlink()
    lock.release()
