"""Which quantizers are safe for the states of a run, and which to take."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from qmaps.algebra.pair import Pair
from qmaps.analyze import replay
from qmaps.analyze._states import MIN_SIZE, States, as_states
from qmaps.analyze.design.choice import preferred
from qmaps.analyze.recommend.budget import Option, choose
from qmaps.analyze.recommend.candidates import CANDIDATES, LIMITS, MOMENTS, PRESETS, diagnostic
from qmaps.analyze.recommend.verdict import LEVELS, verdict
from qmaps.analyze.replay.run import Given, check, chosen
from qmaps.capture import CapturedStates
from qmaps.errors import BadTypeError, BadValueError, shown
from qmaps.maps.codebook import Codebook

BITS = 4.3
STEPS = 200
"""Steps of the replay, about."""
ELEMENTS = 2**18
"""Elements that are replayed if the share is left out, about."""
FULL = Pair(None, None)


@dataclass(frozen=True)
class Recommendation:
    """Verdicts on pairs of quantizers, and the choice under a budget.

    Attributes:
        pair: the pair of most elements.
        exceptions: other pairs by parameter name.
        pairs: a row per candidate; see `run`.
        tensors: a row per parameter and candidate; see `run`.
        best: for each of `LIMITS` bits per element the best single pair, or None.
        nbytes: what the states of the choice take, parameters that are not quantized included.
        full_nbytes: what they take in 32 bits.
        error: the displacement error of the choice.
        gradients: ``recorded``, ``simulated`` or ``mixed``.
        step: step of the states.
        source: where they come from.
    """

    pair: Pair
    exceptions: dict[str, Pair]
    pairs: pd.DataFrame = field(repr=False)
    tensors: pd.DataFrame = field(repr=False)
    best: dict[float, Pair | None]
    nbytes: int
    full_nbytes: int
    error: float
    gradients: str
    step: int
    source: str


def run(
    states: States,
    *,
    bits: float | None = None,
    nbytes: float | None = None,
    candidates: Iterable[Given] = CANDIDATES,
    codebooks: Iterable[Codebook] = (),
    steps: int = STEPS,
    share: float | None = None,
    parameters: str | Iterable[str] | None = None,
    min_quantized_size: int = MIN_SIZE,
    seed: int = 0,
    progress: Callable[[int, int, str], None] | None = None,
) -> Recommendation:
    """Judge pairs of quantizers on the states of a run, and choose one for each parameter.

    Each candidate is replayed (`qmaps.replay.run`), and its `displacement_error` decides: the
    updates of a pair lead that far from the exact ones. Parameters get different pairs where that
    lowers the error of all together: each gets the candidate on the convex hull of its errors
    over bytes that the budget allows (`qmaps.analyze.recommend.budget.choose`).

    Args:
        states: captured states, their path, or tensors by parameter and state name. Recorded
            gradients are replayed about `steps` steps, round after round; without any, they are
            simulated from the moments.
        bits: most bits per element, scales included, as the mean over both moments of all
            parameters that may be quantized. 4.3 if `nbytes` is left out too.
        nbytes: most bytes of all states together, also of those that are not quantized.
        candidates: pairs of quantizers. Those with a moment in 32 bits, or with a map fitted to
            the data, are judged and never chosen.
        codebooks: codebooks of the caller's own that candidates name.
        steps: steps of the replay, about, at least 2.
        share: share of each parameter to replay, in (0, 1]: whole rows, spread evenly. By default
            so many that about 262,144 elements are replayed.
        parameters: names of parameters, with wildcards; all if left out.
        min_quantized_size: parameters of at most this many elements stay in 32 bits.
        seed: of stochastic rounding and of simulated gradients, 0 to 2**32 - 1.
        progress: as in `qmaps.replay.run`.

    Returns:
        The recommendation. Its frame `pairs` has the columns of `qmaps.replay.summarize` after
        `preset` (name, or empty), `verdict` (``safe``, ``caution`` or ``unsafe``), `reason`,
        `diagnostic` (bool) and `nbytes` (of all states); the safest come first, of these the
        least error. `tensors` has the columns of `qmaps.replay.run` and `nbytes` (of both
        moments), `verdict`, `chosen`.

    Raises:
        BadValueError, BadTypeError: an argument is not allowed, `parameters` matches nothing, or
            no choice meets the budget; the message has the smallest that one does.
        CaptureError: as in `qmaps.replay.run`.
    """
    _check_budget(bits, nbytes)
    known = tuple(codebooks)
    pairs = list(dict.fromkeys(Pair.parse(spec, known) for spec in candidates))
    able = [pair for pair in pairs if not diagnostic(pair)]
    if not able:
        raise BadValueError("candidates must hold at least one pair that quantizes both moments")
    check(steps, share=1.0 if share is None else share, seed=seed)
    captured = as_states(states)
    names = chosen(captured, parameters, min_quantized_size)
    sizes = _Sizes(captured, names)
    budget = sizes.budget(bits, nbytes, able)
    window = len(captured.window())
    rounds = max(1, -(-steps // window)) if window else 1
    frame = replay.run(
        captured,
        pairs,
        steps=None if window else steps,
        rounds=rounds,
        share=sizes.share() if share is None else share,
        parameters=names,
        min_quantized_size=min_quantized_size,
        codebooks=known,
        seed=seed,
        progress=progress,
    )
    tensors = _tensors(frame, sizes)
    table = _pairs(tensors, sizes)
    picks = _picks(tensors, able, budget)
    tensors["chosen"] = [picks[row.parameter].spec == row.quantizer for row in tensors.itertuples()]
    most = _of_most_elements(picks, sizes)
    replayed = set(frame["parameter"])
    taken = tensors[tensors["chosen"]]
    return Recommendation(
        pair=most,
        exceptions={name: pair for name, pair in picks.items() if pair != most},
        pairs=table,
        tensors=tensors,
        best={limit: _best(table, able, limit) for limit in LIMITS},
        nbytes=sizes.rest + sum(sizes.of(name, picks.get(name, FULL)) for name in names),
        full_nbytes=sizes.rest + sum(sizes.of(name, FULL) for name in names),
        error=float(taken["whole_gap"].sum() / taken["whole_displacement"].sum())
        if replayed
        else math.nan,
        gradients=str(table["gradients"].iloc[0]),
        step=captured.step,
        source=captured.source,
    )


class _Sizes:
    """What the states of a run take, under any pair.

    Args:
        states: the captured states.
        names: the parameters that may be quantized; all others stay in 32 bits.
    """

    def __init__(self, states: CapturedStates, names: Sequence[str]) -> None:
        self._shapes = {name: states.shape(name, MOMENTS[0]) for name in names}
        rows = {name: states.rows(name) for name in names}
        self._held = sum(
            math.prod(shape if (own := rows[name]) is None else (len(own), *shape[1:]))
            for name, shape in self._shapes.items()
        )
        self.numel = {name: math.prod(shape) for name, shape in self._shapes.items()}
        self.rest = sum(
            4 * math.prod(states.shape(name, state))
            for name in states.parameters()
            if name not in self._shapes
            for state in states.states(name)
        )

    def of(self, name: str, pair: Pair) -> int:
        """Bytes of both moments of a parameter."""
        return sum(
            4 * self.numel[name] if q is None else q.nbytes(self._shapes[name])
            for q in (pair.first, pair.second)
        )

    def share(self) -> float:
        """The share of the elements that about `ELEMENTS` are."""
        return min(1.0, ELEMENTS / self._held)

    def budget(self, bits: float | None, nbytes: float | None, pairs: Sequence[Pair]) -> float:
        """Bytes that the moments of these parameters may take.

        Raises:
            BadValueError: it is less than the fewest that one of the pairs takes.
        """
        numel = sum(self.numel.values())
        least = sum(min(self.of(name, pair) for pair in pairs) for name in self.numel)
        if nbytes is not None:
            if nbytes < least + self.rest:
                raise BadValueError(
                    f"nbytes={shown(nbytes)} is less than any choice takes; the smallest takes "
                    f"{least + self.rest}, {self.rest} of them for states that stay in 32 bits"
                )
            return nbytes - self.rest
        wanted = BITS if bits is None else bits
        if wanted * numel / 4 < least:
            raise BadValueError(
                f"bits={shown(wanted)} is less than any choice takes; the smallest takes "
                f"{math.ceil(400 * least / numel) / 100:.2f} bits per element"
            )
        return wanted * numel / 4


def _check_budget(bits: float | None, nbytes: float | None) -> None:
    if bits is not None and nbytes is not None:
        raise BadValueError(f"bits={shown(bits)} and nbytes={shown(nbytes)}: give one of them")
    for name, value in (("bits", bits), ("nbytes", nbytes)):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise BadTypeError(f"{name}={shown(value)} must be a number")
        if not 0 < value < math.inf:
            raise BadValueError(f"{name}={shown(value)} must be above 0 and finite")


def _tensors(frame: pd.DataFrame, sizes: _Sizes) -> pd.DataFrame:
    """The replay's frame with bytes, and with sums as of whole parameters instead of samples."""
    whole = frame["parameter"].map(sizes.numel) / frame["numel"]
    pairs = {spec: Pair.parse(spec) for spec in frame["quantizer"].unique()}
    rows = [(row.parameter, pairs[row.quantizer]) for row in frame.itertuples()]
    return frame.assign(
        nbytes=[sizes.of(name, pair) for name, pair in rows],
        whole_gap=frame["displacement_gap"] * whole,
        whole_displacement=frame["displacement"] * whole,
    )


def _pairs(tensors: pd.DataFrame, sizes: _Sizes) -> pd.DataFrame:
    """A row per candidate, the safest first."""
    parts = dict(list(tensors.groupby("quantizer")))
    table = replay.summarize(tensors.drop(columns=["nbytes", "whole_gap", "whole_displacement"]))
    found = [verdict(row, parts[row["quantizer"]]) for row in table.to_dict("records")]
    about = pd.DataFrame(
        {
            "quantizer": table["quantizer"],
            "preset": [PRESETS.get(spec, "") for spec in table["quantizer"]],
            "verdict": [each.level for each in found],
            "reason": [each.reason for each in found],
            "nbytes": [sizes.rest + int(parts[s]["nbytes"].sum()) for s in table["quantizer"]],
        }
    )
    table = about.merge(table, on="quantizer")
    order = table["verdict"].map(LEVELS.index)
    return (
        table.assign(order=order)
        .sort_values(["order", "displacement_error"], ignore_index=True)
        .drop(columns="order")
    )


def _picks(tensors: pd.DataFrame, pairs: Sequence[Pair], budget: float) -> dict[str, Pair]:
    """The pair of each parameter."""
    names, options = [], []
    for name, group in tensors.groupby("parameter", sort=False):
        rows = group.set_index("quantizer")
        own = [
            Option(int(rows.at[p.spec, "nbytes"]), float(rows.at[p.spec, "whole_gap"]))
            for p in pairs
        ]
        names.append(str(name))
        options.append(own)
    return {name: pairs[index] for name, index in zip(names, choose(options, budget), strict=True)}


def _of_most_elements(picks: dict[str, Pair], sizes: _Sizes) -> Pair:
    total: dict[Pair, int] = {}
    for name, pair in picks.items():
        total[pair] = total.get(pair, 0) + sizes.numel[name]
    return max(total, key=lambda pair: total[pair])


def _best(table: pd.DataFrame, pairs: Sequence[Pair], limit: float) -> Pair | None:
    """The best single pair within bits per element, the simplest of equal ones."""
    rows = table.set_index("quantizer")
    within = {
        pair: {
            "selection_error": row["displacement_error"],
            "bits_per_element": row["bits_per_element"],
            "designed": False,
            "stochastic": "+sr" in pair.spec,
        }
        for pair in pairs
        if (row := rows.loc[pair.spec])["bits_per_element"] <= limit
        and not math.isnan(row["displacement_error"])
    }
    return preferred(within) if within else None
