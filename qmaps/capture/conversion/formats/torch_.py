"""torch's own optimizers: every state in 32 bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from qmaps.algebra.quantizer import values_of
from qmaps.capture.conversion.formats import base
from qmaps.capture.conversion.optimizer_state import OptimizerState, Parameter
from qmaps.engines.step import PRODUCT
from qmaps.optim.nadam import product_after


class Torch(base.Format):
    """``torch.optim``: float32 states under torch's names; unknown options of groups are kept."""

    name: ClassVar[str] = "torch"
    widths: ClassVar[tuple[str, ...]] = ("32bit",)
    asked: ClassVar[int] = 2  # it recognizes all

    def recognizes(self, state_dict: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """True: torch is the last format to be asked."""
        return True

    def plan(self, state: OptimizerState, wanted: base.Wanted) -> tuple[OptimizerState, base.Plan]:
        """Plan 32 bits for every state."""
        base.wanted_width(wanted, self)
        return state, {p.label: dict.fromkeys(p.states) for p in state.parameters()}

    def write(self, state: OptimizerState) -> dict[str, Any]:
        """The state_dict; steps are tensors, as in torch."""
        return base.assembled(state, base.without_qmaps, _entry)


def _entry(parameter: Parameter, options: dict[str, Any]) -> dict[str, Any]:
    """The entry of a parameter; of NAdam with the product of its momenta."""
    entry = base.written(parameter, lambda _, value: values_of(value))
    if parameter.step is None:
        entry.pop("step", None)
    elif entry and {"betas", "momentum_decay"} <= options.keys():
        product = product_after(int(parameter.step), options)
        entry.setdefault(PRODUCT, base.step_tensor(product))
    return entry
