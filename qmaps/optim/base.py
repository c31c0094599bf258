"""The base class of all optimizers, and those of the classes of one width."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, overload

import torch
from torch import Tensor

from qmaps.algebra.quantizer import Quantizer
from qmaps.engines.masters import MASTER, REMAINDER
from qmaps.engines.step_scalars import values_at
from qmaps.errors import BadTypeError, BadValueError, shown
from qmaps.normalize.block import check_block_size
from qmaps.optim import saved_states
from qmaps.optim.checks import check_last_group
from qmaps.optim.choice import (
    MARK,
    MIN_SIZE,
    Choices,
    StateQuantizers,
    check_patterns,
    keep_in_32_bits,
)
from qmaps.optim.choice_file import without_files
from qmaps.optim.memory import Memory, memory
from qmaps.optim.options import (
    OF_CLASSES,
    Shared,
    check_keys,
    check_shared,
    refuse_option,
    without_neutral_options,
)
from qmaps.optim.other_libraries import TAGS
from qmaps.optim.presets import PRESETS, Preset
from qmaps.optim.records import Parameters
from qmaps.optim.rule import State, States, UpdateRule, Values, loss_of
from qmaps.optim.stepper import Stepper

__all__ = [
    "EightBit", "FixedWidth", "FourBit", "QuantizedOptimizer", "Shared", "State", "States", "Values"
]  # fmt: skip

LOCALS = ("self", "params", "shared", "__class__")
"""Locals of a rule's constructor that are no hyper-parameters."""


class QuantizedOptimizer(UpdateRule, torch.optim.Optimizer):
    """An optimizer with states that can be quantized between steps.

    A step decodes a parameter's states to float32, applies the update rule, writes the
    parameter, and encodes the new states. Subclasses define the rule, by the members of
    `qmaps.optim.rule.UpdateRule`.

    Without a quantizer all states are float32, as in torch. A quantizer comes from
    `state_quantizers`, from `overrides`, or from the classes of one width, such as `AdamW8bit`.
    With one, a state stays float32 where it has at most `min_quantized_size` elements, or where the
    parameter's module asks for that (`qmaps.nn.StableEmbedding`); `memory` shows this for each
    state. All options are options of the parameter group, so each
    group can have its own: ``{"params": head.parameters(), "quantize": False}`` keeps all states
    of a group in 32 bits. `qmaps.optim.param_groups` makes groups by names and module types.

    Args:
        params: as for any torch optimizer; named parameters give better error messages.
        defaults: the rule's own hyper-parameters, or the ``locals()`` of its constructor.
        maximize: ascend instead of descend.
        state_quantizers: "8bit", "4bit", "3bit", "2bit", "paper-8bit", "paper-4bit" or
            "32bit" (`qmaps.optim.PRESETS`), or a dict from state names to specs or quantizers,
            such as ``{"exp_avg": "B128/DE@4s", "exp_avg_sq": "rank1/linear@4u"}``. None, the
            default, means 32 bits, as does leaving a state out of the dict.
            ``"B128/DE@4s + rank1/linear@4u"`` gives the first spec to states with negative values
            and the second to the others; ``32-bit`` in place of a spec keeps those states in 32
            bits. ``"choice.json"`` reads a file of a choice (`qmaps.load_choice`): its quantizers,
            its overrides, after those that are given, and its `min_quantized_size` where it is
            left out here.
        overrides: a dict from patterns of parameter names to quantizers for these parameters,
            in place of `state_quantizers` and of the same form:
            ``{"lm_head.*": None, "*.mlp.*": "4bit"}``. The first matching pattern decides.
            Overrides need named parameters: ``AdamW(model.named_parameters(), overrides=...)``.
        min_quantized_size: states of at most this many elements, counted before parameters are
            sharded, stay in 32 bits; an int of at least 0. None, the default, takes the number of
            a choice file, 4096 without one.
        refit_every: steps between fits of fitted maps (`quantile`, `lloyd`), an int of at least 1.
        reset_every: steps after which a parameter's states begin anew, as before its first step,
            and with them bias corrections and other schedules of the rule; an int of at least 2.
            Random numbers and `step` go on. None, the default, never resets. States of few bits
            that have stalled follow their gradients again (`qmaps.optim.resets` has the source).
        nonfinite: effect of a NaN or infinity in a gradient. "propagate": it reaches states
            and parameters, as in torch, and never turns into a finite number. "skip": the
            whole step is skipped and counted in `skipped_steps`. "raise": the step raises
            NonFiniteError before anything has changed. Second moments are at most ``2**126``, so
            that no finite gradient makes one infinite (`qmaps.optim.rule.bounded_`).
        seed: seed of stochastic rounding, of states and of parameters; an int from 0 to 2**32 - 1.
            Optimizers of equal seeds draw equal numbers for parameters of equal places.
        stochastic_rounding: round new bfloat16 parameters stochastically, to keep small
            updates in expectation; see `qmaps.engines.bfloat16`. Parameters of other dtypes ignore
            it. It cannot be combined with `master_weights`. It says nothing about states: those
            are rounded stochastically where their quantizer has ``+sr``, as in the preset "4bit".
        master_weights: True keeps a float32 copy of each bfloat16 or float16 parameter, as the
            state `master_param`, and updates that. "bf16+8" and "bf16+16" keep only what a
            bfloat16 parameter lacks of a more precise value, in 8 or 16 bits an element, as the
            state `master_remainder`; see `qmaps.engines.masters`. float32 parameters ignore all of
            them; float16 parameters are refused with the last two.
        **others: options of other libraries without effect here: torch's `foreach`, `fused`
            and `capturable`; and those with a value that asks for nothing, or for the rule of the
            class, such as ``differentiable=False``, ``is_paged=False``, or ``optim_bits=8``
            in classes of 8 bits.

    Raises:
        BadValueError, BadTypeError, SpecError: an option is not allowed.

    Attributes:
        skipped_steps: number of steps skipped since construction; reading it waits
            for CUDA devices.
    """

    state_names: ClassVar[tuple[str, ...]] = ()
    """The names of `states`."""
    signed_states: ClassVar[frozenset[str]] = frozenset()
    """States that can be negative; unsigned maps would clip them."""
    exact_states: ClassVar[frozenset[str]] = frozenset()
    """States that presets and fixed widths leave in 32 bits."""
    _min_size: ClassVar[int] = MIN_SIZE
    """`min_quantized_size` where neither an argument nor a file sets it."""
    _released: bool = False
    """True while `release_gradients` steps in the backward pass."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        states = getattr(cls, "states", None)
        if states is not None:
            cls.state_names = tuple(states)
            cls.signed_states = frozenset(name for name in states if states[name].signed)
            cls.exact_states = frozenset(name for name in states if states[name].exact)

    def __init__(
        self,
        params: Iterable[Any],
        defaults: dict[str, Any],
        *,
        maximize: bool = False,
        state_quantizers: StateQuantizers = None,
        overrides: Mapping[str, StateQuantizers] | None = None,
        min_quantized_size: int | None = None,
        refit_every: int = 100,
        reset_every: int | None = None,
        nonfinite: str = "propagate",
        seed: int = 0,
        stochastic_rounding: bool = False,
        master_weights: bool | str = False,
        **others: Any,
    ) -> None:
        options = locals()
        shared = {name: options[name] for name in Shared.__annotations__ if name in options}
        owner = type(self).__name__
        defaults = {name: value for name, value in defaults.items() if name not in LOCALS}
        self.choices = Choices(owner, self.state_names, self.signed_states, self.exact_states)
        quantizers: dict[str, Any] = {"overrides": overrides}
        quantizers["state_quantizers"] = state_quantizers
        if min_quantized_size is not None:
            quantizers["min_quantized_size"] = min_quantized_size
        quantizers = {"min_quantized_size": self._min_size, **without_files(quantizers)}
        shared |= quantizers
        specs = self.choices.specs(quantizers["state_quantizers"])
        for name, value in without_neutral_options(owner, others, self._stands_for(specs)).items():
            refuse_option(owner, name, value, [*defaults, *Shared.__annotations__, *OF_CLASSES])
        self._stepper = Stepper(self.native_rule)
        by_pattern = self.choices.overrides(quantizers["overrides"])
        shared |= {"state_quantizers": specs, "overrides": by_pattern}
        super().__init__(params, {**defaults, **shared, "quantize": True})
        check_patterns(self.param_groups)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group; options left out take the optimizer's defaults."""
        if not isinstance(param_group, dict):
            super().add_param_group(param_group)  # its error message names the expected type
        owner = type(self).__name__
        param_group, specs = without_files(param_group), self.defaults["state_quantizers"]
        if "state_quantizers" in param_group:
            specs = self.choices.specs(param_group["state_quantizers"])
            param_group = {**param_group, "state_quantizers": specs}
        stands_for = self._stands_for(specs)
        known = {*self.defaults, *TAGS}
        group = without_neutral_options(owner, param_group, stands_for, known)
        check_keys(owner, group, self.defaults)
        if "overrides" in group:
            group["overrides"] = self.choices.overrides(group["overrides"])
        check_shared({**self.defaults, **group})
        self.check_group({**self.defaults, **group})
        super().add_param_group(group)
        try:
            check_last_group(self._parameters)
            if "overrides" in param_group:
                check_patterns(self.param_groups[-1:])
        except (BadTypeError, BadValueError):
            self.param_groups.pop()
            raise

    @property
    def _parameters(self) -> Parameters:
        return Parameters(self, self.choices, self.param_groups, self.state)

    def _stands_for(self, specs: Mapping[str, str | None]) -> dict[str, object]:
        """Options of other libraries, with the values that this optimizer implements."""
        bits = {} if any(specs.values()) else {"optim_bits": 32}
        return {**bits, **self.torch_options}

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step.

        Args:
            closure: evaluates the model anew and returns the loss.

        Raises:
            NonFiniteError: a gradient holds NaN or infinity and `nonfinite` is "raise".
        """
        loss = loss_of(closure)
        step = self._stepper.step
        if torch.compiler.is_compiling():  # calls of an engine cannot be traced
            torch._dynamo.comptime.comptime(_leave_graph)
            step = torch.compiler.disable(step)  # type: ignore[no-untyped-call]
        scale, found_inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        step(self._parameters, scale, found_inf)
        return loss

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """True if steps unscale gradients by themselves; `torch.amp.GradScaler` reads it."""
        return self._released or self._stepper.unscales(self.param_groups)

    @property
    def skipped_steps(self) -> int:
        """Number of steps skipped since construction."""
        return self._stepper.skipped

    def engine_counts(self, *, reasons: bool = False) -> dict[str, int]:
        """Number of parameters that each engine stepped in the last call of `step`.

        Keys are names of `qmaps.backends`. The dict is empty before the first step, and leaves out
        parameters that `release_gradients` steps.

        Args:
            reasons: count those that the reference stepped by reason, such as ``"reference: its
                rule takes norms of whole tensors"``.
        """
        counts: Counter[str] = Counter()
        for name, count in self._stepper.counts.items():
            counts[name if reasons else name.partition(":")[0]] += count
        return dict(sorted(counts.items()))

    def scalars(self, group: dict[str, Any], step: int) -> dict[str, float]:
        """The values of `step_scalars` in step 1, 2, ... since a reset, in float64."""
        scalars = self.step_scalars(group)
        return dict(zip(scalars, values_at(scalars.values(), step), strict=True))

    def quantizer_of(self, name: str, param: Tensor, group: dict[str, Any]) -> Quantizer | None:
        """The quantizer of a parameter's state; None keeps it in 32 bits.

        Args:
            name: the state's name.
            param: the parameter; of a sharded one the DTensor.
            group: its parameter group.
        """
        shape = self.state_shapes(param, group).get(name)
        return self.choices.of(name, param, group, shape).quantizer

    @classmethod
    def preset_specs(cls, chosen: Preset, block_size: int | None = None) -> dict[str, str | None]:
        """A preset's spec of each state outside `exact_states`; None means 32 bits."""
        names = [name for name in cls.state_names if name not in cls.exact_states]
        return chosen.specs(names, cls.signed_states, block_size)

    def __getstate__(self) -> dict[str, Any]:
        params = [param for group in self.param_groups for param in group["params"]]
        # Parameters that are copied lose their marks.
        marked = [(param, getattr(param, MARK)) for param in params if hasattr(param, MARK)]
        more = {"choices": self.choices, "_skipped": self.skipped_steps, "_marked": marked}
        return {**super().__getstate__(), **more}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for param, why in state.pop("_marked", ()):
            keep_in_32_bits(param, why)
        skipped = state.pop("_skipped", None)
        super().__setstate__(state)
        if skipped is not None:  # a copy, or one from a pickle
            self._stepper = Stepper(self.native_rule)
            self._stepper.skipped = skipped

    def memory(self) -> Memory:
        """Memory of all states, now or after the first step, as a printable table."""
        saved_states.take_in(self._parameters)
        return memory(self._parameters)

    @property
    def state_nbytes(self) -> int:
        """Bytes of all states now, scales and codebooks included."""
        saved_states.take_in(self._parameters)
        return sum(
            value.nbytes
            for state in self.state.values()
            if isinstance(state, Mapping)  # hooks may keep others
            for name, value in state.items()
            if name in (*self.state_names, MASTER, REMAINDER)
        )

    def state_dict(self) -> dict[str, Any]:
        """The state as plain tensors, strings and numbers: ``weights_only=True`` loads it.

        The state of sharded parameters is copied into DTensors, for
        `torch.distributed.checkpoint`; see `qmaps.distributed.rows`. Hooks are called as torch
        calls them: the last ones receive, and may replace, the result.
        """
        return saved_states.save_with_hooks(self, self._saved)

    def _saved(self) -> dict[str, Any]:
        """Result of `state_dict` before hooks."""
        return saved_states.saved(self._parameters)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the result of `state_dict`, bit for bit, or the checkpoint of the torch optimizer.

        Float states of a torch checkpoint are quantized where this optimizer quantizes them.
        Options come from the checkpoint where it has them. `overrides` of a group are those of the
        checkpoint, or this optimizer's where the checkpoint has none.

        If an error is raised, nothing has changed.

        Raises:
            BadValueError, BadTypeError: the checkpoint uses an option or a state that this
                optimizer does not have, has other parameters, is of a newer format, or is
                damaged.
        """
        saved_states.load_with_hooks(self, state_dict, self._load)

    def _load(self, saved: Any) -> None:
        """`load_state_dict` without hooks."""
        groups, states = saved_states.read(self._parameters, saved)
        self.__setstate__({"state": defaultdict(dict, states), "param_groups": groups})


class FixedWidth(QuantizedOptimizer):
    """Mixin that sets the quantizers of an optimizer's states; it comes first among the bases.

    Args:
        params, *args, **options: as for the optimizer, but for `state_quantizers`, which the class
            sets itself.
        block_size: elements per scale, from 1 to 2**53; the preset's own if left out.
        blocksize: the same option under the name that bitsandbytes uses.

    Raises:
        BadValueError: `state_quantizers` is given, `block_size` is out of range, or `block_size`
            and `blocksize` differ.
        BadTypeError: `block_size` is no int.
    """

    preset: ClassVar[str]
    bits: ClassVar[int]

    def __init__(
        self,
        params: Iterable[Any],
        *args: Any,
        block_size: int | None = None,
        blocksize: int | None = None,
        **options: Any,
    ) -> None:
        if "state_quantizers" in options:
            full = next(cls for cls in type(self).__mro__ if not issubclass(cls, FixedWidth))
            raise BadValueError(
                f"state_quantizers={shown(options['state_quantizers'])} does not fit an optimizer "
                f"of fixed width; use qmaps.optim.{full.__name__}"
            )
        for given in (block_size, blocksize):
            if given is not None:
                check_block_size(given)
        if block_size is not None and blocksize is not None and block_size != blocksize:
            raise BadValueError(
                f"block_size={block_size} and blocksize={blocksize} are the same option; set only "
                "one of them"
            )
        size = blocksize if block_size is None else block_size
        super().__init__(params, *args, state_quantizers=self.fixed_specs(size), **options)

    def _stands_for(self, specs: Mapping[str, str | None]) -> dict[str, object]:
        return {**super()._stands_for(specs), "optim_bits": self.bits}

    @classmethod
    def fixed_specs(cls, block_size: int | None) -> dict[str, str | None]:
        """The spec of each state; a block size of None is the class's own."""
        return cls.preset_specs(PRESETS[cls.preset], block_size)


class EightBit(FixedWidth):
    """States under the preset ``8bit``."""

    preset: ClassVar[str] = "8bit"
    bits: ClassVar[int] = 8


class FourBit(FixedWidth):
    """States under the preset ``4bit``."""

    preset: ClassVar[str] = "4bit"
    bits: ClassVar[int] = 4


def _leave_graph(compiling: Any) -> None:
    """End a graph of torch.compile; with ``fullgraph=True``, torch raises this as an error."""
    compiling.graph_break(
        "optimizer.step() of qmaps cannot be part of a graph: compile without fullgraph=True, or "
        "call it outside the compiled function"
    )
