"""All papers on one page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from qmaps.lab.report.templating import Cell, cell, judged
from reproduction import page
from reproduction.claim import Verdict
from reproduction.exhibit import Kind, Paper
from reproduction.numbers import MARGIN
from reproduction.report_file import write_report
from reproduction.results import Result

KINDS = (
    "The table counts numbers and statements, by how ours were obtained. Only measured ones are "
    "evidence for or against a paper. Computed ones are arithmetic, such as bytes of states, and "
    "show that the paper was read correctly. Those from the paper's own inputs show whether its "
    "model gives its results."
)
MEANINGS = {
    Verdict.REPRODUCED: "A statement holds. A number, with its ±, is within a tenth of the paper's "
    "plus the paper's ±, or equal as printed. A loss ends where another does: the whole 95 % "
    f"interval of the difference over seeds lies within {MARGIN:g} nats, and within 2 % of the "
    "loss.",
    Verdict.PARTLY: "Some parts of a statement hold.",
    Verdict.ORDERING: "The paper's metric cannot be measured here, or has another scale. Ours "
    "lies to the other rows as the paper's does: no pair of rows is reversed, at least one "
    "compares alike, and ± hides none that the paper sets apart. Rows of ours that differ by less "
    "than the margin of losses, ± included, are equal if the paper's are.",
    Verdict.DOUBT: "The paper's number contradicts others of the paper; see the errors below.",
    Verdict.ELSEWHERE: "Ours differs, and a control, which the page names, shows that the "
    "model, the data or the machine makes the difference.",
    Verdict.CONTRADICTS: "Ours differs, and no control of ours explains it.",
    Verdict.DIFFERS: "Ours differs; the cause has not been looked for.",
    Verdict.UNDECIDED: "Runs or seeds are too few: their interval holds both answers. Shares of "
    "few runs are told apart by an exact test at 5 %.",
    Verdict.NOT_COMPARABLE: "A time on a CPU beside one on a GPU or a cluster. Neither "
    "agreement nor difference says anything about the paper.",
    Verdict.NOT_COMPARED: "The paper prints a number and there is none of ours, or the other "
    "way round.",
    Verdict.NOT_MADE: "A table of another command is missing.",
}
RULES = (
    "The verdict of a figure or table is the weakest of its numbers and statements. Statements "
    "alone do not decide about a table of which no number is compared.",
    "Several tests of one figure that ask one thing are one test. The best of several cases is no "
    "comparison. A measurement that stands for several numbers of the paper counts once above.",
    "A row of figures of one kind, such as Figures 5 to 19, counts as one.",
)
BEFORE = Path(__file__).with_name("counts-before.csv")
EARLIER = (
    "The same counts in version 0.2.0, before the causes of differences were looked for. A "
    "measurement that stands for several numbers was counted several times then, no learning rate "
    "was tuned, and step times were those of one machine."
)
Found = Sequence[tuple[Paper, Sequence[Result]]]


def write(papers: Found, info: dict[str, Any], out: Path) -> Path:
    """Write ``out/papers.md`` and ``out/papers.html``; returns the latter."""
    rows, omitted, wrong = exhibits(papers), left_out(papers), errors(papers)
    counted, verdicts = covered(papers), numbers(papers)
    before = [] if info["quick"] or info["own"] else earlier()
    write_report(
        out / "papers.md", _markdown(rows, wrong, omitted, counted, verdicts, before, info)
    )
    text = page.template("summary").render(
        rows=list(map(_cells, rows)),
        errors=wrong,
        left=omitted,
        counted=[[cell(value) for value in row.values()] for row in counted],
        verdicts=verdicts,
        before=before,
        earlier=EARLIER,
        kinds=KINDS,
        about=info,
        meanings=MEANINGS,
        rules=RULES,
    )
    write_report(out / "papers.html", text)
    return out / "papers.html"


def _cells(row: dict[str, str]) -> list[Cell]:
    """A figure or table as a row of the table of all."""
    link = f"{row['folder']}/index.html#{row['name']}"
    return [
        cell(row["paper"]),
        Cell(row["label"], row["label"], href=link, after=f": {row['title']}"),
        judged(row["verdict"]),
        cell(row["tally"]),
    ]


def exhibits(papers: Found) -> list[dict[str, str]]:
    """A row per figure or table: paper, folder, label, title, verdict, tally."""
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
    """Counts for each paper: figures and tables made, compared, waiting, and left out."""
    nothing = (Verdict.NOT_COMPARED, Verdict.NOT_COMPARABLE, Verdict.NOT_MADE)
    rows = []
    for paper, results in papers:
        waiting = sum(result.finding is None for result in results)
        compared = sum(result.verdict not in nothing for result in results)
        rows.append(
            {"paper": paper.title, "made": len(results) - waiting, "compared": compared,
             "waiting": waiting, "left": len(paper.wholly_left_out)}
        )  # fmt: skip
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
    """Omitted figures, tables and parts of them, with the reason."""
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
    omitted: Sequence[dict[str, str]],
    counted: Sequence[dict[str, Any]],
    verdicts: Sequence[Mapping[str, Any]],
    before: Sequence[Mapping[str, Any]],
    info: dict[str, Any],
) -> str:
    total = {
        key: sum(row[key] for row in counted) for key in ("made", "compared", "waiting", "left")
    }
    exhibits_in_all = total["made"] + total["waiting"] + total["left"]
    lines = [
        "# Figures and tables of the papers",
        "",
        f"Of {exhibits_in_all} figures, tables and measured appendices {total['made']} are made "
        f"here, "
        f"{total['compared']} of them with something that compares with the paper, "
        f"{total['waiting']} wait for a table of another command ({Verdict.NOT_MADE}), and "
        f"{total['left']} are left out, each with the reason, as are parts of others.",
        "",
        *page.table(pd.DataFrame(verdicts)),
        "",
        KINDS,
        "",
        *([EARLIER, "", *page.table(pd.DataFrame(before)), ""] if before else []),
        "## Verdicts",
        "",
        *(f"- **{verdict}**: {meaning}" for verdict, meaning in MEANINGS.items()),
        "",
        *(f"- {rule}" for rule in RULES),
        "",
        "## Figures and tables",
        "",
        page.provenance(info),
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
    if omitted:
        lines += ["", "## Left out", "", *page.table(pd.DataFrame(omitted))]
    return "\n".join(lines) + "\n"
