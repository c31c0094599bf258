"""Trainings: ``qmaps lab`` and ``train``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from qmaps.cli import options, output

MOST_WORKERS = 8
"""Processes that the command starts if nobody says how many."""

LOSS_COLUMNS = {
    "optimizer": "{run}",
    "seeds": "{seeds}",
    "mean": "{mean:.4f}",
    "std": "{std:.4f}",
    "minus the first": "{difference:+.4f}",
    "its std": "{difference_std:.4f}",
    "state MiB": "{state_mib:.2f}",
}


def lab(
    context: typer.Context,
    workload: options.Workload = "stdlib-lm",
    out: options.Out = Path("runs/lab"),
    checkpoint: options.Checkpoint = None,
    names: options.CheckpointNames = None,
    first: options.First = None,
    second: options.Second = None,
    min_quantized_size: Annotated[
        int,
        typer.Option(
            min=0, help="Leave out tensors of a checkpoint of at most this many elements."
        ),
    ] = 4096,
    seed: options.Seed = 0,
    steps: options.Steps = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of processes, each with one thread; by default one per core, at most 8.",
        ),
    ] = None,
    as_json: options.AsJson = False,
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
        alone = ("names", "first", "second", "min_quantized_size")
        options.refuse_given(context, alone, "needs --checkpoint")
    else:
        options.refuse_given(
            context,
            ("workload", "seed", "steps"),
            "cannot be combined with --checkpoint, which trains nothing",
        )
    workers = workers or min(MOST_WORKERS, torch.get_num_threads())
    common: dict[str, Any] = {"command": output.command_line(), "workers": workers}
    with output.progress(quiet=as_json) as advance:
        common["progress"] = advance
        if checkpoint is None:
            page = run(workloads.get(workload), out, seed=seed, steps=steps, **common)
        else:
            own = {"exp_avg": first, "exp_avg_sq": second}
            common["moments"] = {moment: name for moment, name in own.items() if name is not None}
            common |= {"names": names, "min_quantized_size": min_quantized_size}
            page = run_checkpoint(checkpoint, out, **common)
    told: dict[str, Any] = {"report": str(page), "out": str(out)}
    summary = read_record(page.parent / "recommend" / "summary.json")
    told |= {name: summary[name] for name in ("verdict", "reason", "code")}
    lines = [f"{told['verdict']}: {told['reason']}", "", *told["code"].split("\n"), ""]
    if checkpoint is not None:
        about = read_record(page.parent / "about.json")
        told |= {name: about[name] for name in ("captured_step", "naming")}
        lines.insert(0, f"parameter names: {told['naming']}")
    output.print_result(as_json, told, *lines, f"report: {page.resolve()}")


def train(
    workload: options.Workload,
    out: options.Out = Path("runs/train"),
    optimizer: Annotated[
        list[str] | None,
        typer.Option(
            help="32bit (torch's AdamW), 8bit, 4bit, 3bit, 2bit, paper-8bit, paper-4bit, or a pair "
            "such as 'B128/DE@4s + rank1/linear@4u'. May be repeated; the others are compared with "
            "the first one."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, from 0.")] = 1,
    steps: options.Steps = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of processes training side by side, each with one thread; by default one "
            "run after another.",
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Train a workload with one or several optimizers and compare the final validation loss.

    Examples:

        qmaps train digits --optimizer 32bit --optimizer 4bit

        qmaps train stdlib-lm --optimizer 32bit --optimizer paper-8bit --seeds 3
    """
    from qmaps.lab import compare, summarize_losses, workloads
    from qmaps.storage.files import output_folder, records

    chosen = [options.as_contender(name) for name in optimizer or ["32bit"]]
    work = workloads.get(workload)
    output_folder(out)
    with output.progress(quiet=as_json) as advance:
        runs = compare(
            work,
            chosen,
            out=out,
            seeds=range(seeds),
            steps=steps,
            progress=lambda name, step, total, loss: advance(
                f"train {name}", step, total, f"loss {loss:.3f}"
            ),
            workers=workers,
        )
    rows = records(summarize_losses(runs))
    title = f"Final validation loss of {work.name} ({work.unit}), {runs[0].steps} steps"
    columns = LOSS_COLUMNS if seeds > 1 else {**LOSS_COLUMNS, "std": "-", "its std": "-"}
    if as_json:
        output.print_json(rows)
        return
    output.print_rows(title, columns, rows)
