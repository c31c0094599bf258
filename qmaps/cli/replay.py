"""``qmaps replay``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qmaps.cli.options import (
    AsJson,
    CheckpointNames,
    Codebooks,
    MinSize,
    Out,
    Seed,
    States,
    Workers,
    as_codebook,
    recorded,
)
from qmaps.cli.output import print_json, print_lines, print_rows, progress
from qmaps.storage.files import records

COLUMNS = {
    "pair": "{quantizer}",
    "bits": "{bits_per_element:.2f}",
    "step cost": "{step_cost:.3f}",
    "gain": "{update_gain:.2f}",
    "noise": "{update_noise:.2f}",
    "largest": "{largest_update:.2g}",
    "stalled": "{stalled_share_first:.0%}, {stalled_share_second:.0%}",
}


def replay(
    states: States,
    spec: Annotated[
        list[str] | None,
        typer.Option(
            help="A pair of quantizers such as 'B128/DE@4s + rank1/linear@4u', or a preset such as "
            "4bit; may be repeated. By default the standard pairs."
        ),
    ] = None,
    out: Out = Path("runs/replay"),
    step: Annotated[
        int | None,
        typer.Option(
            help="Captured step to start from; by default the last with recorded gradients, or "
            "simply the last."
        ),
    ] = None,
    names: CheckpointNames = None,
    steps: Annotated[
        int | None,
        typer.Option(help="Gradients to replay; by default all recorded ones, or 100 simulated."),
    ] = None,
    rounds: Annotated[
        int, typer.Option(help="How many times to replay them, one round after another.")
    ] = 1,
    share: Annotated[
        float, typer.Option(help="Share of each parameter to replay, in whole rows: 0.01 is 1 %.")
    ] = 1.0,
    parameters: Annotated[
        list[str] | None, typer.Option(help="Parameter names, with wildcards; may be repeated.")
    ] = None,
    codebook: Codebooks = None,
    min_quantized_size: MinSize = 4096,
    seed: Seed = 0,
    workers: Workers = None,
    top: Annotated[int, typer.Option(min=1, help="Rows to print.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Replay Adam's moments under pairs of quantizers; the rows go to OUT/replay/replay.parquet.

    Gradients recorded after the captured step are replayed; without any, gradients are simulated
    from the moments, and the output says so.

    Examples:

        qmaps capture stdlib-lm --out states --every 100 --gradients 50

        qmaps replay states --step 200 --out runs/mine

        qmaps replay optimizer.pt --share 0.01 --spec "B128/DE@4s + rank1/linear@4u"
    """
    from qmaps import figures, sweep
    from qmaps.analyze import replay as replays
    from qmaps.storage.files import write_frame

    loaded = recorded(states, step, names=names)
    folder = out / "replay"
    with progress(quiet=as_json) as advance:
        frame = replays.run(
            loaded,
            spec or sweep.STANDARD,
            steps=steps,
            rounds=rounds,
            share=share,
            parameters=parameters,
            min_quantized_size=min_quantized_size,
            codebooks=[as_codebook(option) for option in codebook or []],
            seed=seed,
            progress=advance.stage("replay states", folder),
            workers=workers,
        )
    summary = replays.summarize(frame)
    write_frame(folder / "replay.parquet", frame)
    write_frame(folder / "summary.parquet", summary)
    for draw in (
        figures.replay, figures.replay_updates, figures.replay_states, figures.replay_errors
    ):  # fmt: skip
        figures.save(draw(summary), folder / f"{draw.__name__}.png")
    if as_json:
        print_json(records(summary))
        return
    (kind,) = summary["gradients"].unique()
    print_rows(
        f"all parameters together, least step cost first; {kind} gradients",
        COLUMNS,
        summary.head(top).to_dict("records"),
    )
    if kind != "recorded":
        print_lines("gradients were not recorded; they were simulated from the moments")
    print_lines(f"rows: {folder / 'replay.parquet'}")
