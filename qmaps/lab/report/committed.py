"""Intervals of losses over seeds in committed reports, to stand beside the loss of one seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Interval(NamedTuple):
    """The loss minus that of 32 bits, seed by seed: a 95 % interval of the mean."""

    seeds: int
    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:+.4f} ({self.low:+.4f} to {self.high:+.4f}), {self.seeds} seeds"


INTERVALS: dict[tuple[Any, ...], dict[str, Interval]] = {
    ("stdlib-lm", 250, 0.001): {
        "B256/DE@8s + B256/DE-0@8u": Interval(8, 0.0010, -0.0056, 0.0075),
        "B128/DE@4s + rank1/linear@4u": Interval(8, -0.0032, -0.0303, 0.0238),
        "B128/DE@4s+sr + B128/DE-0@4u": Interval(8, -0.0168, -0.0382, 0.0047),
        "B128/DE@3s+sr + B128/DE-0@3u": Interval(8, -0.0163, -0.0344, 0.0018),
        "B16x8/linear0(full=true)@2s+sr + B32x8/power3@2u": Interval(4, -0.0076, -0.0383, 0.0232),
    }
}
"""By workload, steps and learning rate, those of pairs (reports/judges.md)."""


def intervals(about: Mapping[str, Any]) -> dict[str, Interval]:
    """Committed intervals by pair for the training of a run folder's ``about.json``."""
    place = about["workload"], about.get("steps"), about.get("settings", {}).get("lr")
    return INTERVALS.get(place, {})
