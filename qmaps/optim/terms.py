"""Terms of several update rules, and checks of their options."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

from torch import Tensor

from qmaps.errors import BadTypeError, BadValueError, shown
from qmaps.normalize.block import MOST


def hyperparameters(arguments: dict[str, Any]) -> dict[str, Any]:
    """Hyper-parameters of a rule, from the ``locals()`` of its constructor."""
    others = ("self", "params", "shared", "__class__")
    return {name: value for name, value in arguments.items() if name not in others}


def ascent(group: dict[str, Any]) -> float:
    """The scalar `sign`, the factor of gradients: -1 where the group maximizes."""
    return -1.0 if group["maximize"] else 1.0


def directed(grad: Tensor, scalars: dict[str, float]) -> Tensor:
    """The gradient times `sign`."""
    return -grad if scalars["sign"] < 0 else grad


def coupled(param: Tensor, grad: Tensor, scalars: dict[str, float]) -> Tensor:
    """The directed gradient with L2 weight decay: ``g + weight_decay * p``, or g where it is 0.

    Args:
        param: float32 parameter p.
        grad: float32 gradient of the same shape; it is not changed.
        scalars: `sign` and `weight_decay`.

    Returns:
        float32 of the same shape; `grad` itself where nothing has to be done.
    """
    grad = directed(grad, scalars)
    decay = scalars["weight_decay"]
    return grad + param * decay if decay != 0 else grad


def number(name: str, value: Any) -> float:
    """The number of an option: an int, a float, or a tensor with one element.

    Raises:
        BadTypeError: it is none.
        BadValueError: it is an int beyond all floats, or a tensor of more elements or none.
    """
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
    """Raise unless `betas` are `count` numbers in [0, 1).

    Args:
        group: options, `betas` among them.
        needed: the expected value in the error message.
        count: how many numbers.

    Raises:
        BadTypeError: `betas` is no sequence and no 1-D tensor, or holds something else than
            numbers.
        BadValueError: there are more or fewer numbers, or one is outside [0, 1).
    """
    check_pair("betas", group["betas"], needed, count)
    for index, beta in enumerate(group["betas"]):
        check_decay(f"betas[{index}]", beta)


def check_pair(name: str, value: Any, needed: str = "two numbers", count: int = 2) -> None:
    """Raise unless an option is a sequence or a 1-D tensor of `count` elements.

    Args:
        name: the option's name, for the error message.
        value: the option's value.
        needed: the expected value in the error message.
        count: how many elements.

    Raises:
        BadTypeError: `value` is no sequence and no 1-D tensor, or a str.
        BadValueError: there are more or fewer elements.
    """
    row = value.dim() == 1 if isinstance(value, Tensor) else isinstance(value, Sequence)
    if not row or isinstance(value, str):
        raise BadTypeError(f"{name}={shown(value)} must be {needed}")
    if len(value) != count:
        raise BadValueError(f"{name}={shown(value)} must be {needed}")


def check_int(name: str, value: Any, minimum: int, or_none: bool = False) -> None:
    """Raise unless an option is an int from `minimum` to 2**53.

    Args:
        name: the option's name, for the error message.
        value: the option's value.
        minimum: the smallest allowed value.
        or_none: whether None is allowed too.

    Raises:
        BadValueError: `value` is of another type or out of range.
    """
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


def check_bool(group: dict[str, Any], *names: str) -> None:
    """Raise unless these options are True or False."""
    for name in names:
        if not isinstance(group[name], bool):
            raise BadTypeError(f"{name}={shown(group[name])} must be True or False")
