"""Options of other libraries that qmaps lacks: accepted where they change nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from qmaps.errors import BadTypeError, BadValueError, shown
from qmaps.optim.other_libraries import NEUTRAL

HARMLESS = ("capturable", "foreach", "fused")
"""The options that choose one of torch's implementations of the same rule."""

TORCH_OPTIONS = frozenset({*HARMLESS, "amsgrad", "decoupled_weight_decay", "differentiable"})
"""All of these options; torch's checkpoints hold them."""

REASONS = {
    "amsgrad": "qmaps does not keep the largest second moment",
    "decoupled_weight_decay": "AdamW decouples weight decay, and Adam does either",
    "differentiable": "autograd does not record steps",
}


def without_neutral_options(
    owner: str,
    options: Mapping[str, Any],
    stands_for: Mapping[str, object],
    own: Collection[str] = (),
) -> dict[str, Any]:
    """`options` without those of torch, and without those of other libraries that ask for nothing.

    Args:
        owner: the optimizer's name, for error messages.
        options: of an optimizer or of a parameter group.
        stands_for: options that this optimizer's rule knows, with the value that it stands for.
        own: options that the optimizer itself has, which stay.

    Raises:
        BadTypeError: an option is not one of torch's that the optimizer accepts, or is not a bool.
        BadValueError: one of torch's has a value that would change the rule.
    """
    neutral = {**NEUTRAL, "differentiable": False, **stands_for}
    kept = {}
    for name, value in options.items():
        if name in own or (name not in neutral and name not in TORCH_OPTIONS):
            kept[name] = value
        elif name not in TORCH_OPTIONS:
            if not _same(value, neutral[name]):
                kept[name] = value
        elif value is not None and not isinstance(value, bool):
            raise BadTypeError(f"{name}={shown(value)} must be True, False or None")
        elif name not in HARMLESS:
            if name not in neutral:
                raise BadTypeError(f"{name}={shown(value)} is not an option of {owner}")
            if value != neutral[name]:
                raise BadValueError(f"{name}={value} is not supported: {REASONS[name]}")
    return kept


def _same(value: object, neutral: object) -> bool:
    """Return True if a value is the neutral one; 1 is not True, but 0.0 is 0."""
    plain = value is None or isinstance(value, (int, float))
    return plain and isinstance(value, bool) == isinstance(neutral, bool) and value == neutral
