"""``qmaps report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qmaps.cli.options import AsJson
from qmaps.cli.output import print_json, print_lines


def report(
    run: Annotated[Path, typer.Argument(help="Run folder with figures, frames or a sweep.")],
    markdown: Annotated[
        Path | None, typer.Option(help="Also write the claims and numbers as Markdown here.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write RUN/report.html, one page that needs no other file.

    Examples:

        qmaps report runs/lab

        qmaps report runs/lab --markdown beside-the-papers.md
    """
    from qmaps.lab import report as reports
    from qmaps.storage.files import output_file

    if markdown is not None:
        output_file(markdown, "markdown")
    pages = {"report": reports.write(run)}
    if markdown is not None:
        pages["markdown"] = reports.write_markdown(run, markdown)
    if as_json:
        print_json({name: str(path) for name, path in pages.items()})
    else:
        for name, path in pages.items():
            print_lines(f"{name}: {path.resolve()}")
