"""Displacement by quantized updates along the exact one, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pandas as pd

from qmaps.algebra.pair import listed
from qmaps.analyze._states import MIN_SIZE, States, as_states
from qmaps.analyze.replay.recursion import share
from qmaps.analyze.replay.run import PairSpec, check, chosen, recursions, replayed
from qmaps.analyze.replay.source import share_of, source
from qmaps.engines.threads import one_thread
from qmaps.optim.presets import pair_of

ELEMENTS = 4096
"""Elements of each parameter that are replayed, about."""
POINTS = 24
"""Most points of a curve."""


@one_thread()
def curves(
    states: States,
    specs: PairSpec | Iterable[PairSpec],
    *,
    steps: int | None = None,
    parameters: str | Iterable[str] | None = None,
    min_quantized_size: int = MIN_SIZE,
    progress: Callable[[int, int, str], None] | None = None,
) -> pd.DataFrame:
    """Replay Adam's moments as `run` does, and measure the way on its course.

    Args:
        states: as for `run`.
        specs: as for `run`.
        steps: as for `run`.
        parameters: names of parameters, with wildcards; all if left out.
        min_quantized_size: parameters of at most this many elements are left out.
        progress: as for `run`.

    Returns:
        One row per parameter, pair and point, at most 24 points: `parameter`,
        `quantizer`, `step` (of the replay, from 1 on), `displacement_gain` (how far the quantized
        updates have led along the way of the exact ones) and `displacement_error`. Parameters
        without recorded gradients beside others with some are left out.

    Raises:
        As `run`.
    """
    pairs = list(dict.fromkeys(pair_of(spec) for spec in listed(specs)))
    check(steps)
    captured = as_states(states)
    names = chosen(captured, parameters, min_quantized_size)
    numbers = {name: number for number, name in enumerate(captured.parameters())}
    rows = []
    for done, name in enumerate(names):
        if progress:
            progress(done, len(names), name)
        part = share_of(captured, [name], ELEMENTS)
        data = source(captured, name, numbers[name], steps=steps, share=part, seed=0)
        if data is None:
            continue
        _, first, second, updates = recursions(data, pairs, seed=0)
        last = data.steps - 1  # the last gradient only measures the update before it
        points = {-(-last * number // POINTS) for number in range(1, POINTS + 1)}
        for step in replayed(data, first, second, updates):
            if step not in points:
                continue
            rows += [
                {
                    "parameter": name,
                    "quantizer": pair.spec,
                    "step": step,
                    "displacement_gain": share(way["displacement_shared"], way["displacement"]),
                    "displacement_error": share(way["displacement_gap"], way["displacement"]),
                }
                for pair, way in zip(pairs, updates.displacements(), strict=True)
            ]
    if progress:
        progress(len(names), len(names), "")
    return pd.DataFrame(
        rows, columns=["parameter", "quantizer", "step", "displacement_gain", "displacement_error"]
    )
