"""A CSV file that grows by whole steps, also over several runs."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Sequence
from typing import Any

from qmaps.errors import OutputError
from qmaps.storage.files import output_file
from qmaps.storage.locks import FolderLock


class CsvFile:
    """Appends the rows of a step in one write, so that a killed run leaves whole rows.

    A file that exists is continued. A step that it has is not written again.

    Args:
        path: the file; it is created with the first rows.
        columns: names of the columns, of which the first is ``step``.

    Raises:
        OutputError: the file cannot be written, is something else, or has another writer.

    Attributes:
        last: the last step that the file has; 0 if it has none.
    """

    def __init__(self, path: str | os.PathLike[str], columns: Sequence[str]) -> None:
        self.path = output_file(path)
        self._columns = tuple(columns)
        # A lock for each file: other writers use the folder, too.
        self._lock = FolderLock(self.path.parent, self.path.name)
        try:
            self.last = self._read()
        except BaseException:
            self._lock.release()
            raise

    @property
    def inherited(self) -> bool:
        """Whether this is a forked child's copy, which must not write."""
        return self._lock.inherited

    def close(self) -> None:
        """Let others write the file; closing twice is allowed."""
        self._lock.release()

    def append(self, rows: Iterable[dict[str, Any]], step: int) -> None:
        """Write the rows of a step that the file does not have yet.

        Raises:
            OSError: they cannot be written; the file is as before.
        """
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns, lineterminator="\n")
        with self.path.open("ab", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            if size == 0:
                writer.writeheader()
            writer.writerows({"step": step, **row} for row in rows)
            content = text.getvalue().encode()
            try:
                if file.write(content) != len(content):
                    raise OSError("the disk is full")
            except OSError:
                file.truncate(size)
                raise
        self.last = step

    def _read(self) -> int:
        """The last step of the file; a row that was cut off is removed."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise OutputError(
                f"out={str(self.path)!r} cannot be read ({error.strerror}); give another file"
            ) from None
        header = ",".join(self._columns)
        if header.encode().startswith(content):  # empty, or cut off within the header
            os.truncate(self.path, 0)
            return 0
        whole = content[: content.rfind(b"\n") + 1]
        lines = whole.decode(errors="replace").splitlines()
        if (lines[0] if lines else "") != header:
            raise OutputError(
                f"out={str(self.path)!r} exists and is no file of a monitor with these columns; "
                "give another file"
            )
        if len(whole) < len(content):
            os.truncate(self.path, len(whole))
        return self._step_of(lines[-1]) if len(lines) > 1 else 0

    def _step_of(self, line: str) -> int:
        try:
            return int(line.partition(",")[0])
        except ValueError:
            raise OutputError(
                f"out={str(self.path)!r} is damaged: its last row has no step; give another file"
            ) from None
