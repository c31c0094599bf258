"""``qmaps lab``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from qmaps.cli.options import AsJson, Out, Seed, StableEmbedding, Steps, workload_options
from qmaps.cli.output import print_json, progress


def lab(
    workload: Annotated[
        str, typer.Argument(help="stdlib-lm, stdlib-lm-tiny, digits or minilm.")
    ] = ("stdlib-lm"),
    out: Out = Path("runs/lab"),
    seed: Seed = 0,
    steps: Steps = None,
    stable_embedding: StableEmbedding = False,
    as_json: AsJson = False,
) -> None:
    """Run the whole laboratory: train, capture, sweep, draw, train quantized, report.

    Examples:

        qmaps lab

        qmaps lab stdlib-lm-tiny --out runs/tiny
    """
    from qmaps import workloads
    from qmaps.lab import run

    with progress(quiet=as_json) as advance:
        page = run(
            workloads.get(workload, **workload_options(stable_embedding)),
            out,
            seed=seed,
            steps=steps,
            command=" ".join(["qmaps", *sys.argv[1:]]),
            progress=advance,
        )
    if as_json:
        print_json({"report": str(page), "out": str(out)})
    else:
        print(f"report: {page.resolve()}")
