"""``qmaps design``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qmaps.cli.options import (
    AsJson,
    CheckpointNames,
    MinSize,
    Out,
    RecordedStep,
    Seed,
    States,
    recorded,
)
from qmaps.cli.output import print_json, print_lines, print_table, progress
from qmaps.errors import BadValueError

if TYPE_CHECKING:
    from qmaps.analyze.design import Design


def design(
    states: States,
    bits: Annotated[
        str, typer.Option(help="Width of a code, 2 to 8, or of each moment: 4,3.")
    ] = "4",
    bits_per_element: Annotated[
        float | None,
        typer.Option(
            help="Most bits per element, scales included, as the mean of both moments; by default "
            "a quarter more than the codes."
        ),
    ] = None,
    criterion: Annotated[
        str,
        typer.Option(
            help="What decides: step_cost, which predicts the loss best, displacement_error or "
            "update_error (of a single update)."
        ),
    ] = "step_cost",
    out: Out = Path("runs/design"),
    names: CheckpointNames = None,
    step: RecordedStep = None,
    steps: Annotated[int, typer.Option(help="Steps of each replay, about.")] = 300,
    share: Annotated[
        float | None,
        typer.Option(
            help="Share of each parameter to replay, in whole rows: 0.01 is 1 %. By default about "
            "65,536 elements."
        ),
    ] = None,
    parameters: Annotated[
        list[str] | None, typer.Option(help="Parameter names, with wildcards; may be repeated.")
    ] = None,
    min_quantized_size: MinSize = 4096,
    seed: Seed = 0,
    top: Annotated[int, typer.Option(min=1, help="Pairs to print.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Design quantizers for Adam's moments: codebooks, blocks and rounding; results in OUT/design.

    Codebooks are computed for the states, and replayed beside the papers' maps. One half of the
    recorded gradients chooses, and the other half measures. Without recorded gradients, they are
    simulated from the moments, and the output says so.

    Examples:

        qmaps capture stdlib-lm --out states --every 100 --gradients 100

        qmaps design states --bits 4 --out runs/mine

        qmaps design optimizer.pt --bits 4,3 --bits-per-element 3.75
    """
    from qmaps import figures
    from qmaps.analyze import design as designs
    from qmaps.analyze import map_curves
    from qmaps.analyze.design.candidates import known_maps
    from qmaps.analyze.design.files import record_of, writing
    from qmaps.analyze.design.halves import SHORTEST
    from qmaps.storage.files import output_folder

    widths = _widths(bits)
    loaded = recorded(states, step, SHORTEST, names)
    with progress(quiet=as_json) as advance:

        def report(stage: str, done: int, total: int, note: str) -> None:
            if done == 0:  # the arguments are checked by now
                output_folder(out / "design")
            advance(stage, done, total, note)

        found = designs.run(
            loaded,
            widths,
            bits_per_element=bits_per_element,
            criterion=criterion,
            steps=steps,
            share=share,
            parameters=parameters,
            min_quantized_size=min_quantized_size,
            seed=seed,
            progress=report,
        )
    with writing(found, out / "design") as folder:
        figures.save(figures.design(found.frame), folder / "candidates.png")
        for moment, name in enumerate(("first", "second")):
            maps = [found.best[moment].map, *known_maps(moment, widths[moment])]
            drawn = figures.map_curves(map_curves(maps[:6]))
            figures.save(drawn, folder / f"codebooks-{name}.png")
    if as_json:
        print_json(record_of(found))
        return
    _print(found, top, out / "design")


def _widths(bits: str) -> tuple[int, int]:
    """The widths of both moments that a text such as ``4`` or ``4,3`` names."""
    try:
        widths = tuple(int(part) for part in bits.split(","))
        if len(bits) > 9 or len(widths) > 2:
            raise ValueError
    except ValueError:
        raise BadValueError(
            f"bits={bits!r} must be a width such as 4, or two such as 4,3"
        ) from None
    return widths[0], widths[-1]


def _print(found: Design, top: int, folder: Path) -> None:
    rows = found.frame[found.frame["moment"] == "both"].head(top).to_dict("records")
    on = "held-out" if found.held_out else "the same"
    print_table(
        f"pairs, the chosen one first; measured on {on} {found.gradients} gradients",
        ["quantizer", "bits", "step cost", "displacement error", "update error", "exploded"],
        [
            [
                row["quantizer"],
                f"{row['bits_per_element']:.2f}{'' if row['allowed'] else ' (too many)'}",
                f"{row['step_cost']:.2g}",
                f"{row['displacement_error']:.2g}",
                f"{row['mean_abs_error']:.2g}",
                f"{row['explosion_share']:.2g}",
            ]
            for row in rows
        ],
    )
    if not found.held_out:
        print_lines(
            "the window is too short to hold out a half; choice and measures share gradients"
        )
    if found.gradients != "recorded":
        print_lines("gradients were not recorded; they were simulated from the moments")
    print_lines(f"chosen: {found.pair}")
    for book in found.codebooks:
        name = "first" if book.signed else "second"
        print_lines(f"codebook: {book.label}={folder / name}.txt")
    print_lines(f"record: {folder / 'design.json'}")
