"""``python -m reproduction``: the papers' figures and tables, ours beside theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qmaps.cli import run_app
from qmaps.cli.options import AsJson
from qmaps.cli.output import command_line, print_json, progress


def papers(
    paper: Annotated[
        list[str] | None,
        typer.Argument(help="8-bit-optimizers, 4-bit-optimizers, and so on; all if left out."),
    ] = None,
    quick: Annotated[bool, typer.Option(help="A small size, for a look or a test.")] = False,
    states: Annotated[
        list[Path] | None,
        typer.Option(help="Show these captured states in place of ours; may be repeated (seeds)."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the pages: reports; RUNS/reports with --quick or --states."),
    ] = None,
    runs: Annotated[
        Path | None,
        typer.Option(help="What pages are made from: runs/papers, -quick, or -own."),
    ] = None,
    reports: Annotated[
        Path, typer.Option(help="Folder of the tables that other commands made.")
    ] = Path("reports"),
    as_json: AsJson = False,
) -> None:
    """Make the papers' figures and tables, ours beside theirs: one page a paper, and a summary.

    Examples:

        python -m reproduction

        python -m reproduction 8-bit-optimizers --quick

        python -m reproduction --states checkpoint-500/optimizer.pt
    """
    from qmaps import capture as captures
    from reproduction.run import run

    suffix = "-own" if states else "-quick" if quick else ""
    cache = Path(f"runs/papers{suffix}") if runs is None else runs
    target = out or (cache / "reports" if suffix else Path("reports"))
    with progress(quiet=as_json) as advance:
        page = run(
            paper or (),
            out=target,
            runs=cache,
            reports=reports,
            states=[captures.load(path) for path in states or []],
            quick=quick,
            command=command_line("python -m reproduction"),
            progress=advance,
        )
    if as_json:
        print_json({"summary": str(page), "out": str(target)})
    else:
        print(f"summary: {page.resolve()}")


app = typer.Typer(rich_markup_mode="markdown", pretty_exceptions_enable=False)
app.command()(papers)

if __name__ == "__main__":
    run_app(app)
