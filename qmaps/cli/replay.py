"""Replays of optimizer states: ``qmaps replay`` and ``recommend``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qmaps.cli import options
from qmaps.cli.output import by_width, print_json, print_lines, print_rows, progress
from qmaps.storage.files import output_folder, records

if TYPE_CHECKING:
    from qmaps.analyze.recommend import Recommendation
    from qmaps.capture import CapturedStates

COLUMNS = {
    "pair": "{quantizer}",
    "bits": "{bits_per_element:.2f}",
    "step cost": "{step_cost:.3f}",
    "gain": "{update_gain:.2f}",
    "noise": "{update_noise:.2f}",
    "largest": "{largest_update:.2g}",
    "stalled": "{stalled_share_first:.0%}, {stalled_share_second:.0%}",
    "v after fall": "{fall_ratio_second:.2g}",
}
VERDICT_COLUMNS = {
    "pair": "{label}",
    "bits": "{bits_per_element:.2f}",
    "verdict": "{verdict}",
    "about": "{reason}",
}


def replay(
    states: options.States,
    spec: options.Pairs = None,
    load: options.Load = None,
    codebook: options.CodebookFiles = None,
    out: options.Out = Path("runs/replay"),
    step: options.Step = None,
    names: options.CheckpointNames = None,
    steps: Annotated[
        int | None,
        typer.Option(help="Gradients to replay; by default all recorded ones, or 100 simulated."),
    ] = None,
    rounds: Annotated[
        int, typer.Option(help="How many times to replay them, one round after another.")
    ] = 1,
    share: options.Share = None,
    min_quantized_size: options.MinSize = 4096,
    workers: options.Workers = None,
    top: Annotated[int, typer.Option(min=1, help="Rows to print.")] = 20,
    as_json: options.AsJson = False,
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

    books = options.own_codebooks(load, codebook)
    loaded = _loaded(states, step, names)
    folder = output_folder(out / "replay")
    with progress(quiet=as_json) as advance:
        frame = replays.run(
            loaded,
            spec or sweep.STANDARD,
            codebooks=books,
            steps=steps,
            rounds=rounds,
            share=1.0 if share is None else share,
            min_quantized_size=min_quantized_size,
            progress=advance.stage("replay states"),
            workers=workers,
        )
    summary = replays.summarize(frame)
    write_frame(folder / "replay.parquet", frame)
    write_frame(folder / "summary.parquet", summary)
    figures.save(figures.replay(summary), folder / "replay.png")
    if as_json:
        print_json(records(summary))
        return
    (kind,) = summary["gradients"].unique()
    print_rows(
        f"all parameters together, least step cost first; {kind} gradients",
        COLUMNS,
        records(summary.head(top)),
    )
    if kind != "recorded":
        print_lines("gradients were not recorded; they were simulated from the moments")
    print_lines(f"rows: {folder / 'replay.parquet'}")


def recommend(
    states: options.States,
    bits: Annotated[
        float | None,
        typer.Option(
            help="Most bits per element, scales included, as the mean of both moments; by default "
            "4.3."
        ),
    ] = None,
    nbytes: Annotated[
        int | None, typer.Option("--bytes", help="Most bytes of all states, instead of --bits.")
    ] = None,
    step_cost: Annotated[
        float | None,
        typer.Option(
            help="Largest step cost, instead of --bits: the pair of fewest bytes that keeps to it. "
            "0.02 stands for steps that make 2 % less progress."
        ),
    ] = None,
    spec: options.Pairs = None,
    load: options.Load = None,
    codebook: options.CodebookFiles = None,
    names: options.CheckpointNames = None,
    step: options.Step = None,
    steps: Annotated[int, typer.Option(help="Steps of the replay, about.")] = 60,
    share: options.Share = None,
    min_quantized_size: options.MinSize = 4096,
    workers: options.Workers = None,
    out: options.Out = Path("runs/recommend"),
    as_json: options.AsJson = False,
) -> None:
    """Recommend quantizers for Adam's moments; the choice goes to OUT/recommend/choice.json.

    Pairs of quantizers are replayed on recorded gradients, or on simulated ones. Each gets a
    verdict, and the best one without a problem within the budget is chosen. `qmaps.load_choice`
    reads it.

    Examples:

        qmaps capture stdlib-lm --out states --every 100 --gradients 50

        qmaps recommend states --bits 4.3 --out runs/mine

        qmaps recommend optimizer.pt --bytes 50000000

        qmaps recommend states --step-cost 0.02

        qmaps recommend checkpoint-500/optimizer.pt --names checkpoint-500/model.safetensors
    """
    from qmaps.analyze import recommend as recommendations
    from qmaps.analyze.recommend.candidates import CANDIDATES
    from qmaps.analyze.recommend.run import ENOUGH

    books = options.own_codebooks(load, codebook)
    loaded = _loaded(states, step, names, enough=ENOUGH)
    folder = output_folder(out / "recommend")
    with progress(quiet=as_json) as advance:
        recommendation = recommendations.run(
            loaded,
            bits=bits,
            nbytes=nbytes,
            step_cost=step_cost,
            candidates=spec or CANDIDATES,
            codebooks=books,
            steps=steps,
            share=share,
            min_quantized_size=min_quantized_size,
            progress=advance.stage("replay states"),
            workers=workers,
        )
    recommendations.write(recommendation, folder)
    if as_json:
        pairs = records(recommendation.pairs)
        print_json({**recommendation.summary(), "pairs": pairs, "quantized": loaded.quantized()})
        return
    options.print_source(loaded)
    _print(recommendation)
    print_lines(f"choice: {folder / 'choice.json'}")


def _print(recommendation: Recommendation) -> None:
    for title, rows in by_width(recommendation.pairs):
        print_rows(title, VERDICT_COLUMNS, rows)
    verdicts = recommendation.pairs.set_index("quantizer")["verdict"]
    for limit, pair in recommendation.best.items():
        best = "none" if pair is None else f"{pair} ({verdicts[pair.spec]})"
        print_lines(f"best up to {limit:g} bits: {best}")
    print_lines("", *str(recommendation).split("\n"), "")


def _loaded(states: Path, step: int | None, names: Path | None, enough: int = 2) -> CapturedStates:
    """Captured states of a step, by default of the last with `enough` recorded gradients."""
    from qmaps import capture
    from qmaps.analyze._states import with_gradients

    loaded = capture.load(states, step=step, names=names)
    return with_gradients(states, loaded, enough) if step is None else loaded
