"""Tables of commands, for the terminal and as Markdown files with where they come from."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qmaps.cli.output import command_line, print_table
from qmaps.storage.files import write_text
from qmaps.storage.markdown import table as markdown_table

if TYPE_CHECKING:
    import pandas as pd

    from qmaps.capture import CapturedStates


@dataclass(frozen=True)
class Table:
    """A table of texts.

    Attributes:
        title: what stands above it.
        header: title of each column.
        rows: the cells of each row.
    """

    title: str
    header: list[str]
    rows: list[list[str]]

    def show(self) -> None:
        """Print the table."""
        print_table(self.title, self.header, self.rows)

    def markdown(self) -> list[str]:
        """The lines of a section in Markdown."""
        return [f"## {self.title}", "", *markdown_table(self.header, self.rows), ""]


def label(row: Mapping[str, Any]) -> str:
    """A pair of quantizers with the preset that it is, and whether it only serves to compare."""
    preset = f" ({row['preset']})" * bool(row.get("preset"))
    return f"{row['quantizer']}{preset}{' (diagnostic)' * bool(row.get('diagnostic'))}"


def by_width(
    frame: pd.DataFrame,
    header: Sequence[str],
    cells: Callable[[Mapping[str, Any]], list[str]],
    *,
    before: str = "",
    top: int | None = None,
) -> list[Table]:
    """A table for each width.

    Args:
        frame: rows of quantizers with `bits_per_element`, each width's rows in their order.
        header: title of each column.
        cells: the cells of a row.
        before: what the titles begin with.
        top: most rows of a width, beside those whose `on_front` is True; None for all.
    """
    import numpy as np

    from qmaps.analyze.recommend.candidates import LIMITS, up_to
    from qmaps.analyze.recommend.verdict import records

    tables = []
    groups = frame.groupby(frame["bits_per_element"].map(up_to))
    for limit, every in groups:
        wider = f"more than {LIMITS[-1]:g} bits per element"
        width = f"up to {limit:g} bits per element" if limit in LIMITS else wider
        rows = every
        if top is not None and len(every) > top:
            rows = every[every["on_front"] | (np.arange(len(every)) < top)]
        count = f", {len(rows)} of {len(every)}" if top is not None else ""
        found = [cells(row) for row in records(rows)]
        tables.append(Table(f"{before}{width}{count}", list(header), found))
    return tables


def write_markdown(
    path: str | os.PathLike[str],
    title: str,
    about: Iterable[str],
    tables: Iterable[Table],
    notes: Iterable[str] = (),
) -> None:
    """Write tables to a Markdown file, with the versions and the command that made them.

    Args:
        path: the file; an existing one is replaced.
        title: its heading.
        about: what the tables are of, in a few words each.
        tables: the tables.
        notes: lines that explain the tables.

    Raises:
        OutputError: the file cannot be written.
    """
    from qmaps.lab.provenance import versions

    made_by = [f"{name} {version}" for name, version in versions().items()]
    lines = [f"# {title}", "", f"`{command_line()}`", "", "; ".join([*about, *made_by]) + "."]
    for note in notes:
        lines += ["", note]
    sections = [line for table in tables for line in table.markdown()]
    write_text(path, "\n".join([*lines, "", *sections]))


def provenance(states: CapturedStates, parameters: int) -> list[str]:
    """Describe the states that a table was made from.

    Args:
        states: the states.
        parameters: number of their parameters that the table is of.
    """
    return [f"states of {states.source}", f"step {states.step}", f"{parameters} parameters"]
