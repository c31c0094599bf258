"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from qmaps.errors import printable


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    r"""Lines of a table with the first column aligned left, the others right.

    Args:
        header: title of each column.
        rows: the cells of each row; ``|`` in them is escaped.

    >>> print("\n".join(table(["map", "bits"], [["DE", "4"]])))
    | map | bits |
    |---|---:|
    | DE | 4 |
    """
    titles = list(header)
    rule = "|---|" + "---:|" * (len(titles) - 1)
    return [_row(titles), rule, *map(_row, rows)]


def _row(cells: Iterable[str]) -> str:
    escaped: Iterator[str] = (printable(cell).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"
