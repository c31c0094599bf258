"""Update rules as expressions: `update` in Python is recorded once, operation by operation.

The rule runs on `Value` objects in place of float32 tensors. Each operation becomes one line of a
kernel, in the order in which the rule computes it, so that a kernel's results have the bits of the
rule's. Nothing here needs Triton.

A step scalar is a `Scalar`. Arithmetic between scalars stays in float64 on the host, as in Python,
and is done again in every step. A rule may compare scalars with 0; a trace records the outcomes
(`Trace.holds`), and a step in which one differs has a trace of its own.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

Numbers = Mapping[str, float]
"""The values of step scalars by name, rounded to float32."""
Evaluate = Callable[[Numbers], float]


class UntraceableError(Exception):
    """A rule does what no kernel can do; the message is a phrase, such as "it takes a mean"."""


@dataclass(frozen=True, eq=False)
class Trace:
    """A rule as lines of a kernel.

    Attributes:
        lines: assignments in order, of Triton's Python.
        param: expression of the new parameter.
        states: expressions of the new states, by name.
        scalars: functions that compute the arguments ``s0``, ``s1``, ... of a step.
        guards: comparisons of scalars with 0, with their outcomes.
    """

    lines: tuple[str, ...]
    param: str
    states: Mapping[str, str]
    scalars: tuple[Evaluate, ...]
    guards: tuple[tuple[Evaluate, Callable[[float, float], bool], bool], ...]

    def holds(self, values: Numbers) -> bool:
        """Return True if the rule takes the same branches with these values."""
        return all(
            compare(evaluate(values), 0) == outcome for evaluate, compare, outcome in self.guards
        )

    def arguments(self, values: Numbers) -> list[float]:
        """The scalar arguments of a kernel in one step."""
        return [evaluate(values) for evaluate in self.scalars]


class Scalar:
    """A number of the step; operations give numbers that the host computes in each step."""

    __slots__ = ("_recorder", "evaluate")

    def __init__(self, recorder: _Recorder, evaluate: Evaluate) -> None:
        self._recorder, self.evaluate = recorder, evaluate

    def _with(self, function: Callable[..., float], *others: Any, swap: bool = False) -> Any:
        if not all(isinstance(other, (Scalar, int, float)) for other in others):
            return NotImplemented
        one = self.evaluate
        parts: list[Evaluate] = [
            other.evaluate if isinstance(other, Scalar) else (lambda _, x=other: x)  # type: ignore[misc]
            for other in others
        ]
        if not parts:
            return Scalar(self._recorder, lambda values: function(one(values)))
        (other,) = parts
        if swap:
            return Scalar(self._recorder, lambda values: function(other(values), one(values)))
        return Scalar(self._recorder, lambda values: function(one(values), other(values)))

    def _compared(self, compare: Callable[[Any, Any], bool], other: Any) -> Any:
        if isinstance(other, Value):
            return NotImplemented
        if isinstance(other, Scalar) or other != 0:
            raise UntraceableError("it compares a scalar with another number than 0")
        outcome = compare(self.evaluate(self._recorder.values), 0)
        self._recorder.guards.append((self.evaluate, compare, outcome))
        return outcome

    def __bool__(self) -> bool:
        return bool(self._compared(operator.ne, 0))

    def __float__(self) -> NoReturn:
        raise UntraceableError("it turns a scalar into a number of Python")

    def __neg__(self) -> Any:
        return self._with(operator.neg)

    def __abs__(self) -> Any:
        return self._with(abs)

    __int__ = __index__ = __float__
    __hash__ = object.__hash__


def _arithmetic(name: str, function: Callable[..., float]) -> None:
    def forward(self: Scalar, other: Any) -> Any:
        return self._with(function, other)

    def backward(self: Scalar, other: Any) -> Any:
        return self._with(function, other, swap=True)

    setattr(Scalar, f"__{name}__", forward)
    setattr(Scalar, f"__r{name}__", backward)


def _comparison(name: str) -> None:
    compare = getattr(operator, name)
    setattr(Scalar, f"__{name}__", lambda self, other: self._compared(compare, other))


for _name in ("add", "sub", "mul", "truediv", "pow"):
    _arithmetic(_name, getattr(operator, _name))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    _comparison(_name)

FLOAT, BOOL, DOUBLE, ROOT = "float32", "bool", "float64", "a root in float64"


class Value:
    """A float32 tensor of a rule, as the expression of its elements at this point of the rule."""

    def __init__(
        self, recorder: _Recorder, expression: str, kind: str = FLOAT, fixed: str = ""
    ) -> None:
        self.recorder, self.expression, self.kind = recorder, expression, kind
        # Not empty: what a change in place is refused with.
        self.fixed = fixed

    def __getattr__(self, name: str) -> Any:
        if name == "dtype":
            return torch.float32
        if name.startswith("__") or name in ("_is_param", "_cdata"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self.recorder.call(name, (self, *args), kwargs)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        every = [*args, *(kwargs or {}).values()]
        recorder = next((x.recorder for x in every if isinstance(x, Value)), None)
        if recorder is None:
            raise UntraceableError(f"it calls {func.__name__}")
        return recorder.call(func.__name__, args, kwargs or {})

    def __bool__(self) -> bool:
        raise UntraceableError("it decides by the values of a tensor")

    def __float__(self) -> NoReturn:
        raise UntraceableError("it reads values of a tensor")

    __int__ = __index__ = __len__ = __iter__ = __float__
    __hash__ = object.__hash__


for _name in ("add", "sub", "mul", "truediv", "pow", "lt", "le", "gt", "ge", "eq", "ne", "and",
              "or", "neg", "abs", "invert", "getitem"):  # fmt: skip
    setattr(
        Value,
        f"__{_name}__",
        lambda self, *args, _n=_name: self.recorder.call(_n, (self, *args), {}),
    )
for _name in ("add", "sub", "mul", "truediv", "and", "or"):
    setattr(Value, f"__r{_name}__", lambda self, x, _n=_name: self.recorder.call(_n, (x, self), {}))
    setattr(
        Value,
        f"__i{_name}__",
        lambda self, x, _n=_name: self.recorder.call(_n + "_", (self, x), {}),
    )

OTHER_NAMES = {
    "subtract": "sub", "multiply": "mul", "div": "truediv", "divide": "truediv", "negative": "neg",
    "true_divide": "truediv", "absolute": "abs", "less": "lt", "less_equal": "le", "greater": "gt",
    "greater_equal": "ge", "not_equal": "ne", "logical_and": "and", "logical_or": "or",
    "logical_not": "invert", "bitwise_and": "and", "bitwise_or": "or", "bitwise_not": "invert",
    "clip": "clamp", "__and__": "and", "__or__": "or",
}  # fmt: skip
INFIX = {
    "add": "+", "sub": "-", "mul": "*", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==",
    "ne": "!=", "and": "&", "or": "|",
}  # fmt: skip
FUSING = ("addcmul", "addcdiv", "lerp")


class _Recorder:
    """Records the operations of one call of a rule."""

    def __init__(self, values: Numbers) -> None:
        self.values = values
        self.lines: list[str] = []
        self.scalars: dict[Any, tuple[int, Evaluate]] = {}
        self.guards: list[tuple[Evaluate, Callable[[float, float], bool], bool]] = []

    def line(self, text: str, kind: str = FLOAT) -> Value:
        self.lines.append(f"x{len(self.lines)} = {text}")
        return Value(self, f"x{len(self.lines) - 1}", kind)

    def text(self, x: Any) -> str:
        """The expression of an operand."""
        if isinstance(x, Value):
            if x.kind not in (FLOAT, BOOL):
                raise UntraceableError("it computes in float64")
            return x.expression
        if isinstance(x, Scalar):
            number, _ = self.scalars.setdefault(id(x.evaluate), (len(self.scalars), x.evaluate))
            return f"s{number}"
        if isinstance(x, torch.Tensor):
            if x.dim() or x.dtype != torch.float32 or type(x) is not torch.Tensor:
                raise UntraceableError("it uses a tensor of its own")
            x = x.item()
        if isinstance(x, (bool, int, float)):
            return constant(float(x))
        raise UntraceableError(f"it computes with a {type(x).__name__}")

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of one operation of torch, by its name."""
        name = (
            name
            if name.startswith("__and") or name.startswith("__or")
            else name.strip("_") + ("_" if name.endswith("_") and not name.endswith("__") else "")
        )
        target = None
        if name.endswith("_"):
            name, target = name[:-1], args[0]
            if target.fixed:
                raise UntraceableError(target.fixed)
        if kwargs.get("alpha", 1) != 1 or name in FUSING:
            raise UntraceableError(f"it calls {name}, which fuses a product with a sum")
        kwargs = {key: x for key, x in kwargs.items() if key not in ("alpha", "dtype", "device")}
        name = OTHER_NAMES.get(name, name)
        try:
            made = (
                getattr(self, f"_{name}")(*args, **kwargs)
                if name not in INFIX
                else self._infix(name, *args, **kwargs)
            )
        except (AttributeError, TypeError) as error:
            raise UntraceableError(f"it calls {name}{_with(kwargs)}") from error
        if target is None:
            return made
        target.expression = made.expression
        return target

    def _infix(self, name: str, one: Any, other: Any) -> Value:
        boolean = name not in ("add", "sub", "mul")
        return self.line(
            f"{self.text(one)} {INFIX[name]} {self.text(other)}", BOOL if boolean else FLOAT
        )

    def _rsub(self, one: Any, other: Any) -> Value:
        return self._infix("sub", other, one)

    def _truediv(self, one: Any, other: Any) -> Value:
        return self.line(f"divide({self.text(one)}, {self.text(other)})")

    def _reciprocal(self, x: Value) -> Value:
        return self._truediv(1.0, x)

    def _neg(self, x: Value) -> Value:
        return self.line(f"{self.text(x)} * -1.0")

    def _abs(self, x: Value) -> Value:
        return self.line(f"tl.abs({self.text(x)})")

    def _square(self, x: Value) -> Value:
        return self._infix("mul", x, x)

    def _pow(self, x: Value, exponent: Any) -> Value:
        if isinstance(exponent, Scalar) or exponent != 2:
            raise UntraceableError("it takes a power other than the square")
        return self._square(x)

    def _sqrt(self, x: Value) -> Value:
        if x.kind == DOUBLE:
            return Value(self, x.expression, ROOT)
        return self.line(f"root({self.text(x)})")

    def _sign(self, x: Value) -> Value:
        at = self.text(x)
        return self.line(f"tl.where({at} > 0.0, 1.0, tl.where({at} < 0.0, -1.0, 0.0))")

    def _where(self, one: Any, two: Any, three: Any) -> Value:
        """``torch.where(condition, a, b)``, or ``a.where(condition, b)``."""
        condition, a, b = (one, two, three)
        if not (isinstance(one, Value) and one.kind == BOOL):
            condition, a = two, one
        if not (isinstance(condition, Value) and condition.kind == BOOL):
            raise UntraceableError("it selects by what is no comparison")
        return self.line(f"tl.where({self.text(condition)}, {self.text(a)}, {self.text(b)})")

    def _clamp(self, x: Value, min: Any = None, max: Any = None) -> Value:  # noqa: A002
        if min is not None:
            x = self.line(
                f"tl.where({self.text(x)} < {self.text(min)}, {self.text(min)}, {self.text(x)})"
            )
        if max is not None:
            x = self.line(
                f"tl.where({self.text(x)} > {self.text(max)}, {self.text(max)}, {self.text(x)})"
            )
        return x

    def _clamp_min(self, x: Value, min: Any) -> Value:  # noqa: A002
        return self._clamp(x, min)

    def _clamp_max(self, x: Value, max: Any) -> Value:  # noqa: A002
        return self._clamp(x, None, max)

    def _maximum(self, x: Any, y: Any) -> Value:
        a, b = self.text(x), self.text(y)
        return self.line(f"tl.where(({a} > {b}) | ({a} != {a}), {a}, {b})")

    def _minimum(self, x: Any, y: Any) -> Value:
        a, b = self.text(x), self.text(y)
        return self.line(f"tl.where(({a} < {b}) | ({a} != {a}), {a}, {b})")

    def _invert(self, x: Value) -> Value:
        return self.line(f"{self.text(x)} == 0", BOOL)

    def _isnan(self, x: Value) -> Value:
        return self._infix("ne", x, x)

    def _isfinite(self, x: Value) -> Value:
        return self.line(f'tl.abs({self.text(x)}) < float("inf")', BOOL)

    def _isinf(self, x: Value) -> Value:
        return self.line(f'tl.abs({self.text(x)}) == float("inf")', BOOL)

    def _zero(self, x: Value) -> Value:
        return self._full_like(x, 0.0)

    def _fill(self, x: Value, value: Any) -> Value:
        return self._full_like(x, value)

    def _copy(self, x: Value, other: Any) -> Value:
        del x
        return Value(self, self.text(other))

    def _full_like(self, x: Value, value: Any) -> Value:
        del x
        return self.line(
            f"tl.full([1], 0.0, tl.float32) + {self.text(value)}"
            if isinstance(value, Scalar)
            else f"tl.full([1], {self.text(value)}, tl.float32)"
        )

    def _new_full(self, x: Value, size: Any, fill_value: Any) -> Value:
        if isinstance(fill_value, Scalar) and tuple(size) == ():
            return Value(self, self.text(fill_value))
        return self._full_like(x, fill_value)

    def _zeros_like(self, x: Value) -> Value:
        return self._full_like(x, 0.0)

    def _ones_like(self, x: Value) -> Value:
        return self._full_like(x, 1.0)

    def _clone(self, x: Value) -> Value:
        return Value(self, self.text(x), x.kind)

    def _contiguous(self, x: Value) -> Value:
        return x

    _detach = _contiguous

    def _double(self, x: Value) -> Value:
        return Value(self, self.text(x), DOUBLE)

    def _float(self, x: Value) -> Value:
        return self._to(x, torch.float32)

    def _to(self, x: Value, dtype: Any) -> Value:
        if dtype == torch.float64 and x.kind == FLOAT:
            return self._double(x)
        if dtype != torch.float32:
            raise UntraceableError(f"it computes in {dtype}")
        if x.kind == ROOT:  # rounded twice it is the root that is rounded once
            return self.line(f"root({x.expression})")
        if x.kind == DOUBLE:
            return Value(self, x.expression)
        if x.kind == BOOL:
            return self.line(f"tl.where({x.expression}, 1.0, 0.0)")
        return x


class _NoContext:
    """In place of a rule's context: the number of a parameter is not an element's."""

    def __getattr__(self, name: str) -> NoReturn:
        raise UntraceableError(f"it uses the context's {name}")


def trace(apply: Callable[..., Any], states: Iterable[str], values: Numbers) -> Trace:
    """Record a rule with the branches that it takes for these values of its scalars.

    Args:
        apply: the rule, as `qmaps.engines.step.Rule` has it.
        states: names of the states.
        values: values of the step scalars.

    Raises:
        UntraceableError: it does what a kernel cannot do.
    """
    recorder = _Recorder(values)
    param = Value(recorder, "p")
    gradient = Value(recorder, "g", fixed="it changes its gradient in place")
    named = {name: Value(recorder, f"v{number}") for number, name in enumerate(states)}
    scalars = {name: Scalar(recorder, operator.itemgetter(name)) for name in values}
    try:
        apply(_NoContext(), param, gradient, named, scalars)
    except UntraceableError:
        raise
    except Exception as error:
        words = str(error).splitlines() or [""]
        raise UntraceableError(f"{type(error).__name__}: {words[0]}"[:120]) from error
    outcome = {name: recorder.text(value) for name, value in named.items()}
    ordered = tuple(evaluate for _, evaluate in recorder.scalars.values())
    return Trace(
        tuple(recorder.lines), recorder.text(param), outcome, ordered, tuple(recorder.guards)
    )


def constant(x: float) -> str:
    """A number rounded to float32, as text that reads as the same float32."""
    if math.isnan(x) or math.isinf(x):
        return f'float("{x}")'
    try:
        return repr(struct.unpack("f", struct.pack("f", x))[0])
    except OverflowError:
        raise UntraceableError(f"{x} is no number of float32") from None


def _with(kwargs: Mapping[str, Any]) -> str:
    return f" with {', '.join(kwargs)}" if kwargs else ""
