"""Step counters: values that no optimizer has, and counters that stop."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from qmaps.algebra.dense import unsupported_reason
from qmaps.algebra.quantizer import values_of
from qmaps.capture.lint.base import ERROR, WARNING, Entry, Finding
from qmaps.capture.states import SECOND
from qmaps.errors import shown
from qmaps.optim.other_libraries import GROUP_COUNTS, Count, counts_in, uncounted

SAME = 0.01
"""Relative difference of two updates that is not reported."""


def check_counters(entry: Entry) -> Iterator[Finding]:
    """Yield the problems of a parameter's step counters."""
    for name, value in entry.counters.items():
        number = _number(value)
        if number is None:
            yield _finding(entry.label, name, _impossible(name, value))
        elif isinstance(value, Tensor) and value.is_floating_point():
            yield from _ending(entry, name, number, value.dtype)
        if name == "step" and number == 0:
            for second in SECOND:
                if second in entry.states and bool(values_of(entry.states[second]).any()):
                    message = f"step=0, but {second} is not 0; the number of steps was lost"
                    yield _finding(entry.label, name, message)
                    break


def check_groups(groups: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    """Yield the problems of the counters in an optimizer's groups."""
    for place, group in enumerate(groups):
        for name, value in counts_in(group).items():
            if value is not None and _number(value) is None:
                yield _finding("", "", f"group {place}: {_impossible(name, value)}")


def check_missing(counts: Iterable[Count], *, anywhere: bool) -> Iterator[Finding]:
    """Yield parameters without the number of steps that their states need; see `uncounted`."""
    lost = []
    for label, beside in uncounted(counts, anywhere=anywhere):
        if beside:
            yield _finding(label, "step", "it has no step; others with the same states have one")
        else:
            lost.append(label)
    if lost:
        keys = ", ".join(GROUP_COUNTS)
        some = f"{lost[0]} has" if len(lost) == 1 else f"{lost[0]} and {len(lost) - 1} more have"
        message = f"{some} moments and no step, neither in states nor in a group ({keys})"
        yield _finding("", "step", message)


def _finding(parameter: str, state: str, message: str, level: str = ERROR) -> Finding:
    return Finding(level, "step", parameter, state, 0, 0.0, message)


def _impossible(name: str, value: Any) -> str:
    return f"{name}={shown(value)} is no number of steps, an integer of at least 0"


def _number(value: Any) -> float | None:
    """The number of steps; None if it is none."""
    if isinstance(value, Tensor):
        if unsupported_reason(value) or value.numel() != 1:
            return None
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if math.isfinite(value) and value >= 0 and value == int(value) else None


def _ending(entry: Entry, name: str, number: float, dtype: torch.dtype) -> Iterator[Finding]:
    """Report a counter whose dtype counts no further than some number.

    It does harm if bias corrections have not ended there. float32 counts to 2**24, later than they
    end.
    """
    last = round(2 / torch.finfo(dtype).eps)
    beta1, beta2 = entry.option("betas", 0), entry.option("betas", 1)
    if torch.finfo(dtype).bits >= 32 or beta1 is None or beta2 is None:
        return
    if not 0 <= beta1 < 1 or not 0 <= beta2 < 1:
        return
    reached = max(number, last)
    length = math.sqrt(1 - beta2**reached) / (1 - beta1**reached)
    dtype_name = str(dtype).removeprefix("torch.")
    message = f"{name}={number:g} in {dtype_name} counts no further than {last}"
    if abs(length - 1) > SAME:
        message += f", which makes later updates {length:.2g} times as large, for good"
        yield _finding(entry.label, name, message)
    else:
        yield _finding(entry.label, name, message, WARNING)
