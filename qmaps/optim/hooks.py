"""Calls the hooks of a torch optimizer that is saved and loaded in a way of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from qmaps.errors import BadValueError, QmapsError


def save(optimizer: torch.optim.Optimizer, saved: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Result of `saved`, or of the last hook that replaces it."""
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
    """Call `loading` with the state_dict, which the first hooks may replace.

    Raises:
        BadValueError: `loading` raised an error of any other kind than `QmapsError`.
    """
    saved: Any = dict(state_dict) if isinstance(state_dict, Mapping) else state_dict
    for before in optimizer._optimizer_load_state_dict_pre_hooks.values():
        changed = before(optimizer, saved)
        saved = saved if changed is None else changed
    with damage():
        loading(saved)
    for after in optimizer._optimizer_load_state_dict_post_hooks.values():
        after(optimizer)


@contextmanager
def damage() -> Iterator[None]:
    """Turn whatever taking a damaged state_dict apart raises into a `BadValueError` of one line."""
    try:
        yield
    except (QmapsError, MemoryError, Warning):
        raise
    except Exception as error:  # the cause is kept in case it is an error of qmaps
        reason = f"{type(error).__name__}: {error}"
        raise BadValueError(f"the parts of state_dict do not fit together ({reason})") from error
