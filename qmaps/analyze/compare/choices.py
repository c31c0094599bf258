"""Two choices of quantizers: their differences, bytes and step costs."""

from __future__ import annotations

import glob
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import pandas as pd

from qmaps.algebra.pair import Pair
from qmaps.analyze import replay
from qmaps.analyze._states import MIN_SIZE, States, as_states
from qmaps.analyze.recommend.candidates import FULL, MOMENTS
from qmaps.analyze.recommend.picks import measures_of, rows_of, scaled
from qmaps.analyze.recommend.verdict import cost_of, predicted, verdict
from qmaps.analyze.replay.source import share_of
from qmaps.analyze.replay.zero_points import count_all
from qmaps.errors import BadValueError
from qmaps.optim import Choice
from qmaps.optim.presets import pair_of

CHOICES = ("A", "B")
OTHERS = "all others"
"""What stands for the parameters that no override names."""
UNKNOWN = "depends"
"""What stands for the pair of a pattern that the other choice's patterns may cut in parts."""
SHAPE = (1024, 1024)
"""The shape whose bits per element are told where there are no states."""
STEPS, ELEMENTS = 60, 2**18
"""Steps and elements of the replay, about, as in `qmaps.recommend`."""


@dataclass(frozen=True)
class ChoicesCompared:
    """Two choices of quantizers, A and B.

    Attributes:
        parameters: one row per parameter of the states; without states one per pattern of the
            overrides of either, and one for all other parameters. Columns: `parameter`, `A` and `B`
            (specs of the pairs; ``depends`` for a pattern of the other choice alone, if this
            one has overrides, too), `bits_A` and `bits_B` (per element; without states those of a
            matrix of 1024 x 1024), `differs`; with states also `numel`, `bytes_A` and `bytes_B`.
        summary: one row per choice: `choice`, `bits_per_element` and `nbytes` of both moments of
            all parameters of the states, `step_cost`, `loss` (as in `qmaps.recommend`), `verdict`,
            `reason`, `gradients`. Without states it is empty.
    """

    parameters: pd.DataFrame = field(repr=False)
    summary: pd.DataFrame


def choices(
    a: Choice,
    b: Choice,
    states: States | None = None,
    *,
    steps: int = STEPS,
    share: float | None = None,
    seed: int = 0,
    progress: Callable[[int, int, str], None] | None = None,
) -> ChoicesCompared:
    """Compare two choices of quantizers for Adam's moments.

    Args:
        a: the one choice.
        b: the other.
        states: states for the replay of both: captured states, their path, or tensors by
            parameter and state name. Recorded gradients are replayed, or simulated ones.
        steps: steps of the replay, about.
        share: share of each parameter to replay, in (0, 1]: whole rows, spread evenly. By default
            about 262,144 elements.
        seed: of stochastic rounding and of simulated gradients, 0 to 2**32 - 1.
        progress: as in `qmaps.replay.run`.

    Raises:
        BadValueError: a choice has quantizers of other states than Adam's.
        CaptureError: as in `qmaps.replay.run`.
    """
    choices = dict(zip(CHOICES, (a, b), strict=True))
    if states is None:
        return ChoicesCompared(_patterns(choices), pd.DataFrame())
    captured = as_states(states)
    shapes = {
        name: captured.shape(name, MOMENTS[0])
        for name in captured.parameters()
        if set(MOMENTS) <= set(captured.states(name))
    }
    picks = {
        which: {name: _pair(choice, name, math.prod(shape)) for name, shape in shapes.items()}
        for which, choice in choices.items()
    }
    rows = []
    for name, shape in shapes.items():
        numel = math.prod(shape)
        nbytes = {which: _nbytes(picks[which][name], shape) for which in CHOICES}
        bits = {which: 4 * size / max(numel, 1) for which, size in nbytes.items()}
        rows.append(_row(name, {which: picks[which][name] for which in CHOICES}, bits))
        rows[-1] |= {"numel": numel} | {f"bytes_{which}": size for which, size in nbytes.items()}
    frame = pd.DataFrame(rows)
    window = len(captured.window())
    names = [name for name in shapes if len(captured.window(name)) > 1 or not window]
    pairs = dict.fromkeys([*(pair for pairs in picks.values() for pair in pairs.values()), FULL])
    replayed = replay.run(
        captured,
        pairs,
        steps=min(steps, window) if window else steps,
        rounds=max(1, round(steps / window)) if window else 1,
        share=share_of(captured, names, ELEMENTS) if share is None else share,
        parameters=[glob.escape(name) for name in names],
        min_quantized_size=0,
        seed=seed,
        progress=progress,
    )
    replayed = count_all(replayed, captured, pairs, seed)
    scaled_rows = scaled(replayed, dict(zip(frame["parameter"], frame["numel"], strict=True)))
    return ChoicesCompared(frame, _summary(scaled_rows, frame, picks))


def _summary(
    measured: pd.DataFrame, frame: pd.DataFrame, picks: dict[str, dict[str, Pair]]
) -> pd.DataFrame:
    """Bytes and step cost of each choice, from one replay of all its pairs."""
    rows = []
    for which, pairs in picks.items():
        measures = measures_of(measured, pairs)
        judged = verdict(measures, measured[rows_of(measured, pairs)])
        nbytes = int(frame[f"bytes_{which}"].sum())
        rows.append(
            {
                "choice": which,
                "bits_per_element": 4 * nbytes / int(frame["numel"].sum()),
                "nbytes": nbytes,
                "step_cost": cost_of(measures),
                "loss": predicted(measures),
                "verdict": judged.level,
                "reason": judged.reason,
                "gradients": measures["gradients"],
            }
        )
    return pd.DataFrame(rows)


def _patterns(choices: dict[str, Choice]) -> pd.DataFrame:
    """A row for each pattern of either choice, and one for all others."""
    numel = math.prod(SHAPE)
    rows: list[tuple[str, Mapping[str, Pair | None]]] = []
    for pattern in dict.fromkeys(p for choice in choices.values() for p in choice.overrides):
        pairs = {which: _of_pattern(choice, pattern) for which, choice in choices.items()}
        rows.append((pattern, pairs))
    defaults = {
        which: _members(choice, choice.state_quantizers) for which, choice in choices.items()
    }
    rows.append((OTHERS, defaults))
    return pd.DataFrame(
        _row(
            name,
            pairs,
            {
                which: math.nan if pair is None else 4 * _nbytes(pair, SHAPE) / numel
                for which, pair in pairs.items()
            },
        )
        for name, pairs in rows
    )


def _of_pattern(choice: Choice, pattern: str) -> Pair | None:
    """The pair for all parameters of a pattern; None if it depends on the parameter."""
    if pattern in choice.overrides:
        return _members(choice, choice.overrides[pattern])
    name = re.sub(r"\[([*?[])\]", r"\1", pattern)
    if glob.escape(name) == pattern:  # it is the name of one parameter
        return _pair(choice, name, math.prod(SHAPE))
    return None if choice.overrides else _members(choice, choice.state_quantizers)


def _row(name: str, pairs: Mapping[str, Pair | None], bits: dict[str, float]) -> dict[str, Any]:
    specs = {which: UNKNOWN if pair is None else pair.spec for which, pair in pairs.items()}
    return {
        "parameter": name,
        **specs,
        **{f"bits_{which}": value for which, value in bits.items()},
        "differs": len(set(specs.values())) > 1,
    }


def _pair(choice: Choice, name: str, numel: int) -> Pair:
    """The quantizers of a parameter in an optimizer, as `qmaps.optim.choice` decides."""
    min_size = MIN_SIZE if choice.min_quantized_size is None else choice.min_quantized_size
    if numel <= min_size:
        return FULL
    matching = (quantizers for p, quantizers in choice.overrides.items() if fnmatchcase(name, p))
    return _members(choice, next(matching, choice.state_quantizers))


def _members(choice: Choice, quantizers: Any) -> Pair:
    """The pair of a preset's name, of quantizers by state name, or of None."""
    if quantizers is None:
        return FULL
    if isinstance(quantizers, str):
        return pair_of(quantizers)
    for state in quantizers:
        if state not in MOMENTS:
            raise BadValueError(
                f"the choice for {choice.optimizer} has quantizers for {state!r}; only those of "
                f"Adam's {' and '.join(MOMENTS)} can be compared"
            )
    return Pair(quantizers.get(MOMENTS[0]), quantizers.get(MOMENTS[1]))


def _nbytes(pair: Pair, shape: tuple[int, ...]) -> int:
    full = 4 * math.prod(shape)
    return sum(full if q is None else q.nbytes(shape) for q in (pair.first, pair.second))
