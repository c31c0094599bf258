"""torch's own optimizers: every state in 32 bits."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch

from qmaps import optim
from qmaps.algebra.quantizer import values_of
from qmaps.capture.conversion.formats import base
from qmaps.capture.conversion.optimizer_state import Family, OptimizerState, Parameter
from qmaps.engines.step import PRODUCT
from qmaps.errors import CaptureError
from qmaps.optim.choice import listed
from qmaps.optim.nadam import product_after
from qmaps.optim.options import TORCH_OPTIONS
from qmaps.optim.other_libraries import OTHER_RULES, other_rules

SHARED = frozenset({"adam", "lion", "sgd"})
"""Families whose states have the names of those of other rules."""

CLASSES = {"adam": ("Adam", "AdamW", "NAdam")}
"""Classes of a family, where it is not the one of the same name."""

TAGS = (
    *("initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum"),
    *("default_config", "is_decoupled_lr", "is_expert_parallel", "lr_mult", "wd_mult", "lr_scale"),
)
"""Entries of groups that schedulers of torch, Megatron and timm read, and no rule."""

NEUTRAL = {"bias_correction": True, "correct_bias": True, "caution": False}
"""Options of Adam and Lion elsewhere, with the value that changes nothing."""


class Torch(base.Format):
    """``torch.optim``: float32 states under torch's names; unknown options of groups are kept."""

    name: ClassVar[str] = "torch"
    package: ClassVar[str] = "torch.optim"
    rules: ClassVar[frozenset[str] | None] = frozenset(optim.rules()) & {*dir(torch.optim)}
    widths: ClassVar[tuple[str, ...]] = ("32bit",)
    asked: ClassVar[int] = 2  # it recognizes all

    def recognizes(self, state_dict: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """True: torch is the last format to be asked."""
        return True

    def read(self, state_dict: Mapping[str, Any], hint: Family | None = None) -> OptimizerState:
        """Take a state_dict apart, unless another rule may have written its states."""
        state = super().read(state_dict, hint)
        signs = [sign for group in state.groups if (sign := other_rules(group.options))]
        family = state.family.name
        if signs and family in SHARED and hint is not state.family:
            raise CaptureError(
                f"the checkpoint has the states of {family}, but {signs[0]}; if its rule is that "
                f"of {family}, set optimizer to {family}"
            )
        known = _options(state.family)
        odd = {
            name
            for group in state.groups
            for name, value in group.options.items()
            if name not in known
            and not (name in NEUTRAL and value == NEUTRAL[name])
            and not _is_tag(name, value)
        }
        if not odd:
            return state
        note = (
            f"groups have {listed(sorted(odd))}, unknown to {family}: if these are no tags but "
            "options of another rule, its next update differs"
        )
        return replace(state, notes=(*state.notes, note))

    def plan(self, state: OptimizerState, wanted: base.Wanted) -> tuple[OptimizerState, base.Plan]:
        """Plan 32 bits for every state."""
        base.wanted_width(wanted, self)
        return state, {p.label: dict.fromkeys(p.states) for p in state.parameters()}

    def write(self, state: OptimizerState) -> dict[str, Any]:
        """The state_dict; steps are tensors, as in torch."""
        return base.assembled(state, base.without_qmaps, _entry)


def _is_tag(name: str, value: Any) -> bool:
    """True for learning rates of schedulers, such as ``swa_lr``, and for text, such as a name."""
    return isinstance(value, str) or (name.endswith("_lr") and name not in OTHER_RULES)


def _options(family: Family) -> set[str]:
    """The options of a family's optimizers, in torch and here, and those that schedulers add."""
    rules = optim.rules()
    names = CLASSES.get(family.name) or [name for name in rules if name.lower() == family.name]
    classes = [cls for name in names for cls in (rules[name], getattr(torch.optim, name, None))]
    options = {*base.OF_QMAPS, *TORCH_OPTIONS, *TAGS, "maximize"}
    return options.union(*(inspect.signature(cls).parameters for cls in classes if cls))


def _entry(parameter: Parameter, options: dict[str, Any]) -> dict[str, Any]:
    """The entry of a parameter; of NAdam with the product of its momenta."""
    entry = base.written(parameter, lambda _, value: values_of(value))
    if parameter.step is None:
        entry.pop("step", None)
    elif entry and {"betas", "momentum_decay"} <= options.keys():
        product = product_after(int(parameter.step), options)
        entry.setdefault(PRODUCT, base.step_tensor(product))
    return entry
