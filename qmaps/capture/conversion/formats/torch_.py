"""torch's own optimizers: every state in 32 bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from qmaps.algebra.quantizer import values_of
from qmaps.capture.conversion.formats.base import (
    Format,
    Plan,
    Wanted,
    assembled,
    float_state,
    step_tensor,
    wanted_width,
    without_qmaps,
    written_states,
)
from qmaps.capture.conversion.optimizer_state import OptimizerState, State
from qmaps.engines.step import PRODUCT
from qmaps.optim.nadam import product_after


class Torch(Format):
    """``torch.optim``: float32 states under torch's names; unknown options of groups are kept."""

    name: ClassVar[str] = "torch"
    widths: ClassVar[tuple[str, ...]] = ("32bit",)
    asked: ClassVar[int] = 2  # it recognizes all

    def recognizes(self, state_dict: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """True: torch is the last format to be asked."""
        return True

    def states(self, saved: Mapping[Any, Any], label: str) -> dict[str, State]:  # noqa: ARG002
        """The states, in float32 whatever their dtype."""
        # SGD keeps a None before it has momentum.
        return {
            str(name): float_state(value)
            for name, value in saved.items()
            if name != "step" and value is not None
        }

    def plan(self, state: OptimizerState, wanted: Wanted) -> tuple[OptimizerState, Plan]:
        """Plan 32 bits for every state."""
        wanted_width(wanted, self)
        return state, {p.label: dict.fromkeys(p.states) for p in state.parameters()}

    def write(self, state: OptimizerState) -> dict[str, Any]:
        """The state_dict; steps are tensors, as in torch."""
        saved = written_states(state, lambda _, value: values_of(value))
        for group in state.groups:
            for parameter in group.parameters:
                entry = saved[parameter.label]
                if parameter.step is None:
                    entry.pop("step", None)
                elif entry and {"betas", "momentum_decay"} <= group.options.keys():
                    product = product_after(int(parameter.step), group.options)
                    entry.setdefault(PRODUCT, step_tensor(product))
        return assembled(state, without_qmaps, saved)
