"""What commands print: tables, JSON, errors, progress."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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

errors = Console(stderr=True)


def print_error(message: str) -> None:
    """One line on stderr."""
    errors.print(f"error: {message}", markup=False, highlight=False, soft_wrap=True)


def command_line() -> str:
    """This command, as pages show it."""
    return " ".join(["qmaps", *sys.argv[1:]])


def print_json(value: Any) -> None:
    """For scripts."""
    print(json.dumps(value, indent=2))


def print_table(title: str, header: list[str], rows: list[list[str]]) -> None:
    """For readers; numbers to the right."""
    table = Table(title=title, title_justify="left")
    for index, name in enumerate(header):
        table.add_column(name, justify="left" if index == 0 or name == "about" else "right")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


class Bars:
    """One progress bar per stage; nothing is shown before the first has begun."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.tasks: dict[str, TaskID] = {}

    def __call__(self, stage: str, done: int, total: int, note: str) -> None:
        """How far a stage is; the first call shows the bars."""
        self.progress.start()
        if stage not in self.tasks:
            self.tasks[stage] = self.progress.add_task(stage, total=total, note="")
        self.progress.update(self.tasks[stage], completed=done, total=total, note=note)


@contextmanager
def progress(quiet: bool) -> Iterator[Bars]:
    """Progress bars on stderr; none where the output is for a script."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    bars = Bars(Progress(*columns, console=errors, disable=quiet))
    try:
        yield bars
    finally:
        if bars.tasks:
            bars.progress.stop()
