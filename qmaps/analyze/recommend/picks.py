"""The pair of each parameter: within a budget of bytes, or in the fewest bytes for a loss."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from qmaps.algebra.pair import Pair
from qmaps.analyze import replay
from qmaps.analyze.recommend.budget import Option, Sizes, choose
from qmaps.analyze.recommend.candidates import FULL
from qmaps.analyze.recommend.verdict import cost_of, dangerous, predicted, smallest
from qmaps.analyze.replay.summary import SUMMED
from qmaps.errors import BadValueError, shown
from qmaps.maps.codebook import Codebook
from qmaps.storage.files import records

TIE, NOTHING = 1.05, 1e-3
"""A simpler choice is preferred to one that lowers the error by less than this factor, or by less
than this; under a loss, to one that lowers the bytes by less than the factor."""
NEGLIGIBLE = 1e-4
"""Single pairs whose errors are below this count as equally good."""


def within(
    budget: float, tensors: pd.DataFrame, table: pd.DataFrame, pairs: Sequence[Pair], sizes: Sizes
) -> dict[str, Pair]:
    """The pair of each parameter within a budget of bytes.

    It is one pair for all parameters, or one for each kind, where that is as good.
    """
    picks = _Options(tensors, pairs, str).within(budget)
    simpler = []
    single = best_of(table, [p for p in pairs if sizes.total(p) <= budget], math.inf)
    if single is not None:
        simpler.append(dict.fromkeys(picks, single))
    kinds = _Options(tensors, pairs, kind)
    if kinds.smallest <= budget:
        simpler.append(kinds.within(budget))
    limit = TIE * _error(tensors, picks) + NOTHING
    return next((choice for choice in simpler if _error(tensors, choice) <= limit), picks)


def least(
    loss: float, tensors: pd.DataFrame, pairs: Sequence[Pair], sizes: Sizes
) -> dict[str, Pair]:
    """The pair of each parameter, in the fewest bytes for a loss.

    It is one pair for all parameters, or one for each kind, where that is as small.

    Raises:
        BadValueError: the loss is less than is predicted for any choice.
    """

    def fits(picks: Mapping[str, Pair]) -> bool:
        return predicted(measures_of(tensors, picks)) <= loss

    def total(picks: Mapping[str, Pair]) -> int:
        return sum(sizes.of(name, pair) for name, pair in picks.items())

    parameters, kinds = (_Options(tensors, pairs, key) for key in (str, kind))
    picks = smallest(parameters.within, fits, parameters.smallest, parameters.largest)
    if picks is None:
        best = predicted(measures_of(tensors, parameters.within(math.inf)))
        raise BadValueError(
            f"loss={shown(loss)} is less than is predicted for any choice; the smallest is "
            f"{best:.2g}"
        )
    singles = (dict.fromkeys(picks, pair) for pair in sorted(pairs, key=sizes.total))
    alone = next((choice for choice in singles if fits(choice)), None)
    by_kind = smallest(kinds.within, fits, kinds.smallest, kinds.largest)
    limit = TIE * total(picks)
    return next((choice for choice in (alone, by_kind) if choice and total(choice) <= limit), picks)


def kind(parameter: str) -> str:
    """The name without the numbers of its layers: parameters with the same one are of a kind.

    >>> kind("layers.11.mlp.up.weight")
    'layers.*.mlp.up.weight'
    """
    return re.sub(r"(?<![^.])[0-9]+(?![^.])", "*", parameter)


class _Options:
    """Error and bytes of the pairs, and of 32 bits, for each group of parameters.

    Attributes:
        smallest, largest: bytes of the smallest choice of finite error, and of the largest.
    """

    def __init__(
        self, tensors: pd.DataFrame, pairs: Sequence[Pair], key: Callable[[str], str]
    ) -> None:
        self._pairs = [*pairs, FULL]
        self._groups = {name: key(name) for name in dict.fromkeys(tensors["parameter"])}
        sums: dict[tuple[str, str], Option] = {}
        for row in records(tensors):
            place = self._groups[row["parameter"]], row["quantizer"]
            nbytes, error = sums.get(place, (0, 0.0))
            sums[place] = Option(nbytes + int(row["nbytes"]), error + float(row["error"]))
        self._options = {
            group: [sums[group, pair.spec] for pair in self._pairs]
            for group in self._groups.values()
        }
        self.smallest, self.largest = (
            sum(
                limit(option.nbytes for option in options if math.isfinite(option.error))
                for options in self._options.values()
            )
            for limit in (min, max)
        )

    def within(self, budget: float) -> dict[str, Pair]:
        """The pair of each parameter within a budget of bytes."""
        places = choose(list(self._options.values()), budget)
        pairs = dict(zip(self._options, (self._pairs[place] for place in places), strict=True))
        return {name: pairs[group] for name, group in self._groups.items()}


def scaled(frame: pd.DataFrame, numel: Mapping[str, int]) -> pd.DataFrame:
    """A replay's frame with sums as of whole parameters of these sizes, and `replayed` elements."""
    numels = frame["parameter"].map(numel)
    ratio = numels / frame["numel"]
    sums = {name: frame[name] * ratio for name in SUMMED}
    return frame.assign(replayed=frame["numel"], numel=numels, **sums)


def rows_of(tensors: pd.DataFrame, picks: Mapping[str, Pair]) -> pd.Series:
    """Mask of the rows of a choice."""
    specs = {name: pair.spec for name, pair in picks.items()}
    return tensors["quantizer"] == tensors["parameter"].map(specs)


def measures_of(tensors: pd.DataFrame, picks: Mapping[str, Pair]) -> dict[str, Any]:
    """The row of `qmaps.replay.summarize` for a choice."""
    rows = tensors[rows_of(tensors, picks)].assign(quantizer="choice")
    (measures,) = records(replay.summarize(replay_only(rows)))
    return measures


def _error(tensors: pd.DataFrame, picks: Mapping[str, Pair]) -> float:
    """The error of a choice for all parameters together."""
    errors = tensors.set_index(["parameter", "quantizer"])["error"]
    return float(sum(errors[name, pair.spec] for name, pair in picks.items()))


def best_of(table: pd.DataFrame, pairs: Sequence[Pair], limit: float) -> Pair | None:
    """The best single pair within bits per element, and among equally good ones the simplest.

    Costs within the factor `TIE` of the least, or below `NEGLIGIBLE`, count as equal. Then fewest
    bits per element (to two decimals) come first, then maps known by name, then rounding to
    nearest, then the least cost.
    """
    rows = {row["quantizer"]: row for row in records(table)}
    costs = {
        pair: cost_of(row)
        for pair in pairs
        if (row := rows[pair.spec])["bits_per_element"] <= limit
        and not dangerous(row)
        and not math.isnan(cost_of(row))
    }

    def effort(pair: Pair) -> tuple[float, bool, bool, float]:
        members = [q for q in (pair.first, pair.second) if q is not None]
        custom_map = any(isinstance(q.map, Codebook) for q in members)
        stochastic = any(q.rounding.random for q in members)
        return round(rows[pair.spec]["bits_per_element"], 2), custom_map, stochastic, costs[pair]

    least = max(TIE * min(costs.values(), default=0.0), NEGLIGIBLE)
    return min((pair for pair, cost in costs.items() if cost <= least), key=effort, default=None)


def replay_only(tensors: pd.DataFrame) -> pd.DataFrame:
    """The columns of `qmaps.replay.run`."""
    added = ["replayed", "nbytes", "error", "verdict", "chosen"]
    return tensors.drop(columns=added, errors="ignore")
