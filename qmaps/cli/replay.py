"""Replays of optimizer states: ``qmaps replay`` and ``recommend``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qmaps.cli import options
from qmaps.cli.output import (
    by_width,
    labelled,
    print_json,
    print_lines,
    print_rows,
    print_text,
    progress,
)
from qmaps.storage.files import output_folder, records

if TYPE_CHECKING:
    from qmaps.analyze.recommend import Recommendation
    from qmaps.capture import CapturedStates

COLUMNS = {
    "pair": "{quantizer}",
    "bits": "{bits}",
    "step cost": "{step_cost:.3f}",
    "gain": "{update_gain:.2f}",
    "noise": "{update_noise:.2f}",
    "largest": "{largest_update:.2g}",
    "stalled": "{stalled_share_first:.0%}, {stalled_share_second:.0%}",
    "v after fall": "{fall_ratio_second:.2g}",
}
SHORT_COLUMNS = {
    "pair": "{label}",
    "bits": "{bits}",
    "bytes": "{bytes}",
    "step cost": "{step_cost:.2g}",
    "verdict": "{verdict}",
}
ROWS = 6
"""Rows of the table beside an answer."""
VERDICT_COLUMNS = {
    "pair": "{label}",
    "bits": "{bits}",
    "verdict": "{verdict}",
    "about": "{reason}",
}
UNITS = "bits: per state element, scales included. bytes: of both states, per parameter."


def replay(
    states: options.States,
    spec: options.Pairs = None,
    load: options.Load = None,
    codebook: options.CodebookFiles = None,
    out: options.Out = Path("runs/replay"),
    step: options.Step = None,
    names: options.CheckpointNames = None,
    first: options.First = None,
    second: options.Second = None,
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
    loaded = options.as_adam(_loaded(states, step, names), first, second)
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
        labelled(records(summary.head(top))),
    )
    if kind != "recorded":
        print_lines("gradients were not recorded; they were simulated from the moments")
    print_lines(f"rows: {folder / 'replay.parquet'}")


def recommend(
    states: options.States,
    bits: Annotated[
        float | None,
        typer.Option(
            help="Most bits per state element, scales included, as the mean of both moments; by "
            "default 4.3."
        ),
    ] = None,
    nbytes: Annotated[
        int | None, typer.Option("--bytes", help="Most bytes of all states, instead of --bits.")
    ] = None,
    step_cost: Annotated[
        float | None,
        typer.Option(
            help="Largest step cost, instead of --bits: the pair of fewest bytes that keeps to it. "
            "0.02 stands for updates that go 2 % less far along the exact ones."
        ),
    ] = None,
    spec: options.Pairs = None,
    load: options.Load = None,
    codebook: options.CodebookFiles = None,
    names: options.CheckpointNames = None,
    first: options.First = None,
    second: options.Second = None,
    step: options.Step = None,
    steps: Annotated[int, typer.Option(help="Steps of the replay, about.")] = 60,
    share: options.Share = None,
    min_quantized_size: options.MinSize = 4096,
    workers: options.Workers = None,
    out: options.Out = Path("runs/recommend"),
    every: Annotated[
        bool, typer.Option("--all", help="Print every pair, with the reason of its verdict.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Recommend quantizers for Adam's moments; the choice goes to OUT/recommend/choice.json.

    Pairs of quantizers are replayed on recorded gradients, or on simulated ones. Each gets a
    verdict, and the best one without a problem within the budget is chosen. The answer comes with
    lines to paste, and a table of six pairs; `state_quantizers="choice.json"` reads the choice.

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
    from qmaps.analyze.recommend.snippets import CHOICE

    books = options.own_codebooks(load, codebook)
    loaded = options.as_adam(_loaded(states, step, names, ENOUGH), first, second)
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
    _print(recommendation, folder / CHOICE, every)


def _shortlist(recommendation: Recommendation) -> list[dict[str, Any]]:
    """At most six pairs: the choice, the best of each width, then presets and others."""
    pairs = recommendation.pairs
    best = [pair.spec for pair in recommendation.best.values() if pair is not None]
    presets = pairs.loc[pairs["preset"] != "", "quantizer"]
    order = dict.fromkeys([*recommendation.specs, *best, *presets, *pairs["quantizer"]])
    named = [spec for spec in order if spec in set(pairs["quantizer"])][:ROWS]
    rows = pairs[pairs["quantizer"].isin(named)].sort_values("bits_per_element", kind="stable")
    chosen = recommendation.specs if len(recommendation.specs) == 1 else []
    return [
        {**row, "label": "* " * (row["quantizer"] in chosen) + row["label"]}
        for row in labelled(records(rows))
    ]


def _print(recommendation: Recommendation, choice: Path, every: bool) -> None:
    """Print the answer, and the table beside it."""
    from qmaps.analyze.recommend.verdict import CLEAN, UNPROVEN, UNSAFE

    rows = _shortlist(recommendation)
    print_lines(*recommendation.answer(choice).split("\n"), "")
    print_rows("The step cost decides", SHORT_COLUMNS, rows)
    print_text(
        UNITS,
        f"step cost: clean up to {CLEAN}, unproven up to {UNPROVEN}, caution up to {UNSAFE}."
        + " *: the choice." * (len(recommendation.specs) == 1),
    )
    if every:
        _print_all(recommendation)
    else:
        more = len(recommendation.pairs) - len(rows)
        print_text(
            f"--all shows the reason of each verdict{f' and {more} more pairs' * (more > 0)}."
        )
    print_lines(f"choice: {choice}")


def _print_all(recommendation: Recommendation) -> None:
    """Print every pair with its reason, the best ones, and what such verdicts came to."""
    from qmaps.analyze.recommend.verdict import experience

    for title, rows in by_width(recommendation.pairs):
        print_lines("")
        print_rows(title, VERDICT_COLUMNS, rows)
    print_lines("")
    verdicts = recommendation.pairs.set_index("quantizer")["verdict"]
    for limit, pair in recommendation.best.items():
        best = "none" if pair is None else f"{pair} ({verdicts[pair.spec]})"
        print_lines(f"best up to {limit:g} bits: {best}")
    level, cost = recommendation.verdict, recommendation.step_cost
    print_text(experience(level, cost, recommendation.gradients))


def _loaded(states: Path, step: int | None, names: Path | None, enough: int = 2) -> CapturedStates:
    """Captured states of a step, by default of the last with `enough` recorded gradients."""
    from qmaps import capture
    from qmaps.analyze.states import with_gradients

    loaded = capture.load(states, step=step, names=names)
    return with_gradients(states, loaded, enough) if step is None else loaded
