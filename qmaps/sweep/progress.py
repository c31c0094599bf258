"""Throughput and time left of a sweep."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from qmaps.sweep.plan import Item


class Meter:
    """Counts the work that was done, and tells it in elements measured with all specs.

    Args:
        items: the items that are to be measured.
        clock: gives seconds.
    """

    def __init__(self, items: Sequence[Item], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun = clock()
        self._all = sum(item.work for item in items)
        self._numel = sum({item.position: item.numel for item in items}.values())
        self._done = 0

    def add(self, item: Item) -> None:
        """Count an item that was measured."""
        self._done += item.work

    def note(self, item: Item) -> str:
        """The name of an item's parameter, with throughput and time left once they are known."""
        seconds = self._clock() - self._begun
        if not self._done or seconds <= 0:
            return item.parameter
        rate = self._done / seconds
        left = (self._all - self._done) / rate
        elements = amount(rate * self._numel / self._all)
        return f"{item.parameter} ({elements} elements/s, {duration(left)} left)"


def amount(number: float) -> str:
    """A number with three digits and a letter for thousands, millions or billions.

    >>> amount(1_234_567)
    '1.23M'
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.3g}"


def duration(seconds: float) -> str:
    """A duration in its two largest units.

    >>> duration(42), duration(200), duration(7300)
    ('42 s', '3 min 20 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
