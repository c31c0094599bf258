"""The pair of each parameter: within a budget of bytes, or in the fewest bytes for a loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from qmaps.algebra.pair import Pair
from qmaps.analyze import replay
from qmaps.analyze.design.choice import preferred
from qmaps.analyze.recommend.budget import Option, choose
from qmaps.analyze.recommend.candidates import FULL
from qmaps.analyze.recommend.loss import predicted, smallest
from qmaps.analyze.recommend.sizes import Sizes
from qmaps.analyze.recommend.verdict import cost_of, dangerous, records
from qmaps.analyze.replay.summary import SUMMED
from qmaps.errors import BadValueError, shown
from qmaps.maps.codebook import Codebook

TIE, NOTHING = 1.05, 1e-3
"""A single pair is preferred to exceptions that lower the error by less than this factor, or by
less than this; under a loss, to exceptions that lower the bytes by less than the factor."""


def within(
    budget: float, tensors: pd.DataFrame, table: pd.DataFrame, pairs: Sequence[Pair], sizes: Sizes
) -> dict[str, Pair]:
    """The pair of each parameter within a budget of bytes; one for all where that is as good."""
    picks = _picks(tensors, pairs)(budget)
    single = best_of(table, [p for p in pairs if sizes.total(p) <= budget], math.inf)
    if single is not None:
        alone = dict.fromkeys(picks, single)
        if _error(tensors, alone) <= TIE * _error(tensors, picks) + NOTHING:
            return alone
    return picks


def least(
    loss: float, tensors: pd.DataFrame, pairs: Sequence[Pair], sizes: Sizes
) -> dict[str, Pair]:
    """The pair of each parameter, in the fewest bytes for a loss; one for all if that is as small.

    Raises:
        BadValueError: the loss is less than is predicted for any choice.
    """

    def fits(picks: Mapping[str, Pair]) -> bool:
        return predicted(measures_of(tensors, picks)) <= loss

    def total(picks: Mapping[str, Pair]) -> int:
        return sum(sizes.of(name, pair) for name, pair in picks.items())

    picked = _picks(tensors, pairs)
    each = [[sizes.of(name, pair) for pair in [*pairs, FULL]] for name in sizes.numel]
    picks = smallest(picked, fits, sum(map(min, each)), sum(map(max, each)))
    if picks is None:
        best = predicted(measures_of(tensors, picked(math.inf)))
        raise BadValueError(
            f"loss={shown(loss)} is less than is predicted for any choice; the smallest is "
            f"{best:.2g}"
        )
    singles = (dict.fromkeys(picks, pair) for pair in sorted(pairs, key=sizes.total))
    alone = next((one for one in singles if fits(one)), None)
    return alone if alone is not None and total(alone) <= TIE * total(picks) else picks


def _picks(tensors: pd.DataFrame, pairs: Sequence[Pair]) -> Callable[[float], dict[str, Pair]]:
    """What chooses the pair of each parameter within a budget of bytes."""
    options = [*pairs, FULL]
    found: dict[str, dict[str, Option]] = {}
    for row in records(tensors):
        own = Option(int(row["nbytes"]), float(row["error"]))
        found.setdefault(row["parameter"], {})[row["quantizer"]] = own
    able = [[own[pair.spec] for pair in options] for own in found.values()]

    def picked(budget: float) -> dict[str, Pair]:
        return {
            name: options[place] for name, place in zip(found, choose(able, budget), strict=True)
        }

    return picked


def scaled(frame: pd.DataFrame, numel: Mapping[str, int]) -> pd.DataFrame:
    """A replay's frame with sums as of whole parameters, and `replayed`, the elements that were.

    Args:
        frame: of `qmaps.replay.run`.
        numel: elements of each parameter.
    """
    whole = frame["parameter"].map(numel)
    ratio = whole / frame["numel"]
    sums = {name: frame[name] * ratio for name in SUMMED}
    return frame.assign(replayed=frame["numel"], numel=whole, **sums)


def rows_of(tensors: pd.DataFrame, picks: Mapping[str, Pair]) -> pd.Series:
    """Which rows are those of a choice."""
    specs = {name: pair.spec for name, pair in picks.items()}
    return tensors["quantizer"] == tensors["parameter"].map(specs)


def measures_of(tensors: pd.DataFrame, picks: Mapping[str, Pair]) -> dict[str, Any]:
    """What `qmaps.replay.summarize` says of a choice."""
    taken = tensors[rows_of(tensors, picks)].assign(quantizer="choice")
    (measures,) = records(replay.summarize(replay_only(taken)))
    return measures


def _error(tensors: pd.DataFrame, picks: Mapping[str, Pair]) -> float:
    """The error of a choice for all parameters together."""
    errors = tensors.set_index(["parameter", "quantizer"])["error"]
    return float(sum(errors[name, pair.spec] for name, pair in picks.items()))


def best_of(table: pd.DataFrame, pairs: Sequence[Pair], limit: float) -> Pair | None:
    """The best single pair within bits per element, the simplest of equal ones."""
    rows = {row["quantizer"]: row for row in records(table)}
    within = {
        pair: {
            "selection_error": cost_of(row),
            "bits_per_element": row["bits_per_element"],
            "designed": not _is_known(pair),
            "stochastic": any(q is not None and q.stochastic for q in (pair.first, pair.second)),
        }
        for pair in pairs
        if (row := rows[pair.spec])["bits_per_element"] <= limit
        and not dangerous(row)
        and not math.isnan(cost_of(row))
    }
    return preferred(within) if within else None


def _is_known(pair: Pair) -> bool:
    return not any(q is not None and isinstance(q.map, Codebook) for q in (pair.first, pair.second))


def replay_only(tensors: pd.DataFrame) -> pd.DataFrame:
    """The columns that `qmaps.replay.summarize` knows."""
    own = ["replayed", "nbytes", "error", "verdict", "chosen"]
    return tensors.drop(columns=own, errors="ignore")
