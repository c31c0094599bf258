"""Output of commands: tables, JSON, errors, progress."""

from __future__ import annotations

import io
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from qmaps.errors import one_line, printable
from qmaps.storage.files import json_text

if TYPE_CHECKING:
    import pandas as pd

NARROWEST, WIDTH = 20, 80
"""Characters of a line that are too few for a table, and those that it gets then."""


def prepare_terminal() -> None:
    """Give the help lines of the usual length, and let any output be written, also nowhere."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) < NARROWEST:
        os.environ["COLUMNS"] = str(WIDTH)
    os.environ["MPLBACKEND"] = "agg"  # figures go to files, whatever shows them elsewhere
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:  # it is closed; the first file opened would get its number
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
        elif isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
        with suppress(OSError):
            os.set_blocking(number, True)


def close_output() -> None:
    """Discard further output, also at exit, because nobody reads the pipe any more."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_error(message: str) -> None:
    """Print an error as one line on stderr."""
    errors.print(f"error: {one_line(message)}", soft_wrap=True)


def print_lines(*lines: object) -> None:
    """Print lines for readers; each stays on its line, whatever names are in it."""
    print(*(printable(str(line)) for line in lines), sep="\n")


def command_line(program: str = "qmaps") -> str:
    """Return this command as pages show it."""
    return printable(" ".join([program, *sys.argv[1:]]))


def print_json(value: Any) -> None:
    """Print `value` as strict JSON for scripts; NaN and infinity become null."""
    print(json_text(value))


def rows_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a frame for `print_json`, with every digit of its numbers."""
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def print_table(title: str, header: list[str], rows: list[list[str]]) -> None:
    """Print a table for readers, with numbers aligned to the right."""
    table = Table(title=Text(printable(title), "table.title"), title_justify="left")
    for index, name in enumerate(header):
        left = index == 0 or name in ("about", "frame")
        table.add_column(name, justify="left" if left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    _console().print(table)


def _console(**options: Any) -> Console:
    """Return a console that is wide enough for text, even if ``COLUMNS`` is 0."""
    found = Console(**options)
    if found.width < NARROWEST:
        found.width = WIDTH
    return found


errors = _console(stderr=True, markup=False, emoji=False, highlight=False)


EVERY = 10.0
"""Seconds between lines of progress where there is no terminal."""


class Lines:
    """Prints the latest progress every `EVERY` seconds, from a thread of its own."""

    def __init__(self) -> None:
        self._latest = ""
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._print, daemon=True)
        self._thread.start()

    def tell(self, stage: str, done: int, total: int, note: str) -> None:
        """Say how far a stage is."""
        self._latest = printable(f"{stage}: {done} of {total}{f', {note}' if note else ''}")

    def close(self) -> None:
        """Print no more."""
        self._end.set()
        self._thread.join()

    def _print(self) -> None:
        while not self._end.wait(EVERY):
            if self._latest:
                errors.print(self._latest, soft_wrap=True)


class Bars:
    """One progress bar per stage; nothing is shown before the first has begun."""

    def __init__(self, progress: Progress, lines: Lines | None = None) -> None:
        self.progress = progress
        self.lines = lines
        self.tasks: dict[str, TaskID] = {}

    def __call__(self, stage: str, done: int, total: int, note: str) -> None:
        """Update the progress of a stage; the first call shows the bars."""
        if self.lines is not None:
            self.lines.tell(stage, done, total, note)
        self.progress.start()
        if stage not in self.tasks:
            self.tasks[stage] = self.progress.add_task(printable(stage), total=total, note="")
        self.progress.update(self.tasks[stage], completed=done, total=total, note=printable(note))


@contextmanager
def progress(quiet: bool) -> Iterator[Bars]:
    """Progress on stderr: bars on a terminal, else lines; none where the output is for a script."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    lines = None if quiet or errors.is_terminal else Lines()
    bars = Bars(Progress(*columns, console=errors, disable=quiet), lines)
    try:
        yield bars
    finally:
        if lines is not None:
            lines.close()
        if bars.tasks:
            bars.progress.stop()
