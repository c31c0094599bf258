"""Steps of an optimizer's rule on sampled states, without rounding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from qmaps.optim.base import QuantizedOptimizer
from qmaps.optim.rule import UpdateRule

Values = dict[str, Tensor]
"""States of sampled elements by name, float32."""


def is_element_wise(
    optimizer: QuantizedOptimizer, parameter: Tensor, group: dict[str, Any]
) -> bool:
    """Return True if the next states of an element follow from that element alone."""
    if type(optimizer).advance is not UpdateRule.advance or optimizer.takes_norms:
        return False
    shapes = optimizer.state_shapes(parameter, group).values()
    return all(tuple(shape) == tuple(parameter.shape) for shape in shapes)


class Exact:
    """The exact states of several parameters' samples, stepped together.

    The optimizer's own rule steps them in float32, as its reference does, but the states are never
    encoded in between. An element-wise rule steps many samples in one call.

    Args:
        optimizer: an optimizer whose rule is element-wise.
        group: the parameter group of all of them.
        steps: number of steps taken so far, the same for all.
        param: the sampled values of the parameters, float32; changed here.
        states: the states of these elements, float32; changed here.
    """

    def __init__(
        self,
        optimizer: QuantizedOptimizer,
        group: dict[str, Any],
        steps: int,
        param: Tensor,
        states: Values,
    ) -> None:
        self._optimizer, self._group, self._taken = optimizer, group, steps
        self._param, self._states = param, states
        self._pending: list[tuple[Tensor, dict[str, float]]] = []

    def step(self, gradient: Tensor) -> None:
        """Take one step with the elements' gradient, float32 and not scaled.

        The rule is applied when the states are asked for: many steps in a row take less time than
        one after each step of the training, which has filled the processor's caches.
        """
        self._taken += 1
        exact = self._optimizer.scalars(self._group, self._taken)
        rounded = torch.tensor(list(exact.values()), dtype=torch.float64).float().tolist()
        self._pending.append((gradient, dict(zip(exact, rounded, strict=True))))

    @torch.no_grad()
    def states(self) -> Values:
        """The states after the steps so far, on the CPU."""
        for gradient, scalars in self._pending:
            self._optimizer.update(self._param, gradient, self._states, scalars)
        self._pending.clear()
        return {name: value.cpu() for name, value in self._states.items()}
