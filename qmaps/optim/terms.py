"""Terms that several update rules share, and checks of their options."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from qmaps.errors import BadTypeError, BadValueError


def ascent(group: dict[str, Any]) -> float:
    """The scalar `sign`: what a gradient is multiplied by, -1 where the group maximizes."""
    return -1.0 if group["maximize"] else 1.0


def directed(grad: Tensor, scalars: dict[str, float]) -> Tensor:
    """The gradient times `sign`."""
    return -grad if scalars["sign"] < 0 else grad


def coupled(param: Tensor, grad: Tensor, scalars: dict[str, float]) -> Tensor:
    """The directed gradient with L2 weight decay: ``g + weight_decay * p``, or g where it is 0."""
    grad = directed(grad, scalars)
    decay = scalars["weight_decay"]
    return grad + param * decay if decay != 0 else grad


def check_at_least_0(group: dict[str, Any], *names: str) -> None:
    """Raise unless these options are numbers of at least 0."""
    for name in names:
        if isinstance(value := group[name], str):
            raise BadTypeError(
                f"{name}={value!r} must be a number; YAML takes 1e-3 for text and 1.0e-3 for one"
            )
        if not float(value) >= 0:
            raise BadValueError(f"{name}={group[name]} must be at least 0")


def check_decay(name: str, value: float) -> None:
    """Raise unless the decay of a running average is in [0, 1)."""
    if not 0 <= value < 1:
        raise BadValueError(f"{name}={value} is outside [0, 1)")


def check_betas(group: dict[str, Any]) -> None:
    """Raise unless each of `betas` is in [0, 1)."""
    for index, beta in enumerate(group["betas"]):
        check_decay(f"betas[{index}]", beta)


def check_bool(group: dict[str, Any], *names: str) -> None:
    """Raise unless these options are True or False."""
    for name in names:
        if not isinstance(group[name], bool):
            raise BadTypeError(f"{name}={group[name]!r} must be True or False")
