"""Pages: files of the site and their places in its navigation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The repository."""

CLASS_ALONE = {"members": False}
"""Options to show a class without its members; the page has its source."""


@dataclass(frozen=True)
class Page:
    """A Markdown page.

    Attributes:
        path: in the site, such as ``maps/de.md``.
        title: in the navigation.
        text: Markdown.
        files: contents of pictures and other files, by their paths in the site.
    """

    path: str
    title: str
    text: str
    files: Mapping[str, bytes] = field(default_factory=dict)


def docstring_of(obj: str, **options: object) -> str:
    """Lines for mkdocstrings to show the docstring of `obj`, a dotted name."""
    lines = [f"    {name}: {str(value).lower()}" for name, value in options.items()]
    shown = ["    options:", *(f"  {line}" for line in lines)] if lines else []
    return "\n".join([f"::: {obj}", *shown, ""])


def source(path: Path, language: str = "python") -> str:
    """A file of the repository, folded."""
    code = "\n".join(f"    {line}".rstrip() for line in path.read_text("utf-8").splitlines())
    name = path.relative_to(ROOT).as_posix()
    return f'??? quote "Source: `{name}`"\n\n    ``` {language}\n{code}\n    ```\n'


def first_sentence(docstring: str | None) -> str:
    """First sentence of a docstring, without its full stop."""
    return (docstring or "").strip().split("\n\n")[0].replace("\n", " ").strip().rstrip(".")


def table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table; cells are Markdown."""
    names = list(header)
    lines = [names, ["---"] * len(names), *([str(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def fenced(text: str) -> str:
    """`text` with each doctest in a fence; a blank line ends it, as in doctest."""
    lines: list[str] = []
    indent = ""
    inside = False
    for line in [*text.split("\n"), ""]:
        starts = line.lstrip().startswith(">>> ")
        if starts and not inside:
            indent = line[: len(line) - len(line.lstrip())]
            lines.append(f"{indent}```pycon")
            inside = True
        elif not line.strip() and inside:
            lines.append(f"{indent}```")
            inside = False
        lines.append(line)
    return "\n".join(lines[:-1])
