"""The best choice for each of several tensors under a budget of bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from qmaps.errors import BadValueError


class Option(NamedTuple):
    """Bytes and error of one tensor under one pair of quantizers.

    Attributes:
        nbytes: bytes of its states.
        error: errors of tensors add up; infinity or NaN is never chosen.
    """

    nbytes: int
    error: float


def hull(options: Sequence[Option]) -> list[int]:
    """The options on the lower convex hull of error over bytes, the fewest bytes first.

    Args:
        options: the options; at least one of finite error.

    Returns:
        Indices into `options`. From each to the next bytes grow, the error falls, and it falls by
        less and less per byte.
    """
    finite = [index for index, option in enumerate(options) if math.isfinite(option.error)]
    corners: list[int] = []
    for index in sorted(finite, key=lambda i: (options[i].nbytes, options[i].error)):
        if corners and options[index].error >= options[corners[-1]].error:
            continue
        while len(corners) > 1 and _gain(options, *corners[-2:]) <= _gain(
            options, corners[-1], index
        ):
            corners.pop()
        corners.append(index)
    return corners


def choose(tensors: Sequence[Sequence[Option]], nbytes: float) -> list[int]:
    """The option of each tensor, of least total error within the budget.

    Each tensor starts with the fewest bytes; then the step along some tensor's hull that lowers
    the error most per byte is taken again and again, if it fits. Choices on the way are those that
    a Lagrange multiplier finds, so each is the best one for its bytes.

    Args:
        tensors: the options of each tensor, each with at least one of finite error.
        nbytes: most bytes of all tensors together.

    Returns:
        One index into its options for each tensor.

    Raises:
        BadValueError: the fewest bytes are more than `nbytes`; the message has both numbers.

    Source: Shoham and Gersho (1988), "Efficient bit allocation for an arbitrary set of quantizers".
    """
    hulls = [hull(options) for options in tensors]
    places = [0] * len(hulls)
    used = sum(options[corners[0]].nbytes for options, corners in zip(tensors, hulls, strict=True))
    if used > nbytes:
        raise BadValueError(
            f"no choice takes {nbytes:,.0f} bytes or less; the smallest takes {used:,.0f}"
        )
    steps = sorted(
        (-_gain(options, corners[place], corners[place + 1]), tensor, place)
        for tensor, (options, corners) in enumerate(zip(tensors, hulls, strict=True))
        for place in range(len(corners) - 1)
    )
    for _, tensor, place in steps:
        options, corners = tensors[tensor], hulls[tensor]
        more = options[corners[place + 1]].nbytes - options[corners[place]].nbytes
        if places[tensor] == place and used + more <= nbytes:
            places[tensor], used = place + 1, used + more
    return [corners[place] for corners, place in zip(hulls, places, strict=True)]


def _gain(options: Sequence[Option], smaller: int, larger: int) -> float:
    """By how much the error falls per byte from one option to a larger one."""
    more = options[larger].nbytes - options[smaller].nbytes
    less = options[smaller].error - options[larger].error
    return less / more if more else math.inf
