"""Number of steps that an optimizer has taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from qmaps.capture.parameters import labelled


class StepCount:
    """Counts the steps of an optimizer while it trains.

    The counts in the states do not tell: a layer that begins to train later, or states that are
    cleared, count from 1 again.

    Args:
        optimizer: the optimizer.
        taken_before: returns the number of steps that led to the current states. It is called
            here, unless `start` is given, and after each `load_state_dict` with states.
        start: number of steps taken so far.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        taken_before: Callable[[], int],
        start: int | None = None,
    ) -> None:
        # A CPUOffloadOptimizer skips a step where its host_optimizer does.
        self._optimizer = getattr(optimizer, "host_optimizer", optimizer)
        self._calls = self._last = 0
        self._begin(taken_before() if start is None else start)
        self._hook = optimizer.register_load_state_dict_post_hook(
            lambda loaded: self._begin(taken_before()) if loaded.state else None
        )

    @property
    def taken(self) -> int:
        """Number of steps, without those that were skipped; reading it waits for CUDA devices."""
        return self._calls - self._skipped()

    def add(self) -> None:
        """Count a call of ``optimizer.step()`` that has just returned, without waiting."""
        # A GradScaler sets it for optimizers that skip steps themselves, such as fused ones.
        overflow = getattr(self._optimizer, "found_inf", None)
        if hasattr(self._optimizer, "skipped_steps") or overflow is None or not bool(overflow):
            self._calls += 1

    def advance(self) -> int | None:
        """Count a call as `add` does; return the number of the step, None if it was skipped."""
        self.add()
        before, taken = self._last, self.taken
        self._last = taken
        return taken if taken > before else None

    def close(self) -> None:
        """Remove the hook; closing twice is allowed."""
        self._hook.remove()

    def _begin(self, steps: int) -> None:
        self._calls, self._last = steps + self._skipped(), steps

    def _skipped(self) -> int:
        skipped: int = getattr(self._optimizer, "skipped_steps", 0)
        return skipped


def state_counts(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> dict[str, int]:
    """Return ``state["step"]`` of each parameter that has one, by name.

    Args:
        optimizer: the optimizer.
        names: as for `qmaps.capture.parameters.labelled`.
    """
    counts: dict[str, int] = {}
    for label, parameter, _ in labelled(optimizer, names):
        state: Any = optimizer.state.get(parameter)
        # Hooks may keep entries of another kind.
        step = state.get("step") if isinstance(state, Mapping) else None
        if isinstance(step, (int, float)) or (isinstance(step, Tensor) and step.numel() == 1):
            counts[label] = int(step)
    return counts
