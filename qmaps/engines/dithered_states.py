"""Dithered states of optimizers: each tensor has the key of its last encoding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

from qmaps.algebra.philox import RoundingKey
from qmaps.algebra.quantizer import encoded_by
from qmaps.engines.step import ParameterStep, StateStep


class Dithered(NamedTuple):
    """A dithered state; its tensor has the key of its last encoding.

    Attributes:
        parameter: the parameter's number in the plan.
        storage: the states of the parameter by their names.
        state: the state.
        number: the state's number among the factored ones or among the others.
    """

    parameter: int
    storage: dict[str, Any]
    state: StateStep
    number: int

    @property
    def key(self) -> RoundingKey:
        """The key of its codes as they are stored now."""
        key = self.storage[self.state.name].key
        assert isinstance(key, RoundingKey)
        return key

    def advance(self, step: int) -> None:
        """Set the key of the completed step.

        Args:
            step: the number of the step, from 1 on.
        """
        assert self.state.key is not None
        encoded_by(self.storage[self.state.name], replace(self.state.key, step=step))


def dithered_states(parameter: int, step: ParameterStep) -> Iterator[Dithered]:
    """The dithered states of a parameter.

    Args:
        parameter: the parameter's number in the plan.
        step: the parameter.
    """
    numbers = {False: count(), True: count()}
    for state in step.states:
        number = next(numbers[state.factored])
        if state.quantizer is not None and state.quantizer.dithered:
            yield Dithered(parameter, step.storage, state, number)
