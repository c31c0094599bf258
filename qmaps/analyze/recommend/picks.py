"""The pair of all parameters, or of each kind, within a budget of bytes or a step cost."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from qmaps.algebra.pair import Pair
from qmaps.analyze.limits import BITS
from qmaps.analyze.recommend.candidates import FULL
from qmaps.analyze.recommend.verdict import HARMLESS, cost_of, dangerous
from qmaps.capture import CapturedStates
from qmaps.engines.step import MOMENTS
from qmaps.errors import BadValueError, check_number, shown
from qmaps.maps.codebook import Codebook
from qmaps.storage.files import records

TIE = 1.05
"""Single pairs whose errors differ by less than this factor count as equally good."""
NEGLIGIBLE = 1e-4
"""Single pairs whose errors are below this count as equally good."""


class Option(NamedTuple):
    """Bytes and error of one tensor under one pair; an error that is not finite is never chosen."""

    nbytes: int
    error: float


def choose(tensors: Sequence[Sequence[Option]], nbytes: float) -> list[int]:
    """The option of each tensor, of little total error within the budget.

    Each tensor starts with the fewest bytes; then the step with the largest fall of the error per
    byte is taken again and again, if it fits. While every step fits, choices are those of a
    Lagrange multiplier, so each is the best one for its bytes.

    Args:
        tensors: the options of each tensor, each with at least one of finite error.
        nbytes: most bytes of all tensors together.

    Returns:
        One index into its options for each tensor.

    Raises:
        BadValueError: the fewest bytes are more than `nbytes`; the message has both numbers.

    Source: Shoham and Gersho (1988), "Efficient bit allocation for an arbitrary set of quantizers".
    """
    choices = [
        min((option, index) for index, option in enumerate(options) if math.isfinite(option.error))
        for options in tensors
    ]
    used = sum(option.nbytes for option, _ in choices)
    if used > nbytes:
        raise BadValueError(
            f"no choice takes {nbytes:,.0f} bytes or less; the smallest takes {used:,.0f}"
        )

    def best_step(tensor: int) -> tuple[float, int, tuple[Option, int]] | None:
        """The step of a tensor with the largest fall per byte that fits."""
        current, left = choices[tensor][0], nbytes - used
        fitting = (
            (fall / max(added, 1), tensor, (option, index))
            for index, option in enumerate(tensors[tensor])
            if (fall := current.error - option.error) > 0
            and (added := option.nbytes - current.nbytes) <= left
        )
        return max(fitting, default=None)

    steps = {tensor: step for tensor in range(len(tensors)) if (step := best_step(tensor))}
    while steps:
        _, tensor, choice = max(steps.values())
        added = choice[0].nbytes - choices[tensor][0].nbytes
        if used + added <= nbytes:  # other tensors may have taken the bytes since
            used += added
            choices[tensor] = choice
        if step := best_step(tensor):
            steps[tensor] = step
        else:
            del steps[tensor]
    return [index for _, index in choices]


class Sizes:
    """Bytes of the states of a run under any pair, where some parameters are quantized.

    Attributes:
        numel: elements of each of these parameters.
        rest: bytes of the states of all other parameters, in 32 bits.
    """

    def __init__(self, states: CapturedStates, names: Sequence[str]) -> None:
        self._shapes = {name: states.shape(name, MOMENTS[0]) for name in names}
        self.numel = {name: math.prod(shape) for name, shape in self._shapes.items()}
        self.rest = sum(
            4 * math.prod(states.shape(name, state))
            for name in states.parameters()
            if name not in self._shapes
            for state in states.values(name)
        )

    def of(self, name: str, pair: Pair) -> int:
        """Bytes of both moments of a parameter."""
        return sum(
            4 * self.numel[name] if q is None else q.nbytes(self._shapes[name])
            for q in (pair.first, pair.second)
        )

    def total(self, pair: Pair) -> int:
        """Bytes of the moments of all these parameters."""
        return sum(self.of(name, pair) for name in self.numel)

    def budget(self, bits: float | None, nbytes: float | None, pairs: Sequence[Pair]) -> float:
        """Bytes for the moments of these parameters.

        Raises:
            BadValueError: it is less than the smallest pair takes.
        """
        numel = sum(self.numel.values())
        smallest = sum(min(self.of(name, pair) for pair in pairs) for name in self.numel)
        if nbytes is not None:
            if nbytes < smallest + self.rest:
                raise BadValueError(
                    f"nbytes={shown(nbytes)} is less than any choice takes; the smallest takes "
                    f"{smallest + self.rest}, {self.rest} of them for states that stay in 32 bits"
                )
            return nbytes - self.rest
        wanted = BITS if bits is None else bits
        if wanted * numel / 4 < smallest:
            raise BadValueError(
                f"bits={shown(wanted)} is less than any choice takes; the smallest takes "
                f"{math.ceil(400 * smallest / numel) / 100:.2f} bits per state element"
            )
        return wanted * numel / 4


def check_budget(**budgets: float | None) -> None:
    """Raise if a budget is not allowed, or if more than one is given."""
    budgets_given = {name: value for name, value in budgets.items() if value is not None}
    if len(budgets_given) > 1:
        values = " and ".join(f"{name}={shown(value)}" for name, value in budgets_given.items())
        raise BadValueError(f"{values}: give one of them")
    for name, value in budgets_given.items():
        check_number(name, value)
        if not 0 < value < math.inf:
            raise BadValueError(f"{name}={shown(value)} must be above 0 and finite")


def within(
    budget: float, tensors: pd.DataFrame, table: pd.DataFrame, pairs: Sequence[Pair], sizes: Sizes
) -> dict[str, Pair]:
    """The pair of each parameter within a budget of bytes.

    It is the best harmless pair for all parameters, or, where none within the budget is harmless,
    one for each kind of parameter, of the least total error.
    """
    harmless = set(table.loc[table["verdict"].isin(HARMLESS), "quantizer"])
    affordable = [pair for pair in pairs if pair.spec in harmless and sizes.total(pair) <= budget]
    single = best_of(table, affordable, math.inf)
    if single is not None:
        return dict.fromkeys(sizes.numel, single)
    kinds = {name: kind(name) for name in sizes.numel}
    sums = tensors.groupby([tensors["parameter"].map(kinds), "quantizer"])[
        ["nbytes", "error"]
    ].sum()
    options = dict(zip(sums.index, map(Option, sums["nbytes"], sums["error"]), strict=True))
    mixed = [*pairs, FULL]
    of_kinds = {name: [options[name, pair.spec] for pair in mixed] for name in kinds.values()}
    places = dict(zip(of_kinds, choose(list(of_kinds.values()), budget), strict=True))
    return {name: mixed[places[of_name]] for name, of_name in kinds.items()}


def least(
    step_cost: float, table: pd.DataFrame, pairs: Sequence[Pair], sizes: Sizes
) -> dict[str, Pair]:
    """The pair of fewest bytes whose step cost is at most this one, for all parameters.

    Raises:
        BadValueError: no pair has so small a step cost.
    """
    costs = {
        row["quantizer"]: math.inf if dangerous(row) else cost_of(row) for row in records(table)
    }
    fitting = [pair for pair in pairs if costs[pair.spec] <= step_cost]
    if not fitting:
        raise BadValueError(
            f"step_cost={shown(step_cost)} is less than that of any pair; the smallest is "
            f"{min(costs[pair.spec] for pair in pairs):.2g}"
        )
    return dict.fromkeys(sizes.numel, min(fitting, key=sizes.total))


def kind(parameter: str) -> str:
    """The name without the numbers of its layers: parameters with the same one are of a kind.

    >>> kind("layers.11.mlp.up.weight")
    'layers.*.mlp.up.weight'
    """
    return re.sub(r"(?<![^.])[0-9]+(?![^.])", "*", parameter)


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
        stochastic = any(q.stochastic for q in members)
        return round(rows[pair.spec]["bits_per_element"], 2), custom_map, stochastic, costs[pair]

    least = max(TIE * min(costs.values(), default=0.0), NEGLIGIBLE)
    return min((pair for pair, cost in costs.items() if cost <= least), key=effort, default=None)
