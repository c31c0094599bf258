"""``qmaps recommend``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qmaps.cli.options import (
    AsJson,
    CheckpointNames,
    Codebooks,
    MinSize,
    Out,
    RecordedStep,
    Seed,
    States,
    Workers,
    as_codebook,
    print_source,
    recorded,
)
from qmaps.cli.output import by_width, print_json, print_lines, print_table, progress
from qmaps.storage.files import records

if TYPE_CHECKING:
    from qmaps.analyze.recommend import Recommendation

COLUMNS = {
    "pair": "{label}",
    "bits": "{bits_per_element:.2f}",
    "verdict": "{verdict}",
    "about": "{reason}",
}


def recommend(
    states: States,
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
    loss: Annotated[
        float | None,
        typer.Option(
            help="Most nats of validation loss above 32 bits, instead of --bits: the smallest "
            "choice that is predicted to keep to it. The scale from step cost to loss is that of "
            "one small fine-tuned model; your model's may differ."
        ),
    ] = None,
    spec: Annotated[
        list[str] | None,
        typer.Option(
            help="A pair of quantizers such as 'B128/DE@4s + rank1/linear@4u', or a preset such as "
            "4bit; may be repeated. By default all presets and 15 other pairs."
        ),
    ] = None,
    codebook: Codebooks = None,
    diagnostics: Annotated[
        bool,
        typer.Option(
            "--diagnostics",
            help="Add pairs with a moment in 32 bits or a fitted map, and let them be chosen.",
        ),
    ] = False,
    names: CheckpointNames = None,
    step: RecordedStep = None,
    steps: Annotated[int, typer.Option(help="Steps of the replay, about.")] = 60,
    share: Annotated[
        float | None,
        typer.Option(
            help="Share of each parameter to replay, in whole rows: 0.01 is 1 %. By default about "
            "262,144 elements."
        ),
    ] = None,
    parameters: Annotated[
        list[str] | None,
        typer.Option(
            help="Names of parameters that may be quantized, with wildcards; may be repeated."
        ),
    ] = None,
    min_quantized_size: MinSize = 4096,
    seed: Seed = 0,
    workers: Workers = None,
    out: Out = Path("runs/recommend"),
    as_json: AsJson = False,
) -> None:
    """Recommend quantizers for Adam's moments; the choice goes to OUT/recommend/choice.json.

    Pairs of quantizers are replayed on recorded gradients, or on simulated ones. Each gets a
    verdict, and each parameter a pair within the budget. `qmaps.load_choice` reads the choice.

    Examples:

        qmaps capture stdlib-lm --out states --every 100 --gradients 50

        qmaps recommend states --bits 4.3 --out runs/mine

        qmaps recommend optimizer.pt --bytes 50000000

        qmaps recommend states --loss 0.01

        qmaps recommend checkpoint-500/optimizer.pt --names checkpoint-500/model.safetensors
    """
    from qmaps.analyze import recommend as recommendations
    from qmaps.analyze.recommend.candidates import CANDIDATES

    folder = out / "recommend"
    loaded = recorded(states, step, 10, names)
    with progress(quiet=as_json) as advance:
        recommendation = recommendations.run(
            loaded,
            bits=bits,
            nbytes=nbytes,
            loss=loss,
            candidates=spec or CANDIDATES,
            diagnostics=diagnostics,
            codebooks=[as_codebook(option) for option in codebook or []],
            steps=steps,
            share=share,
            parameters=parameters,
            min_quantized_size=min_quantized_size,
            seed=seed,
            progress=advance.stage("replay states", folder),
            workers=workers,
        )
    recommendations.write(recommendation, folder)
    if as_json:
        pairs = records(recommendation.pairs)
        print_json({**recommendation.summary(), "pairs": pairs, "quantized": loaded.quantized()})
        return
    print_source(loaded)
    _print(recommendation)
    print_lines(f"choice: {folder / 'choice.json'}")


def _print(recommendation: Recommendation) -> None:
    for table in by_width(recommendation.pairs, COLUMNS):
        print_table(*table)
    verdicts = recommendation.pairs.set_index("quantizer")["verdict"]
    for limit, pair in recommendation.best.items():
        best = "none" if pair is None else f"{pair} ({verdicts[pair.spec]})"
        print_lines(f"best up to {limit:g} bits: {best}")
    print_lines("", *str(recommendation).split("\n"), "")
