"""``qmaps lab``."""

from __future__ import annotations

from pathlib import Path

from qmaps.cli.options import AsJson, Out, Seed, StableEmbedding, Steps, Workload, workload_options
from qmaps.cli.output import command_line, print_json, progress


def lab(
    workload: Workload = "stdlib-lm",
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
    from qmaps.lab import run, workloads

    with progress(quiet=as_json) as advance:
        page = run(
            workloads.get(workload, **workload_options(stable_embedding)),
            out,
            seed=seed,
            steps=steps,
            command=command_line(),
            progress=advance,
        )
    if as_json:
        print_json({"report": str(page), "out": str(out)})
    else:
        print(f"report: {page.resolve()}")
