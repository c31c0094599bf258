"""``qmaps capture``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qmaps.cli.options import AsJson, CheckpointNames, Seed, Steps, as_contender
from qmaps.cli.output import print_json, print_lines, progress
from qmaps.errors import BadValueError


def capture(
    workload: Annotated[str | None, typer.Argument(help="Train this workload to capture.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the captured states.")] = Path("states"),
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            help="Read this optimizer checkpoint (torch.save), or a folder with optimizer.pt, "
            "instead of training."
        ),
    ] = None,
    names: CheckpointNames = None,
    every: Annotated[int, typer.Option(min=1, help="Steps between snapshots.")] = 50,
    parameters: Annotated[
        list[str] | None, typer.Option(help="Parameter names, with wildcards; may be repeated.")
    ] = None,
    gradients: Annotated[
        int | None,
        typer.Option(min=2, help="Record the gradients of this many steps after each snapshot."),
    ] = None,
    seed: Seed = 0,
    steps: Steps = None,
    as_json: AsJson = False,
) -> None:
    """Capture optimizer states: of a workload trained with AdamW, or of a checkpoint.

    Examples:

        qmaps capture stdlib-lm --out states --every 50

        qmaps capture --checkpoint checkpoint-500 --out states
    """
    from qmaps import capture as captures
    from qmaps.capture import StateRecorder
    from qmaps.capture.recorder import write
    from qmaps.lab import workloads
    from qmaps.storage.files import output_folder

    if (workload is None) == (checkpoint is None):
        raise BadValueError("give either a workload or --checkpoint, not both")
    naming = ""
    if checkpoint is not None:
        if gradients is not None:
            raise BadValueError(
                f"gradients={gradients} needs a workload to train; a checkpoint has no gradients"
            )
        loaded = captures.load(checkpoint, names=names)
        write(loaded, out)
        naming = loaded.naming
    else:
        if names is not None:
            raise BadValueError(f"names={str(names)!r} needs --checkpoint")
        work = workloads.get(workload or "")
        contender = as_contender("32bit")
        if every > (total := work.steps if steps is None else steps):
            raise BadValueError(f"every={every} would record none of the {total} steps")
        output_folder(out)
        with progress(quiet=as_json) as advance:
            workloads.train(
                work,
                contender.optimizer,
                out=out / "train",
                label=contender.label,
                seed=seed,
                steps=steps,
                hooks=[
                    lambda optimizer, _: StateRecorder(
                        optimizer, out, every=every, parameters=parameters, gradients=gradients
                    )
                ],
                progress=lambda step, total, loss: advance(
                    f"train {work.name}", step, total, f"loss {loss:.3f}"
                ),
            )
    states = captures.load(out)
    summary = {
        "out": str(out),
        "steps": states.steps,
        "optimizer": states.optimizer,
        "parameters": len(states.parameters()),
        "elements": states.numel,
        "naming": naming,
    }
    if as_json:
        print_json(summary)
    else:
        print_lines(f"{states} in {out}, captured at steps {', '.join(map(str, states.steps))}")
        if naming:
            print_lines(f"parameter names: {naming}")
