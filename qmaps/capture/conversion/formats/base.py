"""Base of formats: taking a state_dict apart, and putting one together."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from qmaps.algebra.quantizer import QuantizedTensor, Quantizer, values_of
from qmaps.capture.conversion.optimizer_state import (
    Family,
    Group,
    OptimizerState,
    Parameter,
    State,
    family_of,
    flaws,
)
from qmaps.capture.parameters import Slot, check_unique, slots
from qmaps.capture.snapshot import Lazy
from qmaps.engines.masters import REMAINDER
from qmaps.engines.step import PRODUCT, RESET
from qmaps.errors import DAMAGE, BadTypeError, BadValueError, CaptureError, shown
from qmaps.maps.base import Map
from qmaps.maps.codebook import Codebook
from qmaps.optim.base import Shared
from qmaps.optim.options import TORCH_OPTIONS
from qmaps.optim.other_libraries import GROUP_COUNTS, Count, count_in, counts_in, uncounted
from qmaps.optim.rule import number as checked_number
from qmaps.optim.saved_states import ABOUT

Plan = dict[str, dict[str, Quantizer | None]]
"""The quantizer of each state by the parameter's label and the state's name; None for 32 bits."""

Wanted = str | Mapping[str, str | None] | None
"""The option `states`: a preset's name, specs by state, or None to keep what the source has."""

OF_QMAPS = frozenset(Shared.__annotations__) - TORCH_OPTIONS - {"maximize"} | {
    "quantize",
    "override_key",
}
"""Options of parameter groups that only qmaps has."""


NUMBERS = frozenset({"lr", "eps", "weight_decay", "alpha", "momentum", "dampening", "lr_decay",
                     "momentum_decay"})  # fmt: skip
"""Options that are a number in every family."""


def width_of(specs: Mapping[str, str | None]) -> int:
    """The largest number of bits of a code in specs by state; 0 if all are in 32 bits."""
    written = [re.findall(r"@([0-9]+)", spec) for spec in specs.values() if spec]
    return max((int(widths[-1]) for widths in written), default=0)


class Format(ABC):
    """Layout of an optimizer's state_dict in one library.

    Attributes:
        name: name of the format, as the option `to` gives it.
        widths: the allowed strings of the option `states`.
        asked: formats with a smaller number are asked first whether they recognize a state_dict.
        keeps_resets: whether it has a place for the step of the last reset.
        keeps_none: whether a state may be None, as SGD's is before it has momentum.
        package: module of the optimizers that load it; empty if it is unknown.
        rules: classes of `qmaps.optim` that the package has under the same name; None for all.
    """

    name: ClassVar[str]
    widths: ClassVar[tuple[str, ...]]
    asked: ClassVar[int] = 0
    keeps_resets: ClassVar[bool] = False
    keeps_none: ClassVar[bool] = True
    package: ClassVar[str] = ""
    rules: ClassVar[frozenset[str] | None] = None

    def optimizer(self, name: str, specs: Mapping[str, str | None]) -> str:
        """Code of an optimizer that loads such states; ``...`` if the package has none.

        Args:
            name: its class in 32 bits, such as ``AdamW``.
            specs: quantizers by state; None for 32 bits.
        """
        width = width_of(specs)
        return f"{name}{width}bit(model.parameters())" if width else f"{name}(model.parameters())"

    def know(self, classes: Collection[str]) -> None:  # noqa: B027
        """Let ``torch.load`` know the format's own classes among these names of unknown ones.

        Raises:
            BadValueError: their library is not installed.
        """

    @abstractmethod
    def recognizes(self, state_dict: Mapping[str, Any]) -> bool:
        """Return True if a state_dict is of this format."""

    def state(self, value: Any) -> State:
        """Take one state apart; here it must be a dense floating-point tensor."""
        return float_state(value)

    def states(self, saved: Mapping[Any, Any], label: str) -> dict[str, State]:  # noqa: ARG002
        """Take the states of one parameter apart, each by `state`.

        Args:
            saved: the entry of the state_dict for the parameter; empty before the first step.
            label: the name of the parameter in error messages.

        Returns:
            The states by name, without the step: torch's names, or names for `named` to replace.

        Raises:
            BadValueError: they do not fit together.
        """
        return {
            str(name): self.state(value)
            for name, value in saved.items()
            if name != "step" and not (value is None and self.keeps_none)
        }

    def options(self, saved: dict[str, Any], family: Family) -> dict[str, Any]:  # noqa: ARG002
        """Rename the options of a parameter group; here none is renamed.

        Tensors of one element become numbers: fractions the shortest decimals of their dtype.

        Args:
            saved: the group's entries in the state_dict, without `params` and `param_names`.
            family: the family of optimizers of the state_dict.

        Returns:
            The options under torch's names; numbers in place of tensors of one element.
        """
        return {name: _plain(value) for name, value in saved.items()}

    @abstractmethod
    def plan(self, state: OptimizerState, wanted: Wanted) -> tuple[OptimizerState, Plan]:
        """Decide how each state is to be encoded.

        Args:
            state: a state_dict taken apart, of any format.
            wanted: the option `states`; None keeps the source's form as far as possible.

        Returns:
            `state` with the group options and the notes for this format, and the quantizer of each
            state.

        Raises:
            BadValueError: the format cannot hold these states, or `wanted` is not allowed.
        """

    @abstractmethod
    def write(self, state: OptimizerState) -> dict[str, Any]:
        """Put a state_dict for the library's optimizers together, from an encoded `plan`."""

    def read(self, state_dict: Mapping[str, Any], hint: Family | None = None) -> OptimizerState:
        """Take a state_dict apart.

        Args:
            state_dict: a state_dict of this format.
            hint: the family of optimizers, where the names of the states do not show it.

        Returns:
            The groups, parameters and states under torch's names.

        Raises:
            CaptureError: it is damaged, or of an optimizer without a family here.
        """
        read = [self._parameter(slot, hint) for slot in _slots(state_dict)]
        family = _one_family(read)
        _check_counted(read, family)
        for parameter in read:
            for name, state in parameter.states.items():
                for kind, count, first in flaws(values_of(state), signed=name in family.signed):
                    only = "only finite states can be converted"
                    raise CaptureError(
                        f"state {name!r} of {parameter.label!r} holds {count} {kind} elements, the "
                        f"first at flat index {first}; "
                        f"{f'{name} cannot be negative' if kind == 'negative' else only}"
                    )
        parameters = iter(_relabelled(read))
        groups = []
        for index, group in enumerate(state_dict["param_groups"]):
            dropped = ("params", "param_names", *counts_in(group))
            saved = {k: v for k, v in group.items() if k not in dropped}
            options = self.options(saved, family)
            _check_numbers(options, index)
            keys = tuple(group["params"])
            groups.append(Group(options, keys, tuple(next(parameters) for _ in keys)))
        handled = ("state", "param_groups", ABOUT)
        extras = {key: value for key, value in state_dict.items() if key not in handled}
        about = state_dict.get(ABOUT)
        written_by = about.get("optimizer") if isinstance(about, Mapping) else None
        name = written_by if isinstance(written_by, str) else ""
        return OptimizerState(family, tuple(groups), extras, written_by=name)

    def _parameter(self, slot: Slot, hint: Family | None) -> Parameter:
        saved, label = slot.state, slot.label
        try:
            if REMAINDER in saved:
                raise CaptureError(
                    f"{label!r} has {REMAINDER}, bits of the parameter that no other format holds; "
                    "resume with master_weights=True, take a step, and save again"
                )
            step, reset = _step(saved.get("step")), _step(saved.get(RESET)) or 0.0
            if step is None:
                step = _step(count_in(slot.group))
            if reset > (step or 0):
                raise BadValueError(
                    f"{RESET}={reset:g} is above step={0 if step is None else step:g}"
                )
            values = {name: value for name, value in saved.items() if name not in (RESET, PRODUCT)}
            states = self.named(self.states(values, label), hint)
            product = None if saved.get(PRODUCT) is None else float(saved[PRODUCT])
            if product is not None and not 0 <= product <= 1:
                raise BadValueError(f"{PRODUCT}={shown(saved[PRODUCT])} must be from 0 to 1")
        except CaptureError:
            raise
        except DAMAGE as error:
            raise CaptureError(f"the states of {label!r} cannot be converted: {error}") from None
        return Parameter(label, slot.name, step, states, reset, product)

    def named(self, states: dict[str, State], hint: Family | None) -> dict[str, State]:  # noqa: ARG002
        """Rename the states of one parameter by the family, where a format needs it; here none.

        `hint` is the family of optimizers, if the caller gave one.
        """
        return states


def float_state(value: Any) -> Tensor:
    """Return a dense floating-point tensor as float32 on the CPU; others are refused."""
    if isinstance(value, Lazy):  # codes of a package without a format here
        value = value.read()
    if type(value) not in (Tensor, torch.nn.Parameter) or value.layout != torch.strided:
        layout = f" of layout {value.layout}" if type(value) is Tensor else ""
        raise BadValueError(f"expected a dense tensor, got a {type(value).__name__}{layout}")
    if not value.is_floating_point() or value.is_meta:
        raise BadValueError(f"expected a floating-point tensor, got {value.dtype}")
    tensor: Tensor = value
    return tensor.detach().to("cpu", torch.float32)


def written(parameter: Parameter, encoded: Callable[[str, QuantizedTensor], Any]) -> dict[str, Any]:
    """Return the entry of a state_dict for a parameter; empty if it has no states.

    It also has ``step`` as a tensor (1 if the source has none), and ``reset_step`` if it was reset.
    `encoded` returns the form of a quantized tensor in the format, from its state's name and
    itself.
    """
    if not parameter.states:
        return {}
    entry: dict[str, Any] = {"step": step_tensor(1 if parameter.step is None else parameter.step)}
    if parameter.reset:
        entry[RESET] = step_tensor(parameter.reset)
    if parameter.product is not None:
        entry[PRODUCT] = step_tensor(parameter.product)
    for name, value in parameter.states.items():
        entry[name] = encoded(name, value) if isinstance(value, QuantizedTensor) else value
    return entry


def assembled(
    state: OptimizerState,
    options: Callable[[dict[str, Any]], dict[str, Any]],
    entry: Callable[[Parameter, dict[str, Any]], dict[str, Any]],
) -> dict[str, Any]:
    """Put a state_dict together from groups, the format's options of each, and its entries.

    `entry` returns that of a parameter, from itself and the options of its group; an empty one is
    left out. A group has ``param_names`` if all of its parameters have names.
    """
    groups = []
    by_key: dict[Any, Any] = {}
    for group in state.groups:
        names = [p.name for p in group.parameters]
        named = {} if None in names or not names else {"param_names": names}
        groups.append({**options(group.options), **named, "params": list(group.keys)})
        for key, parameter in zip(group.keys, group.parameters, strict=True):
            if saved := entry(parameter, group.options):
                by_key[key] = saved
    return {**state.rest, "state": by_key, "param_groups": groups}


def without_qmaps(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options without those of qmaps alone."""
    return {name: value for name, value in options.items() if name not in OF_QMAPS}


def wanted_width(wanted: Wanted, layout: Format) -> str | None:
    """Return the option `states` of a format with widths and nothing else, or raise."""
    if wanted is not None and wanted not in layout.widths:
        raise BadValueError(
            f"states={wanted!r} is not available in {layout.name}; allowed are "
            f"{', '.join(layout.widths)}"
        )
    return wanted if isinstance(wanted, str) else None


def refuse_options(state: OptimizerState, needed: Mapping[str, object], name: str) -> None:
    """Raise if a group has another value of an option than the only one that a format supports."""
    for number, group in enumerate(state.groups):
        for option, value in needed.items():
            current = group.options.get(option, value)
            try:
                same = bool(current == value)
            except (RuntimeError, TypeError, ValueError):  # for example a tensor of several values
                same = False
            if not same:
                raise BadValueError(
                    f"group {number} has {option}={shown(current)}, which {name} does not "
                    f"support; only {option}={value} can be converted"
                )


def _slots(state_dict: Mapping[str, Any]) -> list[Slot]:
    """Return the parameters; raise if two have one name, or states are of none of them."""
    parameters = list(slots(state_dict))
    check_unique((slot.label for slot in parameters), "the checkpoint")
    keys = {key for group in state_dict["param_groups"] for key in group["params"]}
    if lost := [key for key in state_dict["state"] if key not in keys]:
        raise CaptureError(
            f"the checkpoint has states of parameter {lost[0]!r}, which is in no group"
        )
    return parameters


def _check_numbers(options: Mapping[str, Any], index: int) -> None:
    """Raise unless the options for conversions are numbers."""
    try:
        for name in NUMBERS & options.keys():
            checked_number(name, options[name])
        if "betas" in options:
            for place, beta in enumerate(options["betas"]):
                checked_number(f"betas[{place}]", beta)
    except (BadTypeError, BadValueError, TypeError) as error:
        raise CaptureError(
            f"group {index} of the checkpoint has an invalid option: {error}"
        ) from None


def _one_family(parameters: list[Parameter]) -> Family:
    with_states = [parameter for parameter in parameters if parameter.states]
    if not with_states:
        raise CaptureError("the checkpoint has no states, so there is nothing to convert")
    names = {name for parameter in with_states for name in parameter.states}
    family = family_of(names)
    for parameter in with_states:
        missing = set(family.states) - family.optional - parameter.states.keys()
        if missing:
            raise CaptureError(
                f"parameter {parameter.label!r} lacks the states {', '.join(sorted(missing))}"
            )
        for name, state in parameter.states.items():
            if tuple(state.shape) != parameter.shape:
                raise CaptureError(
                    f"parameter {parameter.label!r} has {name} of shape {tuple(state.shape)} and "
                    f"{next(iter(parameter.states))} of shape {parameter.shape}; the shapes must "
                    "be equal"
                )
    return family


def _check_counted(parameters: list[Parameter], family: Family) -> None:
    """Raise if steps are counted for some of the parameters only, or for none though needed."""
    counts = [Count(p.label, p.states, p.step is not None, family.counted) for p in parameters]
    for label, beside in uncounted(counts):
        if beside:
            raise CaptureError(f"parameter {label!r} has no step, and other parameters have one")
        raise CaptureError(
            f"the checkpoint has no step, neither in its states nor in its groups "
            f"({', '.join(GROUP_COUNTS)}); the update of {family.name} depends on it"
        )


def _relabelled(parameters: list[Parameter]) -> list[Parameter]:
    """Return the same with numbered labels where different codebooks have one label."""
    books: dict[str, list[Map]] = {}

    def distinct(state: State) -> State:
        book = state.quantizer.map if isinstance(state, QuantizedTensor) else None
        if not isinstance(state, QuantizedTensor) or not isinstance(book, Codebook):
            return state
        same_label = books.setdefault(book.spec, [])
        if book not in same_label:
            same_label.append(book)
        if book.per_tensor or not (place := same_label.index(book)):
            return state
        label = f"{book.label}-{place + 1}"
        renamed = Codebook(book.codes, bits=book.bits, signed=book.signed, label=label)
        return replace(state, quantizer=replace(state.quantizer, map=renamed))

    return [
        replace(p, states={name: distinct(state) for name, state in p.states.items()})
        for p in parameters
    ]


def step_tensor(step: float) -> Tensor:
    """Return a step as torch's optimizers keep it: float32, or float64 from 2**24 on."""
    return torch.tensor(step, dtype=torch.float32 if step < 2**24 else torch.float64)


def _step(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise BadValueError(f"step has {value.numel()} elements; it must have one")
        value = value.item()
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0 or value != int(value):
        raise BadValueError(f"step={shown(value)} must be an integer of at least 0")
    return float(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor) and value.numel() == 1:
        number = value.item()
        return float(str(value.detach().cpu().numpy().reshape(()))) if number % 1 else number
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(member) for member in value)
    return value
