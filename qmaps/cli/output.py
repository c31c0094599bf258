"""Output of commands: tables, JSON, errors, progress."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from qmaps.errors import one_line, printable
from qmaps.storage import units
from qmaps.storage.files import json_text, records

if TYPE_CHECKING:
    import pandas as pd
    from rich import progress as rich_progress


LEFT = ("about", "became", "frame", "how", "state", "verdict", "was")
"""Columns of text, aligned to the left."""
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


def announce() -> None:
    """Say on a terminal that torch is being imported, which takes seconds."""
    if errors.is_terminal and "torch" not in sys.modules:
        errors.print("importing torch ...", style="dim")


def print_error(message: str) -> None:
    """Print an error as one line on stderr."""
    errors.print(f"error: {one_line(message)}", soft_wrap=True)


def print_lines(*lines: object) -> None:
    """Print lines for readers; each stays on its line, whatever names are in it."""
    print(*(printable(str(line)) for line in lines), sep="\n")


def print_text(*paragraphs: str) -> None:
    """Print prose, each paragraph in lines of the usual length."""
    for text in paragraphs:
        lines = wrap(printable(text), WIDTH, break_long_words=False, break_on_hyphens=False)
        print(*lines, sep="\n")


def command_line(program: str = "qmaps") -> str:
    """Return this command as pages show it."""
    return printable(" ".join([program, *sys.argv[1:]]))


def print_json(value: Any) -> None:
    """Print `value` as strict JSON for scripts; NaN and infinity become null."""
    print(json_text(value))


def print_result(as_json: bool, value: Any, *lines: object) -> None:
    """Print `value` for scripts if `as_json`, else lines for readers."""
    if as_json:
        print_json(value)
    else:
        print_lines(*lines)


def print_rows(title: str, columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Print rows as a table for readers, with numbers aligned to the right.

    `columns` have the format of each column's cells by its title, such as ``"{mean:.2f}"``.
    """
    table = RichTable(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
    )
    for index, name in enumerate(columns):
        is_left = index == 0 or name in LEFT
        table.add_column(name, justify="left" if is_left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(form.format_map(row))) for form in columns.values()))
    console = _console()
    console.print(Text(printable(title), "bold"), soft_wrap=True)
    console.print(table)


def _console(**options: Any) -> Console:
    """Return a console wide enough for text, even if ``COLUMNS`` is 0."""
    console = Console(**options)
    if console.width < NARROWEST:
        console.width = WIDTH
    return console


errors = _console(stderr=True, markup=False, emoji=False, highlight=False)


class Bars:
    """One progress bar per stage; nothing is shown before the first has begun."""

    def __init__(self, progress: rich_progress.Progress) -> None:
        self.progress = progress
        self.tasks: dict[str, rich_progress.TaskID] = {}

    def stage(self, name: str) -> Callable[[int, int, str], None]:
        """Return a callback for one stage."""
        return partial(self, name)

    def __call__(self, stage: str, done: int, total: int, note: str) -> None:
        """Update the progress of a stage; the first call shows the bars."""
        self.progress.start()
        if stage not in self.tasks:
            self.tasks[stage] = self.progress.add_task(printable(stage), total=total, note="")
        self.progress.update(self.tasks[stage], completed=done, total=total, note=printable(note))


@contextmanager
def progress(quiet: bool) -> Iterator[Bars]:
    """Bars on stderr; none where the output is for a script."""
    from rich import progress as rich_progress

    columns = (
        rich_progress.TextColumn("{task.description}", markup=False),
        rich_progress.BarColumn(),
        rich_progress.MofNCompleteColumn(),
        rich_progress.TimeRemainingColumn(),
        rich_progress.TextColumn("{task.fields[note]}", markup=False),
    )
    bars = Bars(rich_progress.Progress(*columns, console=errors, disable=quiet))
    try:
        yield bars
    finally:
        if bars.tasks:
            bars.progress.stop()


def label(row: Mapping[str, Any]) -> str:
    """A pair of quantizers with its preset, and a mark if it only serves to compare."""
    preset = row.get("preset")
    marks = f" ({preset})" * bool(preset) + " (diagnostic)" * bool(row.get("diagnostic"))
    return f"{row['quantizer']}{marks}"


def labelled(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows with their `label`, and their width as text in both units.

    They are bits of a state element, and bytes of a parameter with two states, as those of Adam.
    """
    return [
        {
            **row,
            "label": label(row),
            "bits": units.bits(row["bits_per_element"]),
            "bytes": f"{row['bits_per_element'] / 4 + units.HALF:.2f}",
        }
        for row in rows
    ]


def by_width(
    frame: pd.DataFrame, *, before: str = "", top: int | None = None
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield title and rows of a table for each width.

    Args:
        frame: rows of quantizers with `bits_per_element`, each width's rows in their order; the
            rows of tables also have their `label`, and `bits` and `bytes` as text.
        before: beginning of the titles.
        top: most rows of a width; None for all.
    """
    from qmaps.analyze.limits import LIMITS, up_to

    for limit, every in frame.groupby(frame["bits_per_element"].map(up_to)):
        wider = f"more than {LIMITS[-1]:g} bits per state element"
        title = f"up to {limit:g} bits per state element" if limit in LIMITS else wider
        rows = every.head(top or len(every))
        if top is not None:
            title += f", {len(rows)} of {len(every)}"
        yield f"{before}{title}", labelled(records(rows))
