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
from qmaps.errors import BadValueError
from qmaps.maps.codebook import Codebook
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
    elements: int = ELEMENTS,
    parameters: str | Iterable[str] | None = None,
    min_quantized_size: int = MIN_SIZE,
    codebooks: Iterable[Codebook] = (),
    seed: int = 0,
    progress: Callable[[int, int, str], None] | None = None,
) -> pd.DataFrame:
    """Replay Adam's moments as `run` does, and measure the way on its course.

    Args:
        states: as for `run`.
        specs: as for `run`.
        steps: as for `run`.
        elements: elements of each parameter to replay, about, in whole rows.
        parameters: names of parameters, with wildcards; all if left out.
        min_quantized_size: parameters of at most this many elements are left out.
        codebooks: codebooks named by the specs.
        seed: as for `run`.
        progress: as for `run`.

    Returns:
        One row per parameter, pair and point, at most 24 points: `parameter`,
        `quantizer`, `step` (of the replay, from 1 on), `displacement_gain` (how far the quantized
        updates have led along the way of the exact ones) and `displacement_error`. Parameters
        without recorded gradients beside others with some are left out.

    Raises:
        As `run`; BadValueError also if `elements` is below 1.
    """
    books = tuple(codebooks)
    pairs = list(dict.fromkeys(pair_of(spec, books) for spec in listed(specs)))
    if not pairs or elements < 1:
        raise BadValueError(f"elements={elements!r} must be at least 1, and specs not empty")
    check(steps, seed=seed)
    captured = as_states(states)
    names = chosen(captured, parameters, min_quantized_size)
    numbers = {name: number for number, name in enumerate(captured.parameters())}
    rows = []
    for done, name in enumerate(names):
        if progress:
            progress(done, len(names), name)
        part = share_of(captured, [name], elements)
        data = source(captured, name, numbers[name], steps=steps, share=part, seed=seed)
        if data is None:
            continue
        _, first, second, updates = recursions(data, pairs, seed)
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
