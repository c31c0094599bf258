"""``qmaps papers``: the old name of ``python -m reproduction``."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import typer

from qmaps.cli.output import errors
from qmaps.errors import BadValueError


def papers(context: typer.Context) -> None:
    """Moved out of the package; run `python -m reproduction` in a checkout of qmaps."""
    if importlib.util.find_spec("reproduction") is None:
        raise BadValueError(
            "qmaps papers has moved: run python -m reproduction in a checkout of qmaps"
        )
    errors.print("qmaps papers is now python -m reproduction; the old name goes in version 0.3")
    command = [sys.executable, "-m", "reproduction", *context.args]
    raise typer.Exit(subprocess.run(command, check=False).returncode)
