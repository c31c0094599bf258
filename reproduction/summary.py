"""All papers on one page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from qmaps.lab.report.claim import Verdict
from qmaps.lab.report.templating import Cell, cell, judged
from reproduction import page
from reproduction.exhibit import Kind, Paper
from reproduction.report_file import write_report
from reproduction.results import Result

KINDS = (
    "The table counts numbers and statements, by how ours were obtained. Only measured ones are "
    "evidence for or against a paper. Computed ones are arithmetic, such as bytes of states, and "
    "show that the paper was read correctly. Those from the paper's own inputs show whether its "
    "model gives its results."
)
BEFORE = Path(__file__).with_name("counts-before.csv")
EARLIER = (
    "The same counts in version 0.2.0, before the causes of differences were looked for. A "
    "measurement that stands for several numbers was counted several times then, no learning rate "
    "was tuned, and step times were those of one machine."
)
Found = Sequence[tuple[Paper, Sequence[Result]]]


def write(papers: Found, about: dict[str, Any], out: Path) -> Path:
    """Write ``out/papers.md`` and ``out/papers.html``; returns the latter."""
    rows, left, wrong = exhibits(papers), left_out(papers), errors(papers)
    counted, verdicts = covered(papers), numbers(papers)
    before = [] if about["quick"] or about["own"] else earlier()
    write_report(out / "papers.md", _markdown(rows, wrong, left, counted, verdicts, before, about))
    text = page.template("summary").render(
        rows=list(map(_cells, rows)),
        errors=wrong,
        left=left,
        counted=[[cell(value) for value in row.values()] for row in counted],
        verdicts=verdicts,
        before=before,
        earlier=EARLIER,
        kinds=KINDS,
        about=about,
        rules=page.RULES,
    )
    write_report(out / "papers.html", text)
    return out / "papers.html"


def _cells(row: dict[str, str]) -> list[Cell]:
    """An exhibit as a row of the table of all."""
    link = f"{row['folder']}/index.html#{row['name']}"
    return [
        cell(row["paper"]),
        Cell(row["label"], row["label"], href=link, after=f": {row['title']}"),
        judged(row["verdict"]),
        cell(row["tally"]),
    ]


def exhibits(papers: Found) -> list[dict[str, str]]:
    """A row per exhibit: paper, folder, label, title, verdict, tally."""
    return [
        {
            "paper": paper.title,
            "folder": paper.name,
            "name": result.exhibit.name,
            "label": result.exhibit.label,
            "title": result.exhibit.title,
            "verdict": result.verdict,
            "tally": result.tally or result.pending,
        }
        for paper, results in papers
        for result in results
    ]


def covered(papers: Found) -> list[dict[str, Any]]:
    """For each paper: figures, tables and appendices made, waiting for a table, and left out."""
    rows = []
    for paper, results in papers:
        made = sum(len(r.exhibit.covers) for r in results if r.finding is not None)
        waiting = sum(len(r.exhibit.covers) for r in results if r.finding is None)
        left = len(paper.wholly_left_out)
        rows.append({"paper": paper.title, "made": made, "waiting": waiting, "left": left})
    return rows


def numbers(papers: Found) -> list[dict[str, Any]]:
    """Counts of numbers and statements by verdict, a row for each kind of evidence."""
    count: Counter[tuple[Kind, Verdict]] = Counter()
    for _, results in papers:
        for result in results:
            if result.finding is not None:
                count += result.finding.counts(result.exhibit.kind_of)
    verdicts = [verdict for verdict in Verdict if any(count[kind, verdict] for kind in Kind)]
    return [
        {"ours": kind.value, **{verdict.value: count[kind, verdict] for verdict in verdicts}}
        for kind in Kind
    ]


def earlier() -> list[dict[str, Any]]:
    """Result of `numbers` before differences were traced."""
    return [
        {str(name): value for name, value in row.items()}
        for row in pd.read_csv(BEFORE).to_dict("records")
    ]


def left_out(papers: Found) -> list[dict[str, str]]:
    """Figures and tables that are not made, and parts of them, with the reason."""
    return [
        {"paper": paper.title, "item": str(row.item), "why": str(row.why)}
        for paper, _ in papers
        for row in paper.left_out.itertuples()
    ]


def errors(papers: Found) -> list[dict[str, str]]:
    """Errors in the papers, by themselves or by arithmetic."""
    return [
        {"paper": paper.title, **{str(name): str(value) for name, value in row.items()}}
        for paper, _ in papers
        for row in paper.errors.to_dict("records")
    ]


def _markdown(
    rows: Sequence[dict[str, str]],
    wrong: Sequence[dict[str, str]],
    left: Sequence[dict[str, str]],
    counted: Sequence[dict[str, Any]],
    verdicts: Sequence[Mapping[str, Any]],
    before: Sequence[Mapping[str, Any]],
    about: dict[str, Any],
) -> str:
    total = {key: sum(row[key] for row in counted) for key in ("made", "waiting", "left")}
    lines = [
        "# Figures and tables of the papers",
        "",
        f"Of {sum(total.values())} figures, tables and measured appendices {total['made']} are made"
        f" here, {total['waiting']} wait for a table of another command ({Verdict.NOT_MADE}), and "
        f"{total['left']} are left out, each with the reason, as are parts of others. "
        f"{page.RULES}",
        "",
        *page.table(pd.DataFrame(verdicts)),
        "",
        KINDS,
        "",
        *([EARLIER, "", *page.table(pd.DataFrame(before)), ""] if before else []),
        page.provenance(about),
        "",
        *page.table(pd.DataFrame(counted)),
        "",
        *page.table(
            pd.DataFrame(
                {
                    "paper": [f"[{row['paper']}]({row['folder']}/README.md)" for row in rows],
                    "figure or table": [f"{row['label']}: {row['title']}" for row in rows],
                    "verdict": [row["verdict"] for row in rows],
                    "numbers and statements": [row["tally"] for row in rows],
                }
            )
        ),
    ]
    if wrong:
        lines += ["", "## Errors in the papers", "", *page.table(pd.DataFrame(wrong))]
    if left:
        lines += ["", "## Left out", "", *page.table(pd.DataFrame(left))]
    return "\n".join(lines) + "\n"
