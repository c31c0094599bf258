"""qmaps' own checkpoints: any quantizer, and the choice of it in the groups."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from glob import escape
from typing import Any, ClassVar

from qmaps.algebra.quantizer import QuantizedTensor, Quantizer, quantizer
from qmaps.algebra.saved import from_plain, tensors_only, to_plain
from qmaps.capture.collect import in_memory, in_rows, is_packed
from qmaps.capture.conversion.formats import base, coded
from qmaps.capture.conversion.optimizer_state import Family, Group, OptimizerState, Parameter, State
from qmaps.errors import BadValueError, SpecError
from qmaps.optim.choice import Choices, listed
from qmaps.optim.presets import PRESETS
from qmaps.optim.saved_states import ABOUT, FORMAT, STREAM, check_form

MIN_SIZE = 4096
"""The default of `min_quantized_size`."""

FOREIGN = "max_exp_avg_sq"
"""The state that qmaps does not have."""


class Qmaps(base.Format):
    """``qmaps.optim``: quantized states keep their codes and their codebooks.

    The options of the groups say how the training goes on: `state_quantizers`,
    `min_quantized_size`, and `overrides` for parameters with other quantizers. Such a parameter
    without a name is encoded as its group is, or stays in 32 bits, so loading changes nothing
    further.
    """

    name: ClassVar[str] = "qmaps"
    package: ClassVar[str] = "qmaps.optim"
    widths: ClassVar[tuple[str, ...]] = tuple(PRESETS)
    asked: ClassVar[int] = 1
    keeps_resets: ClassVar[bool] = True

    def optimizer(self, name: str, specs: Mapping[str, str | None]) -> str:
        """Code of an optimizer, with a preset's name where there is one for these specs.

        Where a quantizer has a codebook of another library, the preset is that of its width: states
        keep the quantizers that they are loaded with.
        """
        signed = [state for state, spec in specs.items() if re.search(r"@[0-9]+s", spec or "")]
        same = (p for p, chosen in PRESETS.items() if chosen.specs(specs, signed) == dict(specs))
        try:
            for spec in filter(None, specs.values()):
                quantizer(spec)
            quantizers = json.dumps(next(same, dict(specs))).replace("null", "None")
        except SpecError:
            quantizers = json.dumps(f"{base.width_of(specs)}bit")
        return f"{name}(\n    model.named_parameters(),\n    state_quantizers={quantizers},\n)"

    def recognizes(self, state_dict: Mapping[str, Any]) -> bool:
        """Return True if it names qmaps, a group has `state_quantizers`, or a state has codes."""
        return (
            ABOUT in state_dict
            or any("state_quantizers" in group for group in state_dict["param_groups"])
            or any(
                is_packed(value) or in_rows(value)
                for saved in state_dict["state"].values()
                for value in saved.values()
            )
        )

    def read(self, state_dict: Mapping[str, Any], hint: Family | None = None) -> OptimizerState:
        """Take a state_dict apart, if its version is known."""
        check_form(state_dict)
        return super().read(state_dict, hint)

    def state(self, value: Any) -> State:
        """A state, quantized or float32; the rows of a sharded optimizer are joined."""
        value = in_memory(value)
        return from_plain(value) if isinstance(value, Mapping) else base.float_state(value)

    def plan(self, state: OptimizerState, wanted: base.Wanted) -> tuple[OptimizerState, base.Plan]:
        """The quantizers asked for, or those of the source; 8 bits if it has none."""
        if any(FOREIGN in parameter.states for parameter in state.parameters()):
            raise BadValueError(
                f"the checkpoint has {FOREIGN} (amsgrad=True), which qmaps does not support"
            )
        chosen = any("state_quantizers" in group.options for group in state.groups)
        if wanted is None and not chosen and not state.quantized():
            wanted = "8bit"
        names = [name for name in state.family.states if name != FOREIGN]
        choices = Choices("the checkpoint", names, state.family.signed, ())
        groups: list[Group] = []
        plan: base.Plan = {}
        unnamed: list[str] = []
        for group in state.groups:
            if wanted is not None:
                specs, size = choices.specs(wanted, "states"), MIN_SIZE
                quantizers = _by_rule(group, specs, size)
                choice = {"state_quantizers": specs, "min_quantized_size": size, "overrides": {}}
            elif "state_quantizers" in group.options:
                quantizers, choice = {p.label: _kept(p) for p in group.parameters}, {}
            else:
                quantizers, choice, exact = _as_in_source(group, state.family)
                unnamed += exact
            plan |= quantizers
            groups.append(replace(group, options={**group.options, **choice}))
        notes = state.notes
        if unnamed:
            notes += (
                f"parameters without names stay in 32 bits ({listed(unnamed)}); loading quantizes "
                "what the overrides of the loading optimizer do not name",
            )
        return replace(state, groups=tuple(groups), notes=notes), plan

    def write(self, state: OptimizerState) -> dict[str, Any]:
        """The state_dict, with the groups' choices."""

        def plain(_: str, t: QuantizedTensor) -> dict[str, Any]:
            return tensors_only(to_plain(t), t.device)

        saved = base.assembled(state, dict, lambda p, _: base.written(p, plain))
        about: dict[str, Any] = {"format": FORMAT, "stream": STREAM}
        if state.written_by:
            about["optimizer"] = state.written_by
        return {**saved, ABOUT: about}


def _kept(parameter: Parameter) -> dict[str, Quantizer | None]:
    """Return the quantizers of a parameter's states."""
    return {
        name: coded.unit(value.quantizer) if isinstance(value, QuantizedTensor) else None
        for name, value in parameter.states.items()
    }


def _by_rule(
    group: Group, specs: Mapping[str, str | None], size: int
) -> dict[str, dict[str, Quantizer | None]]:
    """Encode a group's states by its specs; a state already of its spec keeps its quantizer."""
    by_spec = {q.spec: q for p in group.parameters for q in _kept(p).values() if q is not None}

    def chosen(name: str, kept: Quantizer | None, numel: int) -> Quantizer | None:
        spec = specs.get(name) if numel > size else None
        if spec is None or (kept is not None and kept.spec == spec):
            return None if spec is None else kept
        return by_spec.get(spec) or quantizer(spec)

    return {
        p.label: {name: chosen(name, kept, p.numel) for name, kept in _kept(p).items()}
        for p in group.parameters
    }


def _as_in_source(
    group: Group, family: Family
) -> tuple[dict[str, dict[str, Quantizer | None]], dict[str, Any], list[str]]:
    """Return a group's quantizers in the source, options for them, and nameless exceptions."""
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
        quantizers = _kept(parameter)
        same = _spelled(quantizers) == _spelled(plan[parameter.label])
        if same or (any(quantizers.values()) and parameter.name is None):
            continue
        if parameter.name is not None:
            overrides[escape(parameter.name)] = _spelled(quantizers)
        else:
            unnamed.append(parameter.label)
        plan[parameter.label] = quantizers
    choice = {"state_quantizers": specs, "min_quantized_size": size, "overrides": overrides}
    return plan, choice, unnamed


def _spelled(quantizers: Mapping[str, Quantizer | None]) -> dict[str, str | None]:
    return {name: None if q is None else q.spec for name, q in quantizers.items()}
