"""Pieces of a report in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Texts:
    """Lines of text, each with the cases it applies to."""

    def __init__(self) -> None:
        self._cases: dict[str, list[str]] = {}

    def add(self, text: str, case: str) -> None:
        """Say `text` of `case`."""
        self._cases.setdefault(text, []).append(case)

    def section(self, title: str) -> list[str]:
        """A section in Markdown; nothing without lines."""
        lines = [f"- {text} ({'; '.join(cases)})" for text, cases in self._cases.items()]
        return [f"## {title}", "", *lines, ""] if lines else []


def spread(value: dict[str, float], middle: str) -> str:
    """A value with its quartiles, where they differ."""
    text = number(value[middle])
    if value["q1"] == value["q3"]:
        return text
    return f"{text} ({number(value['q1'])} to {number(value['q3'])})"


def number(value: float) -> str:
    """Three significant digits, never an exponent."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:#.3g}".rstrip(".")


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table."""
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
