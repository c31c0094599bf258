"""Bytes of the states of a run, and budgets for them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from qmaps.algebra.pair import Pair
from qmaps.analyze.recommend.candidates import MOMENTS
from qmaps.capture import CapturedStates
from qmaps.errors import BadTypeError, BadValueError, shown

BITS = 4.3
"""Bits per element if no budget is given."""


class Sizes:
    """Bytes of the states of a run under any pair.

    Args:
        states: the captured states.
        names: the parameters that may be quantized; all others stay in 32 bits.

    Attributes:
        numel: elements of each of these parameters.
        rest: bytes of the states of all other parameters.
    """

    def __init__(self, states: CapturedStates, names: Sequence[str]) -> None:
        self._shapes = {name: states.shape(name, MOMENTS[0]) for name in names}
        self._known: dict[tuple[str, Pair], int] = {}
        self.numel = {name: math.prod(shape) for name, shape in self._shapes.items()}
        self.rest = sum(
            4 * math.prod(states.shape(name, state))
            for name in states.parameters()
            if name not in self._shapes
            for state in states.states(name)
        )

    def of(self, name: str, pair: Pair) -> int:
        """Bytes of both moments of a parameter."""
        if (name, pair) not in self._known:
            self._known[name, pair] = sum(
                4 * self.numel[name] if q is None else q.nbytes(self._shapes[name])
                for q in (pair.first, pair.second)
            )
        return self._known[name, pair]

    def total(self, pair: Pair) -> int:
        """Bytes of the moments of all these parameters."""
        return sum(self.of(name, pair) for name in self.numel)

    def budget(self, bits: float | None, nbytes: float | None, pairs: Sequence[Pair]) -> float:
        """Bytes that the moments of these parameters may take.

        Raises:
            BadValueError: it is less than the fewest that one of the pairs takes.
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
                f"{math.ceil(400 * smallest / numel) / 100:.2f} bits per element"
            )
        return wanted * numel / 4


def check_budget(**budgets: float | None) -> None:
    """Raise if a budget is not allowed, or if more than one is given."""
    budgets_given = {name: value for name, value in budgets.items() if value is not None}
    if len(budgets_given) > 1:
        values = " and ".join(f"{name}={shown(value)}" for name, value in budgets_given.items())
        raise BadValueError(f"{values}: give one of them")
    for name, value in budgets_given.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise BadTypeError(f"{name}={shown(value)} must be a number")
        if not 0 < value < math.inf:
            raise BadValueError(f"{name}={shown(value)} must be above 0 and finite")
