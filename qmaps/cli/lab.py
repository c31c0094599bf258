"""``qmaps lab``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from qmaps.cli.options import (
    AsJson,
    CheckpointNames,
    Out,
    Seed,
    StableEmbedding,
    Steps,
    Workload,
    refuse_given,
    workload_options,
)
from qmaps.cli.output import command_line, print_json, print_lines, progress

MOST_WORKERS = 8
"""Processes that the command starts if nobody says how many."""


def lab(
    context: typer.Context,
    workload: Workload = "stdlib-lm",
    out: Out = Path("runs/lab"),
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            help="Read the states of this optimizer checkpoint (torch.save), or of a folder with "
            "optimizer.pt, instead of training a workload."
        ),
    ] = None,
    names: CheckpointNames = None,
    min_quantized_size: Annotated[
        int,
        typer.Option(
            min=0, help="Leave out tensors of a checkpoint of at most this many elements."
        ),
    ] = 4096,
    seed: Seed = 0,
    steps: Steps = None,
    stable_embedding: StableEmbedding = False,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of processes, each with one thread; by default one per core, at most 8.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say which quantizers are safe: train, capture, sweep, recommend, train quantized, report.

    With --checkpoint nothing is trained: its states are captured, swept and drawn, quantizers are
    recommended, and the page says all. An interrupted run goes on when the same command is given
    again.

    Examples:

        qmaps lab

        qmaps lab stdlib-lm-tiny --out runs/tiny

        qmaps lab --checkpoint checkpoint-500 --out runs/mine
    """
    import torch

    from qmaps.lab import run, run_checkpoint, workloads
    from qmaps.storage.files import read_record

    if checkpoint is None:
        refuse_given(context, ("names", "min_quantized_size"), "needs --checkpoint")
    else:
        refuse_given(
            context,
            ("workload", "seed", "steps", "stable_embedding"),
            "cannot be combined with --checkpoint, which trains nothing",
        )
    workers = workers or min(MOST_WORKERS, torch.get_num_threads())
    with progress(quiet=as_json) as advance:
        if checkpoint is None:
            page = run(
                workloads.get(workload, **workload_options(stable_embedding)),
                out,
                seed=seed,
                steps=steps,
                command=command_line(),
                progress=advance,
                workers=workers,
            )
        else:
            page = run_checkpoint(
                checkpoint,
                out,
                names=names,
                min_quantized_size=min_quantized_size,
                command=command_line(),
                progress=advance,
                workers=workers,
            )
    told: dict[str, Any] = {"report": str(page), "out": str(out)}
    summary = read_record(page.parent / "recommend" / "summary.json")
    told |= {name: summary[name] for name in ("verdict", "reason", "code")}
    if checkpoint is not None:
        run_record = read_record(page.parent / "about.json")
        told |= {name: run_record[name] for name in ("captured_step", "naming")}
    if as_json:
        print_json(told)
        return
    if "naming" in told:
        print_lines(f"parameter names: {told['naming']}")
    print_lines(f"{summary['verdict']}: {summary['reason']}", "", *summary["code"].split("\n"), "")
    print_lines(f"report: {page.resolve()}")
