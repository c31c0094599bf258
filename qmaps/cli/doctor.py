"""``qmaps doctor``."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from qmaps.cli.options import AsJson
from qmaps.cli.output import print_json, print_lines
from qmaps.errors import BadValueError

UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def doctor(
    parameters: Annotated[
        str | None,
        typer.Option(help="Size of a model, such as 7B, 350M or 125000000: what its step costs."),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0, help="Time for measurements, about; 0 measures nothing.")
    ] = 4.0,
    as_json: AsJson = False,
) -> None:
    """Say what this installation has, what is wrong with it, and what a step costs here.

    It prints versions, back ends and why others do not run, the processor, memory bandwidth, and
    the time of a step of AdamW in 32, 8 and 4 bits. For every problem it names the command that
    repairs it; the exit code is 1 if there is one. Paste the output into reports of problems.

    Examples:

        qmaps doctor

        qmaps doctor --parameters 7B

        qmaps doctor --seconds 0 --json
    """
    from qmaps.optim.doctor import doctor as examine

    report = examine(None if parameters is None else _count(parameters), seconds=seconds)
    if as_json:
        print_json(report.as_dict())
    else:
        print_lines(*str(report).split("\n"))
    if report.problems:
        raise typer.Exit(1)


def _count(text: str) -> int:
    """A number of parameters: digits, with K, M, B or T behind it."""
    match = re.fullmatch(
        r"(\d{1,16}(?:\.\d{1,9})?)([KMBT]?)", text.strip().upper().replace("_", "")
    )
    if match is None:
        raise BadValueError(
            f"parameters={text!r} must be a number of parameters, such as 7B, 350M or 125000000"
        )
    return round(float(match[1]) * UNITS[match[2]])
