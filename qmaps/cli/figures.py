"""``qmaps figures``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qmaps.cli.options import AsJson, CheckpointNames, MinSize, Out, Workers
from qmaps.cli.output import print_json, print_lines, progress
from qmaps.errors import BadValueError


def figures(
    states: Annotated[
        Path | None, typer.Argument(help="Captured states to analyze; leave out to draw again.")
    ] = None,
    names: CheckpointNames = None,
    out: Out = Path("runs/sweep"),
    min_quantized_size: MinSize = 4096,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Analyze captured states and draw every figure to OUT/figures.

    Examples:

        qmaps figures states --out runs/mine

        qmaps figures optimizer.pt --names names.txt --workers 4

        qmaps figures --out runs/lab
    """
    from qmaps import capture
    from qmaps.lab import analyze_states, draw

    if names is not None and states is None:
        raise BadValueError(f"names={str(names)!r} needs a checkpoint")
    if workers is not None and states is None:
        raise BadValueError(f"workers={workers} needs states, which they analyze")
    with progress(quiet=as_json) as advance:
        if states is not None:
            analyze_states(
                capture.load(states, names=names),
                out,
                min_quantized_size=min_quantized_size,
                progress=advance.stage("analyze states"),
                workers=workers,
            )
        drawn = draw(out, progress=advance.stage("draw figures"))
    if as_json:
        print_json([str(path) for path in drawn])
    else:
        print_lines(*drawn)
