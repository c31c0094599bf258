"""bitsandbytes: 8 bits in blocks of 256, and 32 bits for small tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from qmaps.algebra.quantizer import QuantizedTensor, Quantizer, quantizer
from qmaps.capture.conversion.formats import base, coded
from qmaps.capture.conversion.optimizer_state import Family, OptimizerState, Parameter, State
from qmaps.errors import BadValueError, CaptureError
from qmaps.maps.base import Map
from qmaps.optim.options import TORCH_OPTIONS

WRAPPED = "__bnb_optimizer_quant_state__"
"""Where newer versions keep the tensors of a state; all of them read states without it."""

BLOCK = 256
"""Elements a block, built into its kernels."""

BLOCKS = (256, 2048, 4096, 1024, 512, 128, 64)
"""Block sizes that its versions have had, today's first."""

LEAST = 4096
"""Tensors of fewer elements stay in 32 bits."""

SLOW = "state1 (slow)"
"""The second half of AdEMAMix's `state1`."""


@dataclass(frozen=True)
class StateSlots:
    """Names of the states of a family of optimizers in bitsandbytes.

    Attributes:
        slots: the states in `state1` and, where there is one, `state2`.
        betas: torch's name of the option stored in `betas`, or in its first entry; "" if none.
        usual: value of `betas` where the source has no such option.
        eps: value of eps where the source has none; None if the rule has no eps.
        fixed: options of torch with a single supported value.
        extra: further options of bitsandbytes.
    """

    slots: tuple[tuple[str, ...], ...]
    betas: str
    usual: tuple[float, ...]
    eps: float | None = None
    fixed: Mapping[str, object] = field(default_factory=dict)
    extra: Mapping[str, object] = field(default_factory=dict)


SLOTS = {
    "adam": StateSlots(
        (("exp_avg",), ("exp_avg_sq",)),
        "betas",
        (0.9, 0.999),
        1e-8,
        extra={"alpha": 0.0, "t_alpha": None, "t_beta3": None},
    ),
    "ademamix": StateSlots(
        (("exp_avg", "exp_avg_slow"), ("exp_avg_sq",)), "betas", (0.9, 0.999, 0.9999), 1e-8
    ),
    "lion": StateSlots((("exp_avg",),), "betas", (0.9, 0.99)),
    "sgd": StateSlots(
        (("momentum_buffer",),), "momentum", (0.9, 0), fixed={"dampening": 0, "nesterov": False}
    ),
    "rmsprop": StateSlots(
        (("square_avg",),), "alpha", (0.99, 0), 1e-8, fixed={"momentum": 0, "centered": False}
    ),
    "adagrad": StateSlots((("sum",),), "", (0.0, 0.0), 1e-10, fixed={"lr_decay": 0}),
}
"""By the family's name. Those with one slot cannot be told from each other by a checkpoint."""


class BitsAndBytes(base.Format):
    """``bitsandbytes.optim``: `state1` and `state2`, `absmax1`, `qmap1` and so on.

    Other block-wise 8-bit states in blocks of 256 are carried over as they are, with their
    codebooks. Other states are encoded by ``B256/DE@8s`` and ``B256/DE@8u``, the library's own maps
    but for the last bit of some values. Either all states of a parameter are quantized or none: a
    32-bit parameter of a quantizing source stays so; otherwise those of at least 4096 elements are
    quantized.
    """

    name: ClassVar[str] = "bitsandbytes"
    package: ClassVar[str] = "bitsandbytes.optim"
    rules: ClassVar[frozenset[str] | None] = frozenset(
        {"AdEMAMix", "Adagrad", "Adam", "AdamW", "LAMB", "LARS", "Lion", "RMSprop", "SGD"}
    )
    widths: ClassVar[tuple[str, ...]] = ("8bit", "32bit")

    def recognizes(self, state_dict: Mapping[str, Any]) -> bool:
        """Return True if a state has `state1`."""
        return any("state1" in saved or WRAPPED in saved for saved in state_dict["state"].values())

    def states(self, saved: Mapping[Any, Any], label: str) -> dict[str, State]:  # noqa: ARG002
        """The states under bitsandbytes' names: `state1`, its slow half and `state2`."""
        flat = {**saved, **saved.get(WRAPPED, {})}
        if "state1" not in flat:
            return {}
        for name in ("state1", "state2", "absmax1", "absmax2"):
            if name in flat and not isinstance(flat[name], Tensor):
                raise BadValueError(f"{name} must be a tensor, got {type(flat[name]).__name__}")
        parts = halves(flat)
        if len(parts) == 3:
            first = flat["state1"]
            if len(first) != 2 or len(flat.get("absmax1", (None, None))) != 2:
                raise BadValueError(
                    f"state1 has shape {tuple(first.shape)}; it must consist of two halves"
                )
        return {
            SLOW if half == 1 else f"state{index}": slot_state(flat, index, half)
            for index, half in parts
        }

    def named(self, states: dict[str, State], hint: Family | None) -> dict[str, State]:
        """The states under torch's names."""
        if not states:
            return {}
        if len(states) > 1:
            names = [*SLOTS["ademamix" if SLOW in states else "adam"].slots]
        else:
            alone = [name for name, layout in SLOTS.items() if len(layout.slots) == 1]
            if hint is None or hint.name not in alone:
                hint_states = "" if hint is None else f"; {hint.name} has more states"
                raise CaptureError(
                    "the checkpoint is of a bitsandbytes optimizer with one state and does not "
                    f"say which; set optimizer to one of {', '.join(alone)}{hint_states}"
                )
            names = [*SLOTS[hint.name].slots]
        return dict(zip([name for slot in names for name in slot], states.values(), strict=True))

    def options(self, saved: dict[str, Any], family: Family) -> dict[str, Any]:
        """The options under torch's names."""
        layout, options = SLOTS[family.name], super().options(saved, family)
        betas, eps = tuple(options.pop("betas", layout.usual)), options.pop("eps", layout.eps)
        renamed: dict[str, Any] = dict(layout.fixed)
        if layout.betas:
            renamed[layout.betas] = betas if layout.betas == "betas" else betas[0]
        if layout.eps is not None:
            renamed["eps"] = eps
        if family.moments is not None and options.get("weight_decay"):
            renamed["decoupled_weight_decay"] = True  # its Adam decouples weight decay too
        return {k: v for k, v in options.items() if k not in layout.extra} | renamed

    def plan(self, state: OptimizerState, wanted: base.Wanted) -> tuple[OptimizerState, base.Plan]:
        """8 bits where the source has them or tensors are large; 32 bits elsewhere."""
        width = base.wanted_width(wanted, self)
        if state.family.name not in SLOTS:
            raise BadValueError(
                f"the checkpoint has states of {state.family.name}; bitsandbytes has "
                f"{', '.join(SLOTS)}"
            )
        base.refuse_options(state, {"maximize": False, **SLOTS[state.family.name].fixed}, self.name)
        notes = list(state.notes)
        for number, group in enumerate(state.groups):
            decay = group.options.get("weight_decay", 0)
            if decay and group.options.get("decoupled_weight_decay") is False:
                notes.append(
                    f"group {number} adds weight_decay={decay} to gradients, as torch's Adam does; "
                    "bitsandbytes shrinks parameters by it, as AdamW does"
                )
        by_size = not state.quantized() or width == "8bit"
        plan: base.Plan = {}
        for parameter in state.parameters():
            for name in state.family.optional & parameter.states.keys():
                raise BadValueError(
                    f"parameter {parameter.label!r} has the state {name}, which bitsandbytes does "
                    "not have"
                )
            has = any(isinstance(value, QuantizedTensor) for value in parameter.states.values())
            eight = width != "32bit" and (
                has or (by_size and bool(parameter.states) and parameter.numel >= LEAST)
            )
            plan[parameter.label] = (
                _eight_bits(parameter, state.family) if eight else dict.fromkeys(parameter.states)
            )
        return replace(state, notes=tuple(notes)), plan

    def write(self, state: OptimizerState) -> dict[str, Any]:
        """The state_dict; every version since blocks have 256 elements reads it."""
        books: dict[Map, Tensor] = {}
        options = partial(_options, family=state.family)
        return base.assembled(state, options, lambda p, _: _written(p, state.family, books))


def halves(flat: Mapping[str, Any]) -> list[tuple[int, int | None]]:
    """Return the index of each state, and the half of it where two are stacked, else None."""
    if "state2" not in flat:
        return [(1, None)]
    if len(flat["state1"].shape) != len(flat["state2"].shape) + 1:
        return [(1, None), (2, None)]
    return [(1, 0), (1, 1), (2, None)]


def slot_state(flat: Mapping[str, Any], index: int, half: int | None) -> State:
    """Return `state1` or `state2`, or a half of it."""
    value: Any = flat[f"state{index}"]
    absmax: Any = flat.get(f"absmax{index}")
    if half is not None:
        value, absmax = value[half], None if absmax is None else absmax[half]
    if not isinstance(value, Tensor) or value.dtype != torch.uint8:
        return base.float_state(value)
    shape = tuple(value.shape)
    missing = [name for name in (f"qmap{index}", f"absmax{index}") if name not in flat]
    if missing:
        raise BadValueError(f"the 8-bit states lack {', '.join(missing)}")
    blocks = len(absmax)
    sizes = [size for size in BLOCKS if -(-math.prod(shape) // size) == blocks]
    if not sizes:
        raise BadValueError(f"absmax{index} has {blocks} values, which fits no block size")
    return coded.from_codes(
        value, flat[f"qmap{index}"], absmax, shape, bits=8, block=sizes[0], label="bitsandbytes"
    )


def _eight_bits(parameter: Parameter, family: Family) -> dict[str, Quantizer | None]:
    """The quantizer of each state; those in one slot share a codebook."""
    plan: dict[str, Quantizer | None] = {}
    for name, value in parameter.states.items():
        source_quantizer = None
        if isinstance(value, QuantizedTensor):
            value = coded.same_codes(value, coded.unit(value.quantizer)) or value
            source_quantizer = value.quantizer if coded.holds(value, 8, BLOCK) else None
        plan[name] = source_quantizer or quantizer(
            f"B{BLOCK}/DE@8{'s' if name in family.signed else 'u'}"
        )
    for slot in SLOTS[family.name].slots:
        if len({q.map for name in slot if (q := plan[name]) is not None}) > 1:
            plan |= dict.fromkeys(slot, quantizer(f"B{BLOCK}/DE@8s"))
    return plan


def _written(parameter: Parameter, family: Family, books: dict[Map, Tensor]) -> dict[str, Any]:
    if not parameter.states:
        return {}
    flat: dict[str, Any] = {"step": int(parameter.step or 1)}
    for index, slot in enumerate(SLOTS[family.name].slots, 1):
        parts = [parameter.states[name] for name in slot]
        quantized = [part for part in parts if isinstance(part, QuantizedTensor)]
        values = [part for part in parts if isinstance(part, Tensor)]
        if quantized:
            map_ = quantized[0].quantizer.map
            if map_ not in books:
                books[map_] = coded.codebook_of(map_, 256)
            values = [part.codes().to(torch.uint8) for part in quantized]
            flat[f"qmap{index}"] = books[map_]
            flat[f"absmax{index}"] = _joined([part.scales[0] for part in quantized])
        flat[f"state{index}"] = _joined(values)
    return flat


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.stack(parts)


def _options(options: dict[str, Any], family: Family) -> dict[str, Any]:
    """Return a group's options under the names of bitsandbytes; others are kept."""
    layout = SLOTS[family.name]
    dropped = {*TORCH_OPTIONS, *layout.fixed, "maximize", "betas", layout.betas, "eps"}
    unchanged = {k: v for k, v in base.without_qmaps(options).items() if k not in dropped}
    betas = options.get(layout.betas, layout.usual)
    if layout.betas not in ("", "betas"):
        betas = (options.get(layout.betas, layout.usual[0]), 0)
    eps = 0.0 if layout.eps is None else options.get("eps", layout.eps)
    return {"weight_decay": 0, **unchanged, **layout.extra, "betas": betas, "eps": eps}
