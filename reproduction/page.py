"""A paper's page, as Markdown and as self-contained HTML."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup, escape

from qmaps.lab.report import templating
from qmaps.lab.report.page import embedded
from qmaps.lab.report.templating import Cell, judged
from qmaps.storage.files import output_folder
from reproduction import cell_text, differences
from reproduction.deviations import deviations
from reproduction.exhibit import Paper
from reproduction.report_file import write_report
from reproduction.results import Result

SHOWN = 40
"""Most rows of a further table on a page; the CSV file has all rows."""


def write(paper: Paper, results: Sequence[Result], info: dict[str, Any], out: Path) -> Path:
    """Write ``out/<paper>/README.md`` and ``index.html``; returns the latter."""
    folder = output_folder(out / paper.name)
    write_report(folder / "README.md", _markdown(paper, results, info))
    text = template("page").render(
        paper=paper,
        results=results,
        about=info,
        in_short=in_short(paper, info),
        errors=paper.errors.to_dict("records"),
        left_out=paper.left_out.to_dict("records"),
        deviations=_deviations(paper, info).to_dict("records"),
    )
    write_report(folder / "index.html", text)
    return folder / "index.html"


def template(name: str) -> jinja2.Template:
    """``NAME.html.jinja`` of this package."""
    filters: dict[str, Callable[..., Any]] = {
        "embedded": embedded,
        "numbers": cell_text.numbers,
        "cells": _cells,
        "raw": _raw,
        "further": further,
        "prose": _prose,
        "source": lambda result: source_of(result).replace("`", ""),
        "shown": lambda frame: frame.head(SHOWN),
    }
    made = templating.template(name, "reproduction", filters)
    made.globals["most"] = SHOWN
    return made


def _cells(frame: pd.DataFrame) -> list[list[Cell]]:
    """A frame's rows as cells of a sortable table; the last column may be a verdict."""
    names = list(frame.columns)
    return [
        [
            judged(text) if name == "verdict" == names[-1] else Cell(text, _raw(text))
            for name, text in zip(names, map(cell_text.cell, row), strict=True)
        ]
        for row in frame.itertuples(index=False)
    ]


def _prose(text: str) -> Markup:
    """Commands between backticks as HTML's code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _raw(value: Any) -> str:
    """The sort key of a cell: a number as JavaScript reads it."""
    text = str(value).split(" ± ")[0].replace(",", "")
    return text.replace("inf", "Infinity") if text in ("inf", "-inf") else text


def further(result: Result) -> dict[str, pd.DataFrame]:
    """The tables of a result besides the comparison, by file name."""
    if result.finding is None:
        return {}
    return {f"{result.exhibit.name}-{name}": frame for name, frame in result.finding.tables.items()}


def heading(result: Result) -> str:
    """The paper's labels of a figure or table, and its title."""
    return f"{result.exhibit.label}: {result.exhibit.title}"


def provenance(info: dict[str, Any]) -> str:
    """Command, data, versions and machine in a paragraph of Markdown."""
    versions = info["versions"]
    return (
        f"`{info['command']}`; {info['workload']}; qmaps {versions['qmaps']}, torch "
        f"{versions['torch']}, Python {versions['python']}; {info['machine']}."
    )


def source_of(result: Result) -> str:
    """The inputs of a figure or table, in a sentence."""
    made = result.made
    if made.command:
        return f"Read from the table of `{made.command}`."
    return f"Made from {made.source}."


def _markdown(paper: Paper, results: Sequence[Result], info: dict[str, Any]) -> str:
    lines = [
        f"# {paper.title}",
        "",
        f"{paper.source}. Figures and tables made here, beside the paper's numbers. "
        "[What the verdicts mean](../papers.md#verdicts).",
        "",
        *_size_note(info),
    ]
    short = in_short(paper, info)
    lines += [
        f"- **{name.capitalize()}:** {text}" for name, texts in short.items() for text in texts
    ]
    lines += [""] if short else []
    for result in results:
        lines += [f"## {heading(result)}", ""]
        if result.finding is None:
            lines += [f"**{result.verdict}**: {result.pending}", ""]
            continue
        finding = result.finding
        tally = f" ({result.tally})" if result.tally else ""
        said = f"**{result.verdict}**{tally}. {source_of(result)} {finding.explanation}"
        lines += [said.rstrip(), ""]
        lines += [
            f"- *{statement.verdict.value}*: {statement.text} {statement.detail}".rstrip()
            for statement in finding.statements
        ]
        lines += [""] if finding.statements else []
        if finding.differences:
            lines += ["Differences:", "", *differences.lines(finding.differences), ""]
        if finding.numbers is not None:
            lines += [*table(cell_text.numbers(finding.numbers)), ""]
        for name in result.pictures:
            caption = result.exhibit.captions.get(name, "")
            lines += [f"![{result.exhibit.title}]({name}.png)", "", caption, ""]
        if result.tables:
            links = ", ".join(f"[{name}.csv]({name}.csv)" for name in result.tables)
            lines += [f"Tables: {links}.", ""]
    deviating = _deviations(paper, info)
    if len(deviating):
        lines += ["## Inputs that are not the paper's", "", *table(deviating), ""]
    if len(paper.errors):
        lines += ["## Errors in the paper", "", *table(paper.errors), ""]
    left_out = paper.left_out
    if len(left_out):
        lines += ["## Not made here", "", *table(left_out), ""]
    lines += [
        "The command below also writes this page in one file, `index.html`.",
        "",
        provenance(info),
    ]
    return "\n".join(lines).rstrip() + "\n"


def in_short(paper: Paper, info: dict[str, Any]) -> dict[str, list[str]]:
    """`Paper.in_short`; empty on pages of other states than ours, or of a small size."""
    return {} if info["quick"] or info["own"] else paper.in_short


def _deviations(paper: Paper, info: dict[str, Any]) -> pd.DataFrame:
    """`deviations`; empty on pages of other states than ours, or of a small size."""
    rows = deviations(paper.name)
    return rows.iloc[:0] if info["quick"] or info["own"] else rows


def _size_note(info: dict[str, Any]) -> list[str]:
    return ["**A small size, for tests: no report.**", ""] if info["quick"] else []


def table(frame: pd.DataFrame) -> list[str]:
    """A frame as a table of Markdown."""
    cells = [
        [cell_text.cell(value).replace("|", "\\|") for value in row]
        for row in frame.itertuples(index=False)
    ]
    head = [str(name) for name in frame.columns]
    return [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(row) + " |" for row in cells),
    ]
