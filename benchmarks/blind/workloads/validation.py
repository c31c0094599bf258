"""Losses of a validation set."""

from __future__ import annotations

from torch import Tensor

PARTS = 8


def means(losses: Tensor) -> dict[str, float]:
    """The mean loss, and those of parts of the validation set.

    The spread of a difference over the parts tells how much of it hangs on the choice of the
    validation set.

    Args:
        losses: one per example, in a fixed order, `PARTS` or more.

    Returns:
        ``loss``, and ``loss_1`` to ``loss_8`` of every eighth example.
    """
    parts = {f"loss_{part + 1}": float(losses[part::PARTS].mean()) for part in range(PARTS)}
    return {"loss": float(losses.mean()), **parts}
