"""qmaps' own checkpoints: any quantizer, and the choice of it in the groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from glob import escape
from typing import Any, ClassVar

from qmaps.algebra.quantizer import QuantizedTensor, Quantizer, quantizer
from qmaps.algebra.saved import from_plain, to_plain
from qmaps.capture.conversion.families import Family
from qmaps.capture.conversion.form import Group, OptimizerState, Parameter, State
from qmaps.capture.conversion.formats.base import (
    Format,
    Plan,
    Wanted,
    assembled,
    float_state,
    plain_options,
    written_states,
)
from qmaps.capture.conversion.formats.fp8 import unit
from qmaps.errors import BadTypeError, BadValueError
from qmaps.optim.choice import listed
from qmaps.optim.presets import PRESETS, preset
from qmaps.optim.saved_states import ABOUT, FORMAT, STREAM, check_form

MIN_SIZE = 4096
"""The default of `min_quantized_size`."""

FOREIGN = "max_exp_avg_sq"
"""The state that qmaps does not have."""


class Qmaps(Format):
    """``qmaps.optim``.

    Quantized states keep their codes and their codebooks, which the checkpoint holds. The options
    of the groups say how the training goes on: `state_quantizers`, `min_quantized_size`, and
    `overrides` for parameters that differ from their group. A parameter that differs and has no
    name is encoded as its group is, so that loading changes nothing further; in 32 bits it stays.
    """

    name: ClassVar[str] = "qmaps"
    widths: ClassVar[tuple[str, ...]] = tuple(PRESETS)
    asked: ClassVar[int] = 1
    keeps_resets: ClassVar[bool] = True

    def recognizes(self, state_dict: Mapping[str, Any]) -> bool:
        """Return True if it names qmaps, a group has `state_quantizers`, or a state is packed."""
        return (
            ABOUT in state_dict
            or any("state_quantizers" in group for group in state_dict["param_groups"])
            or any(
                _is_packed(value)
                for saved in state_dict["state"].values()
                for value in saved.values()
            )
        )

    def read(self, state_dict: Mapping[str, Any], hint: Family | None = None) -> OptimizerState:
        """Take a state_dict apart, if it is of a version that is known."""
        check_form(state_dict)
        return super().read(state_dict, hint)

    def states(self, saved: Mapping[Any, Any], label: str) -> dict[str, State]:  # noqa: ARG002
        """The states, quantized or float32."""
        return {
            str(name): from_plain(value) if isinstance(value, Mapping) else float_state(value)
            for name, value in saved.items()
            if name != "step" and value is not None
        }

    def options(self, saved: dict[str, Any], family: Family) -> dict[str, Any]:  # noqa: ARG002
        """The options as they are; numbers for tensors."""
        return plain_options(saved)

    def plan(self, state: OptimizerState, wanted: Wanted) -> tuple[OptimizerState, Plan]:
        """The quantizers asked for, or those that the source has; 8 bits where it has none."""
        if any(FOREIGN in parameter.states for parameter in state.parameters()):
            raise BadValueError(
                f"the checkpoint has {FOREIGN} (amsgrad=True), which qmaps does not support"
            )
        if wanted is None and not state.quantized():
            wanted = None if _chosen_by_qmaps(state) else "8bit"
        groups: list[Group] = []
        plan: Plan = {}
        unnamed: list[str] = []
        for group in state.groups:
            if wanted is not None:
                specs, size = _specs(wanted, state.family), MIN_SIZE
                own = _by_rule(group, specs, size)
                choice = {"state_quantizers": specs, "min_quantized_size": size, "overrides": {}}
            elif "state_quantizers" in group.options:
                own, choice = {p.label: _kept(p) for p in group.parameters}, {}
            else:
                own, choice, exact = _as_in_source(group, state.family)
                unnamed += exact
            plan |= own
            groups.append(replace(group, options={**group.options, **choice}))
        notes = state.notes
        if unnamed:
            stay = (
                "stays in 32 bits, and has no name"
                if len(unnamed) == 1
                else ("stay in 32 bits, and have no names")
            )
            notes += (
                f"{listed(unnamed)} {stay} by which overrides could say so: loading quantizes "
                "what the overrides of the loading optimizer do not name",
            )
        return replace(state, groups=tuple(groups), notes=notes), plan

    def write(self, state: OptimizerState) -> dict[str, Any]:
        """The state_dict, with the groups' choices."""
        saved = written_states(state, lambda _, value: to_plain(value))
        written = assembled(state, [dict(group.options) for group in state.groups], saved)
        return {**written, ABOUT: {"format": FORMAT, "stream": STREAM}}


def _chosen_by_qmaps(state: OptimizerState) -> bool:
    return any("state_quantizers" in group.options for group in state.groups)


def _kept(parameter: Parameter) -> dict[str, Quantizer | None]:
    """Return the quantizers of a parameter's states."""
    return {
        name: unit(value.quantizer) if isinstance(value, QuantizedTensor) else None
        for name, value in parameter.states.items()
    }


def _by_rule(
    group: Group, specs: Mapping[str, str | None], size: int
) -> dict[str, dict[str, Quantizer | None]]:
    """Encode a group's states by its specs; a state that has its spec keeps its quantizer."""
    plan: dict[str, dict[str, Quantizer | None]] = {}
    known = {q.spec: q for p in group.parameters for q in _kept(p).values() if q is not None}
    for parameter in group.parameters:
        plan[parameter.label] = {}
        for name, own in _kept(parameter).items():
            spec = specs.get(name) if parameter.numel > size else None
            q = None if spec is None else known.get(spec) or quantizer(spec)
            plan[parameter.label][name] = own if own is not None and own.spec == spec else q
    return plan


def _as_in_source(
    group: Group, family: Family
) -> tuple[dict[str, dict[str, Quantizer | None]], dict[str, Any], list[str]]:
    """A group's states as the source has them, the options that say so, and what they cannot say.

    That is which parameters without a name stay in 32 bits.
    """
    quantized = [p for p in group.parameters if any(_kept(p).values())]
    specs: dict[str, str | None] = {}
    for name in family.states:
        specs_of = [q.spec for p in quantized if (q := _kept(p).get(name)) is not None]
        if specs_of:
            specs[name] = Counter(specs_of).most_common(1)[0][0]
    size = min([MIN_SIZE, *(p.numel - 1 for p in quantized)])
    plan = _by_rule(group, specs, size)
    overrides: dict[str, dict[str, str | None]] = {}
    unnamed = []
    for parameter in group.parameters:
        own = _kept(parameter)
        if _spelled(own) == _spelled(plan[parameter.label]):
            continue
        if parameter.name is not None:
            overrides[escape(parameter.name)] = _spelled(own)
        elif any(own.values()):
            continue
        else:
            unnamed.append(parameter.label)
        plan[parameter.label] = own
    return (
        plan,
        {
            "state_quantizers": specs,
            "min_quantized_size": size,
            "overrides": overrides,
        },
        unnamed,
    )


def _spelled(quantizers: Mapping[str, Quantizer | None]) -> dict[str, str | None]:
    return {name: None if q is None else q.spec for name, q in quantizers.items()}


def _specs(wanted: str | Mapping[str, str | None], family: Family) -> dict[str, str | None]:
    own = [name for name in family.states if name != FOREIGN]
    if isinstance(wanted, str):
        return preset(wanted, "states").specs(own, family.signed)
    if not isinstance(wanted, Mapping):
        raise BadTypeError(f"states={wanted!r} must be a preset's name or a dict of specs")
    for name, spec in wanted.items():
        if name not in own:
            raise BadValueError(f"states names {name!r}, but the checkpoint has {', '.join(own)}")
        if spec is not None and name in family.signed and not quantizer(spec).map.signed:
            raise BadValueError(
                f"states sets {name!r} to {spec}, which is unsigned; {name} has negative values "
                "and needs a signed map"
            )
    return {name: None if spec is None else quantizer(spec).spec for name, spec in wanted.items()}


def _is_packed(value: Any) -> bool:
    return isinstance(value, Mapping) and {"packed", "spec"} <= value.keys()
