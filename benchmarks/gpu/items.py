"""All measurements on a device, by name, for a worker process."""

from __future__ import annotations

import gc
import traceback
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks import bandwidth
from benchmarks.case import reason
from benchmarks.gpu.cases import CASES
from benchmarks.gpu.checks import CHECKS
from benchmarks.gpu.place import Place

Row = dict[str, Any]


class Item(Protocol):
    """Part of a run: a check, a case, or the bandwidth."""

    @property
    def name(self) -> str:
        """Name of the work."""
        ...

    def measure(self, place: Place) -> Row:
        """A row of the results."""
        ...


@dataclass(frozen=True)
class Bandwidth:
    """The device's memory by itself.

    Attributes:
        name: when it is measured.
    """

    name: str

    def measure(self, place: Place) -> Row:
        """Bytes per second by kernel."""
        scale = min(1.0, place.elements(4 * bandwidth.FULL, 16) / (4 * bandwidth.FULL))
        rounds = 1 if place.dry else place.rounds
        rates = bandwidth.bandwidth(rounds, scale, device=place.device, clock=place.clock)
        return {"name": self.name, "bytes_per_second": rates}


BEFORE, AFTER = Bandwidth("bandwidth before"), Bandwidth("bandwidth after")
ITEMS: dict[str, Item] = {item.name: item for item in (BEFORE, AFTER, *CHECKS)} | {
    f"case {case.name}": case for case in CASES
}


def perform(name: str, place: Place) -> Row:
    """Measure one item; an error becomes its row."""
    try:
        record = ITEMS[name].measure(place)
    except Exception as error:
        traceback.print_exc(limit=-5)
        record = {"error": reason(error)}
    gc.collect()  # optimizers are cycles, and their states the largest part of the memory
    broken = place.broken()
    if not broken:
        place.forget()
    return record | {"broken": broken}
