"""Calls the hooks of a torch optimizer that is saved and loaded in a way of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch


def save(optimizer: torch.optim.Optimizer, saved: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `saved` returns, or what the last hooks replace it with."""
    for before in optimizer._optimizer_state_dict_pre_hooks.values():
        before(optimizer)
    result = saved()
    for after in optimizer._optimizer_state_dict_post_hooks.values():
        changed = after(optimizer, result)
        result = result if changed is None else changed
    return result


def load(
    optimizer: torch.optim.Optimizer,
    state_dict: Mapping[str, Any],
    loading: Callable[[Any], None],
) -> None:
    """Call `loading` with the state_dict, which the first hooks may replace."""
    saved: Any = dict(state_dict) if isinstance(state_dict, Mapping) else state_dict
    for before in optimizer._optimizer_load_state_dict_pre_hooks.values():
        changed = before(optimizer, saved)
        saved = saved if changed is None else changed
    loading(saved)
    for after in optimizer._optimizer_load_state_dict_post_hooks.values():
        after(optimizer)
