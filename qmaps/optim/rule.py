"""Update rules: the members that define one, and common terms and checks of options."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import torch
from torch import Tensor

from qmaps import errors
from qmaps.engines.step import Context
from qmaps.engines.step_scalars import StepScalar
from qmaps.errors import BadTypeError, BadValueError, shown
from qmaps.normalize.block import MOST

Dims = tuple[int | None, ...]
States = dict[str, Tensor]
"""Float32 states by name."""
Values = dict[str, float]
"""Step scalars by name, rounded to float32."""


def every(dims: int) -> Dims:
    """The `dims` of a state of the parameter's shape: each dimension follows the same one."""
    return tuple(range(dims))


@dataclass(frozen=True)
class State:
    """One state of an update rule.

    Attributes:
        signed: whether it can be negative; an unsigned map would clip it.
        exact: whether presets and fixed widths leave it in 32 bits.
        factored: whether it is a statistic with fewer elements than the parameter, computed by the
            kernels of the rule.
        initial: the value of all elements before the first step; or the name of an option
            of the parameter group, or a function of the group.
        dims: gives, for the number of the parameter's dimensions, the parameter's dimension that
            each dimension of the state follows; None for a dimension whose size is always
            1. Sharded parameters need it. None instead of a function: the state
            is computed from the whole parameter; sharded parameters can have it only under a
            `MatrixRule`.
    """

    signed: bool = False
    exact: bool = False
    factored: bool = False
    initial: float | str | Callable[[dict[str, Any]], float] = 0.0
    dims: Callable[[int], Dims] | None = every


def in_parameters_shape(states: Mapping[str, State]) -> bool:
    """Return True if every state has its parameter's shape; `qmaps convert` takes only these."""
    return all(state.dims is every for state in states.values())


class UpdateRule:
    """An update rule: its states, its step scalars, and its update.

    A rule knows nothing of formats: it sees float32 tensors. It is element-wise: a pure function
    of the parameter, the gradient, the states, and the scalars; their names do not depend on the
    group. A rule with `takes_norms` may also use norms of whole tensors (`qmaps.optim.norms`).
    Where an option adds or removes a state, each set of states is a variant of the rule; every
    other option is a step scalar.

    Subclasses of `QuantizedOptimizer` define `states`, `step_scalars` and `update`, and the rest of
    this class where they need it.
    """

    states: ClassVar[Mapping[str, State]]
    """The states by name, in the order in which kernels receive them."""
    takes_norms: ClassVar[bool] = False
    """Whether the rule uses norms of whole tensors (`qmaps.optim.norms`). Such a rule is not
    element-wise: a part of a parameter steps differently from the whole parameter."""
    takes_all_gradients: ClassVar[bool] = False
    """Whether the step of a parameter depends on the gradients of others."""
    native_rule: ClassVar[str | None] = None
    """The name of the rule's kernels in ``qmaps/engines/kernels/rules``; None if there are none."""
    torch_options: ClassVar[Mapping[str, object]] = {}
    """Options of torch and other libraries that the rule does not have, with the only value that
    is accepted, also in checkpoints. `qmaps.optim.other_libraries` has those of all rules."""
    _steps_codes: ClassVar[bool] = False
    """Whether the optimizer steps parameters that are kept as codes (`qmaps.lpmm`)."""
    _changes_options: ClassVar[bool] = False
    """Whether the optimizer's methods change options of its groups, such as Prodigy's `d`."""
    _counts_steps: ClassVar[bool] = False
    """True if an override of `advance` or `transform` corrects biases by ``context.step``."""
    _resets: ClassVar[bool] = True
    """True if `reset_every` has an effect."""
    _numbers: ClassVar[Mapping[str, Callable[[int, Mapping[str, Any]], float]]] = {}
    """Single numbers among a parameter's states besides `step`: functions of the number of steps
    and the group's options."""

    def check_group(self, group: dict[str, Any]) -> None:
        """Raise if an option of the rule has a value in a parameter group that is not allowed."""

    @classmethod
    def unsupported_reason(cls, param: Tensor) -> str:  # noqa: ARG003
        """Reason why the rule cannot step a parameter, to end a sentence; empty if it can."""
        return ""

    @abstractmethod
    def step_scalars(self, group: dict[str, Any]) -> dict[str, float | StepScalar]:
        """The step scalars of the rule: numbers, or descriptions of changing numbers.

        The rule sees their values rounded to float32. It may compare one with 0, to leave a
        term out, but must not branch on it otherwise. Options may be tensors with one element:
        this method computes with ``float(option)``; `lr` stays a tensor, and the host does not
        wait for it.
        """

    def update(self, param: Tensor, grad: Tensor, states: States, scalars: Values) -> None:
        """Apply the rule in place to float32 `param` and `states`; do not change `grad`.

        The rule is a sequence of float32 operations; a product is never fused with a sum. Rules
        with an `advance` of their own may lack it.

        Args:
            param: float32 values of the parameter, changed in place. For a sharded parameter it is
                the local part, as are `grad` and `states`.
            grad: float32 gradient of the same shape, not negated to maximize; it is not changed.
            states: float32 states by name, changed in place, of the shapes of `state_shapes`.
            scalars: the values of `step_scalars` in this step, rounded to float32.
        """
        raise NotImplementedError(f"{type(self).__name__} must define update or advance")

    def advance(
        self, context: Context, param: Tensor, grad: Tensor, states: States, scalars: Values
    ) -> None:
        """Apply the rule to a parameter in a step; the default calls `update`, with its arguments.

        An override may use whole tensors in any way, and `context`: number of the parameter, number
        of its step, and options of its group. Parameters with states that the kernels do not
        support are stepped only by this method.
        """
        self.update(param, grad, states, scalars)

    def state_shapes(self, param: Tensor, group: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        """The states of one parameter, with the shape of each.

        Args:
            param: the parameter, all shards together.
            group: the options of its parameter group.
        """
        return dict.fromkeys(self.states, tuple(param.shape))

    def adopted(
        self, saved: Mapping[str, Any], param: Tensor, group: dict[str, Any]
    ) -> Mapping[str, Any]:
        """A parameter's saved states, converted to the states of this optimizer.

        Args:
            saved: saved states by name, without `step` and the master copy; tensors or
                `QuantizedTensor`, of a sharded parameter the local parts.
            param: the parameter's local tensor.
            group: its parameter group.

        Returns:
            States by name; `saved` itself where nothing has to be converted.
        """
        return saved


class MatrixRule(UpdateRule):
    """A rule with an update computed from a whole matrix, between two element-wise parts.

    Of a sharded parameter each process has a part: `prepare` and `finish` take it, and `transform`
    runs on the process that owns the matrix (`qmaps.engines.sharding.owners`). States with
    ``dims=None`` are those of `transform`; the owner has them whole. The other states are those of
    `prepare`, and sharded like the parameter.
    """

    stacks: ClassVar[bool] = False
    """Whether a parameter with three dimensions is a stack of matrices along the first one, each
    with an update of its own. `transform` then has no states."""

    @classmethod
    def stacked(cls, param: Tensor) -> bool:
        """Return True if a parameter is a stack of matrices."""
        return cls.stacks and param.ndim == 3

    @abstractmethod
    def prepare(self, context: Context, grad: Tensor, states: States, scalars: Values) -> Tensor:
        """Return a tensor of the gradient's shape, to be made whole; change states in place.

        It may be the gradient itself, unless the rule steps stacks.
        """

    @abstractmethod
    def transform(self, context: Context, x: Tensor, states: States, scalars: Values) -> Tensor:
        """Return the update of a whole matrix, of the shape and the dtype of `x`.

        `x` is the result of `prepare` for the whole matrix, and is not changed; float32 `states` of
        `transform` are changed in place.
        """

    @abstractmethod
    def finish(self, context: Context, param: Tensor, update: Tensor, scalars: Values) -> None:
        """Change the float32 `param` in place, by the result of `transform`."""

    def advance(
        self, context: Context, param: Tensor, grad: Tensor, states: States, scalars: Values
    ) -> None:
        x = self.prepare(context, grad, states, scalars)
        if self.stacked(param):
            for matrix in x:
                matrix.copy_(self.transform(context, matrix, {}, scalars))
        else:
            x = self.transform(context, x, states, scalars)
        self.finish(context, param, x, scalars)


def loss_of(closure: Callable[[], float] | None) -> float | None:
    """The loss that a closure returns, with gradients; None without a closure."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def ascent(group: dict[str, Any]) -> float:
    """The scalar `sign`, the factor of gradients: -1 where the group maximizes."""
    return -1.0 if group["maximize"] else 1.0


def directed(grad: Tensor, scalars: Values) -> Tensor:
    """The gradient times `sign`."""
    return -grad if scalars["sign"] < 0 else grad


def coupled(param: Tensor, grad: Tensor, scalars: Values) -> Tensor:
    """The directed gradient with L2 weight decay: ``g + weight_decay * p``, or g where it is 0."""
    grad = directed(grad, scalars)
    decay = scalars["weight_decay"]
    return grad + param * decay if decay != 0 else grad


LARGEST_SQUARE = 2.0**126
"""Second moments are at most this: infinity would reach all elements that share its scale."""


def bounded_(v: Tensor) -> Tensor:
    """Bound a second moment by `LARGEST_SQUARE`, in place; NaN stays."""
    return v.clamp_(max=LARGEST_SQUARE)


def number(name: str, value: Any) -> float:
    """The number of an option: an int, a float, or a tensor with one element."""
    if isinstance(value, str):
        raise BadTypeError(
            f"{name}={shown(value)} must be a number; YAML reads 1e-3 as text, but 1.0e-3 as a "
            "number"
        )
    tensor = isinstance(value, Tensor)
    if isinstance(value, bool) or not (tensor or isinstance(value, Real)):
        raise BadTypeError(f"{name}={shown(value)} must be a number")
    try:
        return float(value)
    except OverflowError:
        raise BadValueError(f"{name}={shown(value)} is too large for a float") from None
    except (RuntimeError, TypeError, ValueError):
        # Complex ones, those on the meta device or under vmap, those with more elements or none.
        kind = BadValueError if tensor and value.numel() != 1 else BadTypeError
        raise kind(
            f"{name}={shown(value)} must be a number, or a tensor that holds one real number"
        ) from None


def check_at_least_0(group: dict[str, Any], *names: str) -> None:
    """Raise unless these options are numbers of at least 0."""
    for name in names:
        if not number(name, group[name]) >= 0:
            raise BadValueError(f"{name}={shown(group[name])} must be at least 0")


def check_above_0(group: dict[str, Any], *names: str) -> None:
    """Raise unless these options are numbers above 0."""
    for name in names:
        if not number(name, group[name]) > 0:
            raise BadValueError(f"{name}={shown(group[name])} must be above 0")


def check_decay(name: str, value: Any) -> None:
    """Raise unless the decay of a running average is in [0, 1)."""
    if not 0 <= number(name, value) < 1:
        raise BadValueError(f"{name}={shown(value)} must be at least 0 and below 1")


def check_betas(group: dict[str, Any], needed: str = "two numbers", count: int = 2) -> None:
    """Raise unless `betas` are `count` numbers in [0, 1)."""
    check_pair("betas", group["betas"], needed, count)
    for index, beta in enumerate(group["betas"]):
        check_decay(f"betas[{index}]", beta)


def check_pair(name: str, value: Any, needed: str = "two numbers", count: int = 2) -> None:
    """Raise unless an option is a sequence or a 1-D tensor of `count` elements."""
    row = value.dim() == 1 if isinstance(value, Tensor) else isinstance(value, Sequence)
    if not row or isinstance(value, str):
        raise BadTypeError(f"{name}={shown(value)} must be {needed}")
    if len(value) != count:
        raise BadValueError(f"{name}={shown(value)} must be {needed}")


def check_int(name: str, value: Any, minimum: int, or_none: bool = False) -> None:
    """Raise unless an option is an int from `minimum` to 2**53."""
    if or_none and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not value >= minimum:
        none = "None or " if or_none else ""
        raise BadValueError(f"{name}={shown(value)} must be {none}an int of at least {minimum}")
    if value > MOST:
        raise BadValueError(f"{name}={shown(value)} must be at most 2**53")


def check_finite(name: str, value: Any) -> None:
    """Raise unless an option is a finite number."""
    if not math.isfinite(number(name, value)):
        raise BadValueError(f"{name}={shown(value)} must be finite")


def check_one_of(name: str, value: Any, allowed: Sequence[str]) -> None:
    """Raise unless an option is one of some words."""
    if not isinstance(value, str) or value not in allowed:
        words = ", ".join(map(repr, allowed))
        raise BadValueError(f"{name}={shown(value)} must be one of {words}")


def check_bool(group: dict[str, Any], *names: str) -> None:
    """Raise unless these options are True or False."""
    for name in names:
        errors.check_bool(name, group[name])
