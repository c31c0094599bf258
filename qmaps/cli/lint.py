"""``qmaps lint``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from qmaps.cli.options import AsJson, CheckpointNames, States
from qmaps.cli.output import print_json, print_lines, print_table


def lint(
    states: States,
    step: Annotated[
        int | None, typer.Option(help="Captured step of a folder; by default the last.")
    ] = None,
    names: CheckpointNames = None,
    top: Annotated[int, typer.Option(min=1, help="Rows to print, errors first.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Find problems of saved optimizer states; the exit code is 1 if there is an error.

    Errors are second moments that were lost (a checkpoint in float16), NaN and infinity, negative
    second moments, and codes or scales that do not fit their quantizer. Rows without gradients and
    quantizers that differ from the group's options are warnings.

    Examples:

        qmaps lint checkpoint-500/optimizer.pt

        qmaps lint optimizer.pt --names names.txt --json
    """
    from qmaps.capture.lint import lint_file

    findings = lint_file(states, step=step, names=names)
    if as_json:
        print_json([asdict(finding) for finding in findings])
    elif not findings:
        print_lines(f"{states}: no problems found")
    else:
        more = f"; the first {top}" if len(findings) > top else ""
        print_table(
            f"{states}: {len(findings)} findings{more}",
            ["level", "parameter", "state", "about"],
            [
                [finding.level, finding.parameter or "all", finding.state or "all", finding.message]
                for finding in findings[:top]
            ],
        )
    if any(finding.level == "error" for finding in findings):
        raise typer.Exit(1)
