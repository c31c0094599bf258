"""Tables of objects in notebooks, in the notebook's colours."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence

LEFT = 'style="text-align:left"'


def table(title: str, rows: Iterable[tuple[str, object]]) -> str:
    """Return names and values as an HTML table.

    A value is shown as its ``str``, or as that of what it returns where it is callable. One that
    raises an error is shown as unknown: a notebook shows an object in whatever state it is.
    """
    return _framed(title, [[_cell("th", name), _cell("td", value)] for name, value in rows])


def grid(title: str, header: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> str:
    """Return rows of several columns as an HTML table; the lines of `note` are below it."""
    lines = [[_cell("th", name) for name in header]]
    lines += [[_cell("td", text) for text in row] for row in rows]
    return _framed(title, lines, note)


def _framed(title: str, lines: Iterable[Iterable[str]], note: str = "") -> str:
    body = "".join(f"<tr>{''.join(cells)}</tr>" for cells in lines)
    below = "<br>".join(_text(line) for line in note.splitlines())
    # Said for pages in which tables do not inherit it, as those without a doctype.
    inherited = 'style="color:inherit"'
    return f"<div><b>{_text(title)}</b><table {inherited}>{body}</table>{below}</div>"


def _cell(kind: str, value: object) -> str:
    return f"<{kind} {LEFT}>{_text(value)}</{kind}>"


def _text(value: object | Callable[[], object]) -> str:
    try:
        return html.escape(str(value() if callable(value) else value))
    except Exception:  # for example of a tensor whose memory was freed
        return "unknown"
