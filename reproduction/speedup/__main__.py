"""``python -m reproduction.speedup``: the speed-up model of the 2015 paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qmaps.cli import run_app
from qmaps.cli.options import AsJson, Out
from qmaps.cli.output import command_line, print_json, print_lines, print_rows, progress
from qmaps.errors import BadValueError
from qmaps.storage.files import records


def speedup(
    hardware: Annotated[
        Path | None,
        typer.Option(
            help="JSON file of hardware and optionally a job; by default those of the paper."
        ),
    ] = None,
    calibrate: Annotated[
        bool,
        typer.Option("--calibrate", help="Measure coding and transfers between two processes."),
    ] = False,
    nodes: Annotated[
        int, typer.Option(min=1, help="Number of nodes of the measured hardware.")
    ] = 32,
    gpus_per_node: Annotated[int, typer.Option(min=1, help="Number of devices in each node.")] = 3,
    spec: Annotated[
        list[str] | None,
        typer.Option(help="A quantizer of messages to compare with 32 bits; may be repeated."),
    ] = None,
    out: Out = Path("runs/speedup"),
    as_json: AsJson = False,
) -> None:
    """Predict the speed-up of parallel training, and compute the 2015 paper's tables.

    The command writes the tables, the curves, their figure, and a file for --hardware to OUT.

    Examples:
        python -m reproduction.speedup --out runs/speedup

        python -m reproduction.speedup --calibrate --nodes 1 --gpus-per-node 8 --out runs/here

        python -m reproduction.speedup --hardware runs/here/hardware.json --spec B128/DE@4s
    """
    from qmaps.algebra.quantizer import quantizer
    from qmaps.figures import save
    from qmaps.storage.files import output_folder
    from reproduction import figures
    from reproduction import speedup as model
    from reproduction.speedup import paper, write

    if calibrate and hardware is not None:
        raise BadValueError("give either --hardware or --calibrate, not both")
    chosen = [quantizer(text) for text in spec or ["B2048/tree@8s", "B2048/tree@4s"]]
    output_folder(out)
    place, job = paper.HARDWARE, None
    with progress(quiet=as_json) as advance:
        if calibrate:
            advance("measure transfers", 0, 1, "")
            place = model.calibrate(chosen, nodes=nodes, gpus_per_node=gpus_per_node)
            advance("measure transfers", 1, 1, "")
        elif hardware is not None:
            place, job = write.read(hardware)
        job = job or paper.ALEXNET
        tables = model.tables()
        curves = model.curves(
            job,
            place,
            {"32-bit": None} | {q.spec: q for q in chosen},
            progress=lambda done, total, note: advance("predict", done, total, note),
        )
        command = command_line("python -m reproduction.speedup")
        paths = write.write(out, command, tables, curves, place, job)
        paths["figure"] = out / "speedup.png"
        save(figures.speedup(curves), paths["figure"])
    best = curves[(curves["panel"] == "GPUs") & (curves["gpus"] == place.gpus)]
    if as_json:
        print_json(
            {
                "paths": {name: str(path) for name, path in paths.items()},
                "hardware": place.name,
                "job": job.name,
                "best": records(best),
                "tables": records(tables),
            }
        )
        return
    print_rows(
        f"{place.name}: {place.gpus} devices",
        {"messages": "{quantizer}", "best sub-batch": "{sub_batch}", "speed-up": "{speedup:.1f}"},
        records(best),
    )
    print_lines(*paths.values())


app = typer.Typer(rich_markup_mode="markdown", pretty_exceptions_enable=False)
app.command()(speedup)

if __name__ == "__main__":
    run_app(app)
