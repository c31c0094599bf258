"""Options of torch's optimizers that qmaps lacks: accepted where they change nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from qmaps.errors import BadTypeError, BadValueError, shown

HARMLESS = ("capturable", "foreach", "fused")
"""The options that choose one of torch's implementations of the same rule."""

TORCH_OPTIONS = frozenset({*HARMLESS, "amsgrad", "decoupled_weight_decay", "differentiable"})
"""All of these options; torch's checkpoints hold them."""

REASONS = {
    "amsgrad": "qmaps does not keep the largest second moment",
    "decoupled_weight_decay": "Adam couples weight decay, AdamW decouples it",
    "differentiable": "autograd does not record steps",
}


def without_torch_options(
    owner: str,
    options: Mapping[str, Any],
    stands_for: Mapping[str, object],
    own: Collection[str] = (),
) -> dict[str, Any]:
    """`options` without those of torch.

    Args:
        owner: the optimizer's name, for error messages.
        options: of an optimizer or of a parameter group.
        stands_for: options of torch that this optimizer's rule knows, with the value that it
            stands for.
        own: options that the optimizer itself has, which stay.

    Raises:
        BadTypeError: an option is not one of torch's that the optimizer accepts, or is not a bool.
        BadValueError: one of torch's has a value that would change the rule.
    """
    kept = {}
    for name, value in options.items():
        if name not in TORCH_OPTIONS or name in own:
            kept[name] = value
        elif value is not None and not isinstance(value, bool):
            raise BadTypeError(f"{name}={shown(value)} must be True, False or None")
        elif name not in HARMLESS:
            only = False if name == "differentiable" else stands_for.get(name)
            if only is None:
                raise BadTypeError(f"{name}={shown(value)} is not an option of {owner}")
            if value != only:
                raise BadValueError(f"{name}={value} is not supported: {REASONS[name]}")
    return kept
