"""A case on a CUDA device: methods in turns with a copy of memory, their bound."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.case import OURS, Setup, forms, prepared, row, skip
from benchmarks.gpu.place import Place
from benchmarks.timing import Work, interleaved
from qmaps.ops.backends import cuda_engine

Row = dict[str, Any]

COPY = "copy"
COPIED = 1 << 28
"""Elements of the copy at full size, 1 GiB: far more than caches hold."""
MIB = 1 << 20


@dataclass(frozen=True)
class GpuCase:
    """Methods timed in turns with a copy of memory.

    Attributes:
        name: name of the work.
        make: returns the work, given the device and the number of elements.
        full: elements at full size.
        nbytes: bytes of memory per element, for all methods together.
        share: smallest accepted share of the bound: the time of a copy of as many bytes as the
            work's.
        predicted: case of the same work in `benchmarks.gpu.predictions`, by method.
        most_ns: largest accepted number of nanoseconds per element.
        floors: smallest accepted ratio of a peer's time to ours, by peer.
        note: note for readers of the table.
    """

    name: str
    make: Callable[[torch.device, int], Setup]
    full: int
    nbytes: float
    share: float | None = None
    predicted: Mapping[str, str] = field(default_factory=dict)
    most_ns: float | None = None
    floors: Mapping[str, float] = field(default_factory=dict)
    note: str = ""

    def measure(self, place: Place) -> Row:
        """The row."""
        wanted = int(self.full * place.scale)
        size = place.elements(self.full, self.nbytes)
        setup = self.make(place.device, size)
        works, skipped = prepared(setup.methods)
        copy = Copy(place)
        seconds, failed = interleaved(
            {COPY: copy, **works},
            place.rounds,
            refresh=setup.refresh,
            budget=place.budget,
            clock=place.clock,
            warm_ups=place.warm_ups,
            seconds_in_all=place.seconds,
        )
        for name, error in failed.items():
            if name == COPY:
                raise error
            skip(skipped, name, error)
        rate = copy.nbytes / statistics.median(seconds.pop(COPY))
        values = {name: [1e3 * second for second in times] for name, times in seconds.items()}
        record = row(self.name, "ms", values, self.floors, skipped, self.note)
        bounds = {
            name: 1e3 * size * setup.elements / rate
            for name, size in setup.nbytes.items()
            if name in values
        }
        shares = {name: ms / record["values"][name]["median"] for name, ms in bounds.items()}
        record |= {
            "elements": setup.elements,
            "scaled_down_from": wanted if size < wanted else None,
            "bytes_per_element": dict(setup.nbytes),
            "copy_bytes_per_second": rate,
            "bound_ms": bounds,
            "share_of_bound": shares,
            "ns_per_element": {
                name: 1e6 * summary["median"] / setup.elements
                for name, summary in record["values"].items()
            },
            "predicted": dict(self.predicted),
            "checks": setup.check() if setup.check and OURS in values else {},
            "forms": forms(works, values),
        }
        if place.on_gpu:
            record |= self._besides(place, {name: works[name] for name in values})
        return record | {"goals": self.goals(record)}

    def _besides(self, place: Place, works: Mapping[str, Work]) -> Row:
        """Measurements taken once, after the timing."""
        # A recorded step launches nothing that could be counted.
        countable = OURS in works and not hasattr(works[OURS], "form")
        launched = launches(works[OURS], place.device) if countable else None
        return {
            "host_ms": {name: host_ms(work, place.device) for name, work in works.items()},
            "peak_mib": {name: peak_mib(work, place.device) for name, work in works.items()},
            "own_kernels": launched,
        }

    def goals(self, record: Row) -> list[Row]:
        """Goals of ours; `record` is None where it was not measured."""
        share, ns = record["share_of_bound"].get(OURS), record["ns_per_element"].get(OURS)
        goals = []
        if self.share is not None:
            goals.append(_goal("share of the bound", self.share, share, at_least=True))
        if self.most_ns is not None:
            goals.append(_goal("ns per element", self.most_ns, ns, at_least=False))
        for peer, floor in self.floors.items():
            ratio = record["ratios"].get(peer, {}).get("ratio")
            why = record["skipped"].get(peer, record["skipped"].get(OURS, ""))
            goals.append(_goal(f"times {peer}", floor, ratio, at_least=True) | {"skipped": why})
        return goals


def _goal(what: str, asked: float, value: float | None, *, at_least: bool) -> Row:
    reached = None if value is None else (value >= asked if at_least else value <= asked)
    return {"what": what, "asked": asked, "least": at_least, "found": value, "reached": reached}


class Copy:
    """One part of the device's memory copied to another.

    Attributes:
        nbytes: read and written by a call.
    """

    def __init__(self, place: Place) -> None:
        size = place.elements(COPIED, 64)
        self._from = torch.rand(size, device=place.device)
        self._to = torch.empty_like(self._from)
        self.nbytes = 2 * self._from.nbytes

    def __call__(self) -> None:
        """Copy once."""
        self._to.copy_(self._from)


def host_ms(work: Work, device: torch.device, calls: int = 3) -> float:
    """Milliseconds until a call returns, while the device may still be at it."""
    milliseconds = []
    for _ in range(calls):
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        work()
        milliseconds.append(1e3 * (time.perf_counter() - start))
    torch.cuda.synchronize(device)
    return statistics.median(milliseconds)


def peak_mib(work: Work, device: torch.device) -> float:
    """Peak of the device's memory during a call, in MiB above the memory before it."""
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    torch.cuda.synchronize(device)
    return (torch.cuda.max_memory_allocated(device) - before) / MIB


def launches(work: Work, device: torch.device) -> int:
    """Number of qmaps' kernels launched by a call; 0 if the reference runs the work."""
    engine: Any = cuda_engine(torch.empty(1, device=device))
    if engine is None:
        return 0
    seen = 0
    launch = engine.launch

    def counted(*arguments: Any, **named: Any) -> None:
        nonlocal seen
        seen += 1
        launch(*arguments, **named)

    engine.launch = counted
    try:
        work()
    finally:
        del engine.launch
    return seen
