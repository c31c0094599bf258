"""The recommendation of a run folder, and what its page shows beside it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from qmaps.algebra.pair import Pair
from qmaps.analyze import recommend, replay
from qmaps.analyze.recommend.candidates import PRESETS
from qmaps.capture import CapturedStates
from qmaps.lab.compare import Contender
from qmaps.optim.choice_file import load_choice
from qmaps.storage.files import read_record

FOLDER = "recommend"
SHOWN = 64
"""Parameters with replay curves: those with the most elements."""


def recommend_for(
    states: CapturedStates,
    run: Path,
    *,
    min_quantized_size: int,
    progress: Callable[[int, int, str], None] | None = None,
    executor: Executor | None = None,
) -> None:
    """Recommend quantizers for states, and replay some parameters step by step.

    Everything goes to ``run/recommend``. What is there of the same states already is kept.

    Args:
        states: the captured states, with gradients where some were recorded.
        run: the run folder.
        min_quantized_size: parameters of at most this many elements stay in 32 bits.
        progress: called before each parameter with the number of parameters done, the number of
            all, and the parameter's name, at the end with an empty name; then again for the
            replays.
        executor: workers that judge parameters, as for `qmaps.recommend.run`.
    """
    folder = run / FOLDER
    identity: dict[str, Any] = {
        "states": states.fingerprint(),
        "gradients": states.window(),
        "min_quantized_size": min_quantized_size,
    }
    if recommend.holds(folder, identity):
        return
    recommendation = recommend.run(
        states, min_quantized_size=min_quantized_size, progress=progress, executor=executor
    )
    tensors = recommendation.tensors.drop_duplicates("parameter")
    largest = tensors.nlargest(SHOWN, "numel")["parameter"]
    chosen = recommendation.tensors.loc[recommendation.tensors["chosen"], "quantizer"].unique()
    curves = replay.curves(
        states,
        dict.fromkeys([*PRESETS, *chosen]),
        steps=60,
        parameters=list(largest),
        min_quantized_size=min_quantized_size,
        progress=progress,
    )
    recommend.write(recommendation, folder, curves=curves, states=identity)


def contender(run: Path) -> Contender:
    """An AdamW with the choice of ``run/recommend``."""
    folder = run / FOLDER
    bits = read_record(folder / "summary.json")["bits_per_element"]
    choice = load_choice(folder / "choice.json")
    return Contender(f"recommended ({bits:.2f} bits)", **choice, key="recommended")


def main_pair(run: Path) -> list[str]:
    """The pair of most elements in the choice of ``run/recommend``; none if it is 32 bits."""
    quantizers = load_choice(run / FOLDER / "choice.json")["state_quantizers"]
    return [Pair(*quantizers.values()).spec] if quantizers else []
