"""``qmaps train``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from qmaps.cli.options import (
    AsJson,
    Out,
    StableEmbedding,
    Steps,
    Workload,
    as_contender,
    workload_options,
)
from qmaps.cli.output import command_line, print_json, print_table, progress


def train(
    workload: Workload,
    out: Out = Path("runs/train"),
    optimizer: Annotated[
        list[str] | None,
        typer.Option(
            help="32bit (torch's AdamW), 8bit, 4bit, 3bit, 2bit, paper-8bit, paper-4bit, or a pair "
            "such as 'B128/DE@4s + rank1/linear@4u'. May be repeated; the others are compared with "
            "the first one."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, from 0.")] = 1,
    steps: Steps = None,
    stable_embedding: StableEmbedding = False,
    table: Annotated[
        Path | None, typer.Option(help="Write the comparison as a Markdown table here.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of processes training side by side, each with one thread; by default one "
            "run after another.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a workload with one or several optimizers and compare the final validation loss.

    Examples:

        qmaps train digits --optimizer 32bit --optimizer 4bit

        qmaps train stdlib-lm --optimizer 32bit --optimizer paper-8bit --seeds 3 --table losses.md
    """
    from qmaps.lab import compare, summarize_losses, workloads
    from qmaps.storage.files import output_file, output_folder

    chosen = [as_contender(name) for name in optimizer or ["32bit"]]
    work = workloads.get(workload, **workload_options(stable_embedding))
    output_folder(out)
    if table is not None:
        output_file(table, "table")
    with progress(quiet=as_json) as advance:
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
    frame = summarize_losses(runs)
    records = frame.to_dict("records")
    if table is not None:
        _write_table(table, records, work.name, work.unit, runs[0].steps, workers)
    if as_json:
        print_json(records)
        return
    print_table(
        f"final validation loss of {work.name} ({work.unit}), {runs[0].steps} steps",
        ["optimizer", "seeds", "mean", "std", "minus the first", "its std", "state MiB"],
        [_loss_cells(row) for row in records],
    )


def _loss_cells(row: dict[Any, Any]) -> list[str]:
    """Return a row of `summarize_losses` as text."""
    several = row["seeds"] > 1
    return [
        row["run"],
        str(row["seeds"]),
        f"{row['mean']:.4f}",
        f"{row['std']:.4f}" if several else "-",
        f"{row['difference']:+.4f}",
        f"{row['difference_std']:.4f}" if several else "-",
        f"{row['state_mib']:.2f}",
    ]


def _write_table(
    path: Path,
    records: list[dict[Any, Any]],
    workload: str,
    unit: str,
    steps: int,
    workers: int | None,
) -> None:
    import platform

    import torch

    from qmaps import __version__
    from qmaps.storage.files import markdown_table, write_text

    header = ["optimizer", "seeds", "mean", "std", "minus the first", "its std", "state (MiB)"]
    threads = 1 if workers else torch.get_num_threads()
    lines = [
        f"# Final validation loss of {workload} ({unit}), {steps} steps",
        "",
        f"`{command_line()}`",
        "",
        f"qmaps {__version__}, torch {torch.__version__}, {platform.machine()}, "
        f"{threads} thread{'s' * (threads > 1)}. Spread: sample standard deviation over seeds; the "
        "difference is taken seed by seed, on the same weights and batches.",
        "",
        *markdown_table(header, map(_loss_cells, records)),
    ]
    write_text(path, "\n".join(lines) + "\n")
