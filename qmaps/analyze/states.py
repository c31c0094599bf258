"""States as analyses accept them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

import pandas as pd
from torch import Tensor

from qmaps import capture
from qmaps.analyze.limits import MIN_SIZE
from qmaps.capture import CapturedStates
from qmaps.capture.moments import Moments
from qmaps.capture.parameters import check_text
from qmaps.errors import CaptureError

__all__ = ["MIN_SIZE", "States", "adam_pairs", "as_states", "joined", "none_is_large", "to_replay",
           "with_gradients"]  # fmt: skip

States = CapturedStates | Mapping[str, Mapping[str, Tensor]] | str | os.PathLike[str]
"""Captured states, their path, or tensors by parameter and state name."""


def as_states(states: States, moments: Moments | None = None) -> CapturedStates:
    """Return the states behind a path or a dict, with Adam's names for moments.

    `CapturedStates` are returned as they are if their moments have these names.

    Args:
        states: captured states, their path, or tensors by parameter and state name.
        moments: as for `CapturedStates.as_adam`; by default known names of other packages.

    Raises:
        CaptureError: they cannot be read, or a name is no valid Unicode, which frames cannot hold.
        BadTypeError, BadValueError: `moments` does not fit the states.
    """
    if isinstance(states, Mapping):
        states = CapturedStates.from_tensors(states)
    elif not isinstance(states, CapturedStates):
        states = capture.load(states)
    check_text(states.parameters(), repr(states.source))
    return states if states.own_moments is not None and not moments else states.as_adam(moments)


def opened(
    source: str,
    names: Sequence[str],
    given: tuple[tuple[str, Any], ...] = (),
    moments: Moments | None = None,
) -> CapturedStates:
    """The states at a path, under these names; a worker opens them once until they are changed.

    `given` are options of `qmaps.capture.load`, `moments` is that of the caller's states.

    Raises:
        CaptureError: they cannot be read.
    """
    try:
        changed = Path(source).stat().st_mtime_ns
    except OSError:
        raise CaptureError(f"{source!r} does not exist") from None
    states = _opened(source, changed, given)
    # The names may have been given by the caller.
    states = states if states.parameters() == list(names) else states.renamed(names)
    return states if moments is None else states.as_adam(moments)


@lru_cache(maxsize=1)
def _opened(
    source: str,
    changed: int,  # noqa: ARG001
    given: tuple[tuple[str, Any], ...],
) -> CapturedStates:
    return capture.load(source, **dict(given))


def with_gradients(
    source: str | os.PathLike[str], last: CapturedStates, enough: int = 2
) -> CapturedStates:
    """The last states of a folder with gradients of `enough` steps, or with most; else `last`."""
    if len(last.steps) == 1:
        return last

    def usable(states: CapturedStates) -> int:
        count = len(states.window())
        return min(count, enough) if count > 1 else 0  # an update needs the next gradient

    return max((capture.load(source, step=step) for step in reversed(last.steps)), key=usable)


def to_replay(states: States, enough: int = 2, moments: Moments | None = None) -> CapturedStates:
    """As `as_states`, but for a path to several steps the last with gradients of `enough` steps."""
    if isinstance(states, (str, os.PathLike)):
        states = with_gradients(states, capture.load(states), enough)
    return as_states(states, moments)


def adam_pairs(
    states: States, min_quantized_size: int = MIN_SIZE
) -> Iterator[tuple[str, Tensor, Tensor, float]]:
    """Yield name, first moment, second moment and eps of each large enough parameter.

    Both moments are float32 tensors of one shape on the CPU. A parameter is large enough if it has
    more than `min_quantized_size` elements.

    Raises:
        CaptureError: no parameter is large enough or has both moments, or a moment holds NaN or
            infinity.
    """
    seen, states = False, as_states(states)
    for parameter, m, v, eps in states.adam_pairs():
        if m.numel() > min_quantized_size:
            seen = True
            yield parameter, m, v, eps
    if not seen:
        none_is_large("parameter", min_quantized_size, states)


def joined(parts: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """A frame of the rows of all parts, each a dict of columns; a number is repeated."""
    return pd.concat(map(pd.DataFrame, parts), ignore_index=True)


def none_is_large(what: str, min_quantized_size: int, states: CapturedStates) -> NoReturn:
    """Raise the error for states without a large enough parameter."""
    reason = states.left_out()
    raise CaptureError(
        f"no {what} has more than min_quantized_size={min_quantized_size} elements, so there is "
        f"nothing to quantize{reason and '; ' + reason}"
    )
