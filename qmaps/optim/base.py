"""What every optimizer with quantized states shares."""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, TypedDict, overload

import torch
from torch import Tensor

from qmaps.algebra.quantized import QuantizedTensor
from qmaps.algebra.quantizer import Quantizer
from qmaps.cuda.optimizer import CudaStep
from qmaps.distributed.exchange import Request, shared_scales, spans_shards
from qmaps.distributed.parts import part
from qmaps.distributed.shards import Shard, any_distributed, is_distributed, local, shard_of
from qmaps.engines.addresses import check_memory, plain
from qmaps.engines.backends import backend, cuda_engine_on
from qmaps.engines.constants import Constant
from qmaps.engines.dense import lack, overlaps_itself
from qmaps.engines.fused import COUNTER, Entry, FusedStep, count_step
from qmaps.engines.masters import MASTER, updated
from qmaps.engines.native.leaving import forget_at_exit
from qmaps.engines.native.optimizer import NativeStep
from qmaps.engines.philox import RoundingKey
from qmaps.errors import BadTypeError, BadValueError, NonFiniteError, shown
from qmaps.maps.fitted import FittedMap
from qmaps.normalize.base import Scales
from qmaps.optim import checkpoint
from qmaps.optim.bfloat16 import round_stochastically
from qmaps.optim.choice import (
    MARK,
    Choice,
    Choices,
    StateQuantizers,
    check_patterns,
    decisive,
    keep_in_32_bits,
)
from qmaps.optim.memory import Memory, memory
from qmaps.optim.nonfinite import bad_elements
from qmaps.optim.other_libraries import instead_of
from qmaps.optim.presets import Preset
from qmaps.optim.terms import check_bool, check_int
from qmaps.optim.torch_options import without_torch_options

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Of parameters; steps are taken in float32."""
_ALLOWED = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)

NONFINITE = ("propagate", "skip", "raise")


class Shared(TypedDict, total=False):
    """The options that optimizers share; `QuantizedOptimizer` has their defaults.

    `amsgrad` and `decoupled_weight_decay` are accepted only where `torch_options` has them.
    """

    maximize: bool
    state_quantizers: StateQuantizers
    overrides: Mapping[str, StateQuantizers] | None
    min_quantized_size: int
    refit_every: int
    nonfinite: str
    seed: int
    stochastic_rounding: bool
    master_weights: bool
    foreach: bool | None
    fused: bool | None
    capturable: bool
    differentiable: bool
    amsgrad: bool
    decoupled_weight_decay: bool


class QuantizedOptimizer(torch.optim.Optimizer):
    """An optimizer that keeps its states quantized between steps.

    A step decodes a parameter's states to float32, applies the update rule, writes the
    parameter, and encodes the new states. The rule knows nothing of formats: subclasses name
    their states in `state_names` and define `constants` and `update`. A rule is element-wise: a
    pure function of the parameter, the gradient, the states that `states_of` names, and
    `scalars`, whose names do not depend on the group. A rule with `takes_norms` may also use norms
    of whole tensors (`qmaps.optim.norms`). Where an option adds or removes a state, each set of
    states is a variant of the rule; every other option is a scalar.

    A rule may keep states of other shapes than the parameter's (`state_shapes`), such as
    statistics of rows and columns or of slices. The engines support those that `side_states`
    names. A step that no engine supports may look at whole tensors in any way, and it knows its
    number and the parameter's number (`advance`).

    A state stays float32 where it has at most `min_quantized_size` elements, where its quantizer
    is None, or where the parameter's module asks for that (`qmaps.nn.StableEmbedding`);
    `memory` shows this for each state. All options are options of the parameter group, so each
    group can have its own: ``{"params": head.parameters(), "quantize": False}`` keeps all states
    of a group in 32 bits. `qmaps.optim.param_groups` makes groups by names and module types.

    Args:
        params: as for any torch optimizer; named parameters give better error messages.
        defaults: the rule's own hyper-parameters.
        maximize: ascend instead of descend.
        state_quantizers: "8bit", "4bit", "paper-8bit", "paper-4bit" or "32bit"
            (`qmaps.optim.PRESETS`), or a dict from state names to specs or quantizers, such as
            ``{"exp_avg": "B128/DE@4s", "exp_avg_sq": "rank1/linear@4u"}``. None means 32 bits,
            and so does leaving a state out of the dict. ``"B128/DE@4s + rank1/linear@4u"`` gives
            the first spec to states that can be negative and the second to the others;
            ``32-bit`` in place of a spec keeps those states in 32 bits.
        overrides: a dict from patterns of parameter names to what these parameters have instead
            of `state_quantizers`, in the same form:
            ``{"lm_head.*": None, "*.mlp.*": "4bit"}``. The first pattern that matches decides.
            It needs named parameters: ``AdamW(model.named_parameters(), overrides=...)``.
        min_quantized_size: states of at most this many elements, counted before parameters are
            sharded, stay in 32 bits; an int of at least 0.
        refit_every: steps between fits of fitted maps (`quantile`, `lloyd`), an int of at least 1.
        nonfinite: what a NaN or infinity in a gradient does. "propagate": it reaches states
            and parameters, as in torch, and never turns into a finite number. "skip": the
            whole step is left out and counted in `skipped_steps`. "raise": NonFiniteError
            before anything has changed.
        seed: seed of stochastic rounding, an int from 0 to 2**32 - 1.
        stochastic_rounding: round new bfloat16 parameters stochastically, which keeps small
            updates in expectation; see `qmaps.optim.bfloat16`. Parameters of other dtypes ignore
            it. Not together with `master_weights`.
        master_weights: keep a float32 copy of each bfloat16 or float16 parameter, as the state
            `master_param`, and update that; see `qmaps.engines.masters`. Other parameters ignore
            it.
        **torch_options: options of torch's optimizers. `foreach`, `fused` and `capturable` are
            accepted and change nothing here. `differentiable` must be False. `amsgrad` and
            `decoupled_weight_decay` are accepted where the class's `torch_options` has them, with
            the value that it has there.

    Raises:
        BadValueError, BadTypeError, SpecError: an option is not allowed.

    Attributes:
        skipped_steps: how many steps "skip" has left out since construction; reading it waits for
            CUDA devices.
    """

    state_names: ClassVar[tuple[str, ...]]
    signed_states: ClassVar[frozenset[str]]
    """Those that can be negative; unsigned maps would clip them."""
    exact_states: ClassVar[frozenset[str]] = frozenset()
    """Those that presets and fixed widths leave in 32 bits."""
    takes_norms: ClassVar[bool] = False
    """Whether the rule takes norms of whole tensors, by `qmaps.optim.norms`: then it is no longer
    element-wise, and a part of a parameter steps otherwise than the whole."""
    side_states: ClassVar[frozenset[str]] = frozenset()
    """Those with fewer elements than the parameter, in ways that the engines know."""
    native_rule: ClassVar[str | None] = None
    """The engines' name of `update`, which takes the values of `scalars` in their order."""
    torch_options: ClassVar[Mapping[str, object]] = {}
    """Torch options that are no options here, with the value that the rule stands for."""
    _skipped: int = 0
    _native: NativeStep | None = None
    _cuda: dict[torch.device, CudaStep]

    def __init__(
        self,
        params: Iterable[Any],
        defaults: dict[str, Any],
        *,
        maximize: bool = False,
        state_quantizers: StateQuantizers = "8bit",
        overrides: Mapping[str, StateQuantizers] | None = None,
        min_quantized_size: int = 4096,
        refit_every: int = 100,
        nonfinite: str = "propagate",
        seed: int = 0,
        stochastic_rounding: bool = False,
        master_weights: bool = False,
        **torch_options: Any,
    ) -> None:
        owner = type(self).__name__
        for name in without_torch_options(owner, torch_options, self.torch_options):
            raise BadTypeError(
                f"{name}={shown(torch_options[name])} is no option of {owner}{instead_of(name)}"
            )
        self._choices = Choices(owner, self.state_names, self.signed_states, self.exact_states)
        self._cuda = {}
        shared = {
            "maximize": maximize,
            "state_quantizers": self._choices.specs(state_quantizers),
            "overrides": self._choices.overrides(overrides),
            "quantize": True,
            "min_quantized_size": min_quantized_size,
            "refit_every": refit_every,
            "nonfinite": nonfinite,
            "seed": seed,
            "stochastic_rounding": stochastic_rounding,
            "master_weights": master_weights,
        }
        super().__init__(params, {**defaults, **shared})
        check_patterns(self.param_groups)

    @abstractmethod
    def constants(self, group: dict[str, Any]) -> dict[str, float | Constant]:
        """What the rule needs besides tensors: numbers, or descriptions of those that change.

        The rule sees their values rounded to float32. It may compare one with 0, to leave a
        term out, but takes no other decision. Options may be tensors with one element: what is
        computed here is of ``float(option)``; `lr` stays a tensor, so that nobody waits for it.
        """

    def scalars(self, group: dict[str, Any], step: int) -> dict[str, float]:
        """The values of `constants` in step 1, 2, ..., in float64."""
        return {
            name: value.at(step) if isinstance(value, Constant) else value
            for name, value in self.constants(group).items()
        }

    @abstractmethod
    def update(
        self, param: Tensor, grad: Tensor, states: dict[str, Tensor], scalars: dict[str, float]
    ) -> None:
        """Apply the rule in place to float32 `param` and `states`; leave `grad` alone.

        The rule is one float32 operation after another; none fuses a product with a sum.

        Args:
            param: float32 values of the parameter, changed in place. Of a sharded parameter it is
                the local part, as are `grad` and `states`.
            grad: float32 gradient of the same shape, not negated to maximize; it is not changed.
            states: float32 states by name, changed in place, of the shapes of `state_shapes`.
            scalars: the numbers of `scalars_in_float32` for this step.
        """

    def states_of(self, group: dict[str, Any]) -> tuple[str, ...]:  # noqa: ARG002
        """The states that the rule reads and writes under a group's options."""
        return self.state_names

    def state_shapes(self, param: Tensor, group: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        """The states that the rule keeps for one parameter, and the shape of each."""
        return dict.fromkeys(self.states_of(group), tuple(param.shape))

    def state_dims(self, name: str, dims: int) -> tuple[int | None, ...]:  # noqa: ARG002
        """For each dimension of a state, the parameter's dimension that it follows.

        Args:
            name: the state's name.
            dims: number of the parameter's dimensions.

        Returns:
            One entry for each dimension of the state; None where its size is 1 whatever the
            parameter's sizes.
        """
        return tuple(range(dims))

    def check_shard(self, group: dict[str, Any], shape: tuple[int, ...]) -> None:
        """Raise if a sharded parameter of this shape cannot be stepped."""

    def advance(
        self,
        number: int,  # noqa: ARG002
        group: dict[str, Any],
        step: int,
        param: Tensor,
        grad: Tensor,
        states: dict[str, Tensor],
    ) -> None:
        """Apply the rule to one parameter in one step; the default calls `update`.

        Args:
            number: the parameter's number among all parameters of all groups, from 0 on.
            group: its parameter group.
            step: number of the parameter's step, from 1 on.
            param: as for `update`.
            grad: as for `update`.
            states: as for `update`.
        """
        self.update(param, grad, states, self.scalars_in_float32(group, step))

    def scalars_in_float32(self, group: dict[str, Any], step: int) -> dict[str, float]:
        """`scalars` rounded to float32, as the rule sees them."""
        scalars = self.scalars(group, step)
        rounded = torch.tensor(list(scalars.values()), dtype=torch.float64).float().tolist()
        return dict(zip(scalars, rounded, strict=True))

    def initial(self, group: dict[str, Any]) -> dict[str, float]:  # noqa: ARG002
        """The value of each state before the first step where it is not 0."""
        return {}

    def check_group(self, group: dict[str, Any]) -> None:
        """Raise if an option of a parameter group has a value that is not allowed."""
        check_int("min_quantized_size", group["min_quantized_size"], 0)
        check_int("refit_every", group["refit_every"], 1)
        policy = group["nonfinite"]
        if not isinstance(policy, str) or policy not in NONFINITE:
            allowed = ", ".join(map(repr, NONFINITE))
            raise BadValueError(f"nonfinite={shown(policy)} must be one of {allowed}")
        RoundingKey(seed=group["seed"])  # raises on a bad seed
        check_bool(group, "maximize", "quantize", "stochastic_rounding", "master_weights")
        if group["stochastic_rounding"] and group["master_weights"]:
            raise BadValueError(
                "stochastic_rounding=True does not go with master_weights=True: a master copy "
                "loses no small updates"
            )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group; options left out take the optimizer's defaults."""
        if not isinstance(param_group, dict):
            super().add_param_group(param_group)  # which says what is needed
        group = without_torch_options(type(self).__name__, param_group, self.torch_options)
        if "state_quantizers" in group:
            group["state_quantizers"] = self._choices.specs(group["state_quantizers"])
        if "overrides" in group:
            group["overrides"] = self._choices.overrides(group["overrides"])
        self.check_group({**self.defaults, **group})
        super().add_param_group(group)
        try:
            self._check_last_group()
            if "overrides" in param_group:
                check_patterns(self.param_groups[-1:])
        except (BadTypeError, BadValueError):
            self.param_groups.pop()
            raise

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
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        entries = self._with_gradients()
        if not entries:
            return loss
        scale, found_inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        devices = {entry[1].device for entry in entries}
        # One CUDA engine finds out by itself whether to leave out the step, unless others know.
        alone = (
            len(devices) == 1
            and self._cuda_step(entries[0][1]) is not None
            and not any_distributed(entry[1] for entry in entries)
        )
        if self._non_finite_gradients(entries, unless_skipping=alone):
            self._skipped += 1
            return loss
        planned: list[FusedStep] = []
        left: list[Entry] = []
        for device in devices:
            here = entries
            if len(devices) > 1:
                here = [entry for entry in entries if entry[1].device == device]
            left += self._plan(here, planned)
        if left or not alone:
            # What one engine would find out alone, all must know.
            late = alone and self._non_finite_gradients(entries)
            if late or (found_inf is not None and float(found_inf) != 0):
                self._skipped += 1
                return loss
        for fused in planned:
            if isinstance(fused, CudaStep):
                fused.grad_scale, fused.found_inf = scale, found_inf
            fused.run()
        shared = self._shared_scales(left, scale)
        for entry in left:
            self._step_one(entry, scale, shared)
        return loss

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """What `torch.amp.GradScaler` asks: whether steps unscale gradients by themselves."""
        params = [param for group in self.param_groups for param in group["params"]]
        return all(self._cuda_step(param) is not None for param in params)

    @property
    def skipped_steps(self) -> int:
        """How many steps were left out since construction."""
        return self._skipped + sum(fused.skipped for fused in self._cuda.values())

    def rounds(self, param: Tensor, group: dict[str, Any]) -> bool:
        """Whether new values of a parameter are rounded stochastically."""
        return group["stochastic_rounding"] and param.dtype == torch.bfloat16

    def _plan(self, entries: list[Entry], planned: list[FusedStep]) -> list[Entry]:
        """Plan the step of one device's parameters; returns those that no engine takes."""
        fused = self._fused_step(entries[0][1])
        if fused is None or not fused.fits(entries):
            for entry in entries:
                self._check_gradient(entry)
                self._check_shard(entry)
                self._take_in(*entry[:3])
                self._check_states(entry)
            # Autograd of complex numbers leaves negations to be done later.
            entries = [(*entry[:3], plain(entry[3], "a gradient")) for entry in entries]
            if fused is not None and not fused.fits(entries):
                fused.plan(entries)
        if fused is None:
            return entries
        planned.append(fused)
        return fused.left

    def _take_in(self, number: int, param: Tensor, group: dict[str, Any]) -> None:
        """Read a parameter's state that somebody has put there as a state_dict has it.

        `torch.distributed.optim.ZeroRedundancyOptimizer` does so. Whatever looks at states that
        it did not put there itself comes here first.
        """
        state = self.state.get(param)
        if isinstance(state, dict) and any(isinstance(value, dict) for value in state.values()):
            with self._choices.learning({number: state}):
                read = checkpoint.read_state(self, state, number, self._name(number), param, group)
            self.state[param] = read

    def _take_in_all(self) -> None:
        params = [(param, group) for group in self.param_groups for param in group["params"]]
        for number, (param, group) in enumerate(params):
            self._take_in(number, param, group)

    def _fused_step(self, param: Tensor) -> FusedStep | None:
        """The engine for a parameter's device, where there is one."""
        if (cuda := self._cuda_step(param)) is not None:
            return cuda
        if self.native_rule is None or param.device.type != "cpu" or backend() != "native":
            return None
        if self._native is None:
            self._native = NativeStep(self)
            forget_at_exit(self)
        return self._native

    def forget_engine(self) -> None:
        """Let go of the native engine's plan; the next step makes one again."""
        self._native = None

    def _cuda_step(self, param: Tensor) -> CudaStep | None:
        engine = None if self.native_rule is None else cuda_engine_on(param.device)
        if engine is None:
            return None
        if engine.device not in self._cuda:
            self._cuda[engine.device] = CudaStep(self, engine)
        return self._cuda[engine.device]

    def _step_one(
        self, entry: Entry, scale: Tensor | None, shared: Mapping[tuple[int, str], Scales]
    ) -> None:
        number, param, group, _ = entry
        state = self.state[param]
        if "step" not in state:
            state["step"] = torch.zeros((), dtype=COUNTER)
        updated(param, group, state)
        step = count_step(state)
        work, states = self._advanced(entry, step, scale)
        self.close(number, param, group, step, work)
        for name, value in states.items():
            q = self.quantizer_of(name, param, group)
            if q is None:
                state[name] = value
                continue
            previous = state.get(name)
            fresh = (step - 1) % group["refit_every"] == 0
            if isinstance(q.map, FittedMap) and isinstance(previous, QuantizedTensor) and not fresh:
                q = previous.quantizer
            key = self.rounding_key(number, param, group, step=step, state=name)
            if (scales := shared.get((number, name))) is not None:
                state[name] = q.quantize_scaled(value, scales, key=key)
            else:
                state[name] = q.quantize_unchecked(value, key=key)

    def _advanced(
        self, entry: Entry, step: int, scale: Tensor | None, *, keep: bool = False
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """A parameter and its states in float32 after this step, of what is here of them.

        What is in float32 already is changed in place, unless it is to be kept.
        """
        number, param, group, grad = entry
        state, here, shard = self.state[param], local(param), shard_of(param)
        initial = self.initial(group)
        states = {
            name: _decoded(state.get(name), here, shape, initial.get(name, 0.0))
            for name, shape in self.local_shapes(param, group, shard).items()
        }
        work = self.opened(updated(param, group, state))
        if keep:
            work = work.clone()
            states = {name: value.clone() for name, value in states.items()}
        grad = grad.float()
        if scale is not None:
            grad = grad / scale.to(grad)
        with part(shard):
            self.advance(number, group, step, work, grad, states)
        return work, states

    def _shared_scales(
        self, entries: list[Entry], scale: Tensor | None
    ) -> dict[tuple[int, str], Scales]:
        """The new scales that know other processes' shards, by number and state.

        To make them the step is taken twice, so that new states need not be kept meanwhile.
        """
        asked: dict[tuple[int, str], Request] = {}
        for entry in entries:
            number, param, group, _ = entry
            if (shard := shard_of(param)) is None:
                continue
            wide = {}
            for name in self.state_shapes(param, group):
                q = self.quantizer_of(name, param, group)
                its = shard.following(self.state_dims(name, param.dim()))
                if q is not None and spans_shards(q.normalizer, its):
                    wide[name] = (q.normalizer, its)
            if wide:
                step = int(self.state[param].get("step", 0)) + 1
                states = self._advanced(entry, step, scale, keep=True)[1]
                for name, (normalizer, its) in wide.items():
                    asked[number, name] = Request(normalizer, states[name], its)
        return dict(zip(asked, shared_scales(list(asked.values())), strict=True))

    def local_shapes(
        self, param: Tensor, group: dict[str, Any], shard: Shard | None
    ) -> dict[str, tuple[int, ...]]:
        """As `state_shapes`, of what this process keeps of a parameter's states.

        Args:
            param: the parameter; of a sharded one the DTensor.
            group: its parameter group.
            shard: the part that this process keeps, or None if it is the whole.

        Returns:
            Shapes by state name.
        """
        shapes = self.state_shapes(param, group)
        if shard is None:
            return shapes
        return {
            name: shard.following(self.state_dims(name, param.dim())).local_shape for name in shapes
        }

    def rounding_key(
        self,
        number: int,
        param: Tensor,
        group: dict[str, Any],
        *,
        step: int = 0,
        state: str | None = None,
    ) -> RoundingKey:
        """The key of the random numbers of a parameter, or of one of its states.

        Elements of a shard get the random numbers that they have in the whole.

        Args:
            number: the parameter's number among all parameters of all groups, from 0 on.
            param: the parameter; of a sharded one the DTensor.
            group: its parameter group, which has the seed.
            step: number of the parameter's step.
            state: name of the state to be rounded; None for the parameter itself.

        Raises:
            BadValueError: the parameter is split in a way that stochastic rounding does not
                support.
        """
        key = RoundingKey(
            seed=group["seed"],
            purpose=1 if state is None else 0,
            step=step,
            tensor=number,
            state=0 if state is None else self.state_names.index(state),
        )
        if (shard := shard_of(param)) is None:
            return key
        if state is not None:
            shard = shard.following(self.state_dims(state, param.dim()))
        return replace(key, offset=shard.first, runs=shard.runs)

    def _check_shard(self, entry: Entry) -> None:
        """Raise if a parameter is in shards, and its step cannot be taken on shards."""
        number, param, group, _ = entry
        if (shard := shard_of(param)) is None or not shard.groups():
            return
        gradient: Any = param.grad
        if gradient.placements != param.placements:  # type: ignore[attr-defined]
            raise BadValueError(
                f"the gradient of {self._name(number)} has placements {gradient.placements}; "
                f"those of the parameter, {param.placements}, are needed"  # type: ignore[attr-defined]
            )
        self.check_shard(group, tuple(param.shape))
        for name in self.state_shapes(param, group):
            q = self.quantizer_of(name, param, group)
            if q is None:
                continue
            if isinstance(q.map, FittedMap):
                raise BadValueError(
                    f"{name} of {self._name(number)} has the quantizer {q.spec}, whose codebook is "
                    "fitted to a whole tensor, and is in shards; take a map that is a formula"
                )
            if q.normalizer.extents(param.dim()) is None:
                raise BadValueError(
                    f"{name} of {self._name(number)} has the quantizer {q.spec}, and is in shards; "
                    f"{q.normalizer.spec} does not tell what its scales span (Normalizer.extents)"
                )

    def opened(self, param: Tensor) -> Tensor:
        """The values of a parameter in float32, to be updated: itself if it is float32."""
        return param.float() if param.dtype != torch.float32 else param

    def close(
        self, number: int, param: Tensor, group: dict[str, Any], step: int, work: Tensor
    ) -> None:
        """Write the new values to a parameter, rounded to its dtype.

        Args:
            number: the parameter's number among all parameters of all groups, from 0 on.
            param: the parameter, written in place.
            group: its parameter group.
            step: number of the parameter's step, from 1 on.
            work: the new float32 values: what `opened` returned, after the update.
        """
        if self.rounds(param, group):
            key = self.rounding_key(number, param, group, step=step)
            work = round_stochastically(work, key)
        if work is not (here := local(param)):
            here.copy_(work)

    def _with_gradients(self) -> list[Entry]:
        """Every parameter that has a gradient, with what is here of it."""
        params = [(param, group) for group in self.param_groups for param in group["params"]]
        entries = [
            (number, param, group, grad)
            for number, (param, group) in enumerate(params)
            if (grad := param.grad) is not None
        ]
        if any_distributed(entry[3] for entry in entries):
            entries = [(*entry[:3], local(entry[3])) for entry in entries]
        return entries

    def _non_finite_gradients(self, entries: list[Entry], *, unless_skipping: bool = False) -> bool:
        """Whether the step is to be skipped; raises where a group asks for that.

        With `unless_skipping` only the latter is looked at.
        """
        policies = {group["nonfinite"] for group in self.param_groups} - {"propagate"}
        if not policies or (unless_skipping and "raise" not in policies):
            return False
        skip = False
        looked = [entry for entry in entries if entry[2]["nonfinite"] != "propagate"]
        for entry in looked:
            self._check_gradient(entry)
        # On all processes that have shards the same happens.
        for entry, (count, first) in zip(looked, bad_elements(looked), strict=True):
            number, _, group, _ = entry
            if count and group["nonfinite"] == "raise":
                raise NonFiniteError(
                    f"the gradient of {self._name(number)} holds {count} NaN or infinite elements, "
                    f"the first at flat index {first}; nonfinite='raise' allows none"
                )
            skip = skip or count > 0
        return skip

    def _check_last_group(self) -> None:
        """Raise if the newest group has parameters that no step could take."""
        number = sum(len(group["params"]) for group in self.param_groups[:-1])
        for param in self.param_groups[-1]["params"]:
            # What is frozen may be anything: the packed weights of a quantized base model, say.
            if param.requires_grad:
                self._check_parameter(number, param)
            number += 1

    def _check_parameter(self, number: int, param: Tensor) -> None:
        """Raise if a parameter is none that a step could take."""
        if param.dtype not in DTYPES:
            raise BadTypeError(
                f"{self._name(number)} is {_plain(param)}; {_ALLOWED} parameters are supported"
            )
        if stepped_by := getattr(type(param), "stepped_by", ""):
            raise BadTypeError(
                f"{self._name(number)} is a {type(param).__name__}, which {type(self).__name__} "
                f"would round after each operation; {stepped_by} step converted models"
            )

    def _check_gradient(self, entry: Entry) -> None:
        """Raise if a gradient is none that a step could take."""
        number, param, _, grad = entry
        if grad.is_sparse:
            raise BadTypeError(
                f"the gradient of {self._name(number)} is sparse; dense gradients are supported, "
                "as embeddings with sparse=False have"
            )
        # Steps of parameters and gradients that are all on the meta device change nothing.
        without_values = param.is_meta and grad.is_meta
        for kind, tensor in (("", param), ("the gradient of ", grad)):
            if (why := lack(tensor)) and not without_values:
                raise BadTypeError(
                    f"{kind}{self._name(number)} {why}; dense tensors with values are supported"
                )
        if param.dtype not in DTYPES or not grad.is_floating_point():
            raise BadTypeError(
                f"{self._name(number)} is {_plain(param)} and its gradient {_plain(grad)}; "
                f"{_ALLOWED} parameters are supported"
            )
        self._check_parameter(number, param)
        if not is_distributed(param) and overlaps_itself(param):
            raise BadValueError(
                f"{self._name(number)} has several elements in one place; memory for each is needed"
            )
        if grad.shape != (here := local(param)).shape:
            raise BadValueError(
                f"the gradient of {self._name(number)} has shape {tuple(grad.shape)}; "
                f"{tuple(here.shape)} is needed"
            )
        check_memory(here, self._name(number))
        check_memory(grad, f"the gradient of {self._name(number)}")

    def _check_states(self, entry: Entry) -> None:
        """Raise if a parameter's states are not of its shape, as after resizing it by ``.data``."""
        number, param, group, _ = entry
        state = self.state.get(param, {})
        shapes = self.local_shapes(param, group, shard_of(param))
        own = {"step": (), MASTER: tuple(local(param).shape)}
        for name, shape in (shapes | own).items():
            if (value := state.get(name)) is None:
                continue
            if tuple(value.shape) != tuple(shape):
                raise BadValueError(
                    f"{name} of {self._name(number)} has shape {tuple(value.shape)}; "
                    f"{tuple(shape)} is needed for a parameter of shape {tuple(param.shape)}"
                )
            if isinstance(value, QuantizedTensor):
                value.check()
            else:
                check_memory(value, f"{name} of {self._name(number)}")

    def _name(self, number: int) -> str:
        for group in self.param_groups:
            if number < len(group["params"]):
                names = group.get("param_names")
                break
            number -= len(group["params"])
        return f"parameter {names[number]!r}" if names else f"parameter number {number}"

    def choice_of(self, name: str, param: Tensor, group: dict[str, Any]) -> Choice:
        """The quantizer of a parameter's state, and why it is this one.

        Args:
            name: the state's name.
            param: the parameter; of a sharded one the DTensor.
            group: its parameter group.
        """
        shape = self.state_shapes(param, group).get(name, param.shape)
        own = None if shape == tuple(param.shape) else shape
        return self._choices.of(name, param, group, own)

    def quantizer_of(self, name: str, param: Tensor, group: dict[str, Any]) -> Quantizer | None:
        """The quantizer of a parameter's state; None keeps it in 32 bits.

        Args:
            name: the state's name.
            param: the parameter; of a sharded one the DTensor.
            group: its parameter group.
        """
        return self.choice_of(name, param, group).quantizer

    def decisive(self, group: dict[str, Any]) -> tuple[Any, ...]:
        """A copy of what `choice_of` depends on in a group: equal copies mean equal choices."""
        return decisive(group)

    @classmethod
    def preset_specs(cls, chosen: Preset, block_size: int | None = None) -> dict[str, str | None]:
        """The spec that a preset gives to each state outside `exact_states`; None means 32 bits."""
        names = [name for name in cls.state_names if name not in cls.exact_states]
        return chosen.specs(names, cls.signed_states, block_size)

    def __getstate__(self) -> dict[str, Any]:
        params = [param for group in self.param_groups for param in group["params"]]
        # Parameters that are copied lose their marks.
        marked = [(param, getattr(param, MARK)) for param in params if hasattr(param, MARK)]
        own = {"_choices": self._choices, "_skipped": self.skipped_steps, "_cuda": {}}
        return {**super().__getstate__(), **own, "_marked": marked}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for param, why in state.pop("_marked", ()):
            keep_in_32_bits(param, why)
        super().__setstate__(state)

    def memory(self) -> Memory:
        """What states take, or will take: a table when printed, rows and totals in a script."""
        self._take_in_all()
        return memory(self)

    @property
    def state_nbytes(self) -> int:
        """Bytes that all states take now, scales and codebooks included."""
        self._take_in_all()
        return sum(
            value.nbytes
            for state in self.state.values()
            if isinstance(state, Mapping)  # hooks may keep others
            for name, value in state.items()
            if name in self.state_names or name == MASTER
        )

    def state_dict(self) -> dict[str, Any]:
        """The state as plain tensors, strings and numbers: ``weights_only=True`` loads it.

        That of parameters in shards is DTensors, for `torch.distributed.checkpoint`, and copied;
        see `qmaps.distributed.rows`. Hooks are called as torch calls them: the last ones see, and
        may replace, what is returned.
        """
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        saved = self._saved()
        for after in self._optimizer_state_dict_post_hooks.values():
            changed = after(self, saved)
            saved = saved if changed is None else changed
        return saved

    def _saved(self) -> dict[str, Any]:
        """What `state_dict` returns, but for hooks; entries of `state` as torch has them there."""
        self._take_in_all()
        params = [param for group in self.param_groups for param in group["params"]]
        numbers = {id(param): number for number, param in enumerate(params)}
        groups = [
            {**group, "params": [numbers[id(param)] for param in group["params"]]}
            for group in self.param_groups
        ]
        state: dict[Any, Any] = {}
        for key, value in self.state.items():
            if not isinstance(key, Tensor):
                state[key] = value
            elif not isinstance(value, Mapping):
                state[numbers[id(key)]] = value
            else:
                state[numbers[id(key)]] = {
                    name: checkpoint.written(self, name, each, key) for name, each in value.items()
                }
        return {"state": state, "param_groups": groups, checkpoint.ABOUT: checkpoint.about(self)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what `state_dict` gave, bit for bit, or the checkpoint of the torch optimizer.

        Float states of a torch checkpoint are quantized where this optimizer quantizes them.
        Options come from the checkpoint where it has them.

        Nothing has changed if an error is raised.

        Raises:
            BadValueError, BadTypeError: the checkpoint uses an option or a state that this
                optimizer does not have, has other parameters, is of a newer format, or is
                damaged.
        """
        saved: Any = dict(state_dict) if isinstance(state_dict, Mapping) else state_dict
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            changed = before(self, saved)
            saved = saved if changed is None else changed
        self._load(saved)
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def _load(self, saved: Any) -> None:
        """What `load_state_dict` does, but for hooks."""
        # Names are looked up in the checkpoint's groups meanwhile.
        self._choices.forget_names()
        try:
            groups, states = checkpoint.read(self, self._choices, saved)
        finally:
            self._choices.forget_names()
        self.__setstate__({"state": defaultdict(dict, states), "param_groups": groups})

    def adopted(
        self,
        saved: Mapping[str, Any],
        param: Tensor,  # noqa: ARG002
        group: dict[str, Any],  # noqa: ARG002
    ) -> Mapping[str, Any]:
        """A parameter's saved states, converted to the states that this optimizer keeps.

        Args:
            saved: saved states by name, without `step` and the master copy; tensors or
                `QuantizedTensor`, of a sharded parameter the local parts.
            param: the parameter's local tensor.
            group: its parameter group.

        Returns:
            States by name; `saved` itself where nothing has to be converted.
        """
        return saved


def _decoded(
    value: Tensor | QuantizedTensor | None, param: Tensor, shape: tuple[int, ...], initial: float
) -> Tensor:
    """A state in float32: `initial` everywhere before the first step."""
    if value is None:
        if shape != tuple(param.shape):
            return torch.full(shape, initial, dtype=torch.float32, device=param.device)
        return torch.full_like(param, initial, dtype=torch.float32)
    return value.dequantize() if isinstance(value, QuantizedTensor) else value


def _plain(tensor: Tensor) -> str:
    """A dtype's name."""
    return str(tensor.dtype).removeprefix("torch.")
