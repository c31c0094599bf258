"""Cases: methods for the same work, and the floors of their ratios."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from benchmarks.limits import Needs
from benchmarks.neighbours import Neighbours
from benchmarks.timing import Work, interleaved, quartiles, ratio

OURS = "qmaps"


class UnavailableError(Exception):
    """A method cannot run here; the message says why."""


@dataclass(frozen=True)
class Options:
    """Options of a run.

    Attributes:
        scale: size of the work; 1 is full.
        rounds: counted rounds.
        budget: seconds for each method of a case; a slower one stops early.
    """

    scale: float = 1.0
    rounds: int = 7
    budget: float = 10.0


@dataclass(frozen=True)
class Setup:
    """The work of a case at one size.

    Attributes:
        methods: functions that prepare the work, by name. If one raises, its method is skipped.
        elements: number of elements; times are per element.
        nbytes: bytes per element over the memory bus, by method.
        needs: other needs, by method.
        refresh: changes the inputs before a round, given its number; not timed.
        check: measures errors of the answers, after the timing.
    """

    methods: Mapping[str, Callable[[], Work]]
    elements: int
    nbytes: Mapping[str, float] = field(default_factory=dict)
    needs: Mapping[str, Needs] = field(default_factory=dict)
    refresh: Callable[[int], None] | None = None
    check: Callable[[], dict[str, float]] | None = None


class Measured(Protocol):
    """A row, or rows, of the table: `Case` or `benchmarks.memory.MemoryCase`."""

    @property
    def name(self) -> str:
        """Name of the work."""
        ...

    def measure(self, options: Options) -> list[dict[str, Any]]:
        """The rows."""
        ...


@dataclass(frozen=True)
class Case:
    """Methods timed in turns.

    Attributes:
        name: name of the work.
        make: returns the work, given the scale.
        floors: smallest accepted ratio of a peer's time to ours, by peer.
        note: note for readers of the table.
        goal: smallest accepted share of the bound of `benchmarks.limits`.
    """

    name: str
    make: Callable[[float], Setup]
    floors: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
    goal: float | None = None

    def measure(self, options: Options) -> list[dict[str, Any]]:
        """One row."""
        setup = self.make(options.scale)
        works, skipped = prepared(setup.methods)
        with Neighbours() as neighbours:
            seconds, failed = interleaved(
                works, options.rounds, refresh=setup.refresh, budget=options.budget
            )
        for name, error in failed.items():
            skip(skipped, name, error)
        values = {
            name: [1e9 * second / setup.elements for second in times]
            for name, times in seconds.items()
        }
        checks = setup.check() if setup.check and OURS in values else {}
        record = row(self.name, "ns per element", values, self.floors, skipped, self.note)
        nbytes = {name: size for name, size in setup.nbytes.items() if name in values}
        return [
            record
            | {
                "elements": setup.elements,
                "bytes_per_element": nbytes,
                "needs_per_element": {
                    name: asdict(setup.needs.get(name, Needs())) for name in nbytes
                },
                "goal": self.goal,
                "checks": checks,
                "forms": forms(works, values),
                "others_cpu": neighbours.share,
            }
        ]


def row(
    name: str,
    unit: str,
    values: Mapping[str, list[float]],
    floors: Mapping[str, float],
    skipped: Mapping[str, str],
    note: str = "",
    limit: float | None = None,
) -> dict[str, Any]:
    """A row of the results, less is better; ratios are of a peer to qmaps.

    Args:
        name: name of the work.
        unit: unit of the values.
        values: one value for each round, by method.
        floors: smallest accepted ratio, by peer.
        skipped: reasons for missing values, by method.
        note: note for readers.
        limit: largest accepted value of ours.
    """
    ours = values.get(OURS)
    peers = [peer for peer in values if peer != OURS]
    # A size may be zero, and has no ratio then.
    ratios = {peer: ratio(values[peer], ours) for peer in peers} if ours and min(ours) > 0 else {}
    limits = {} if limit is None or not ours else {"limit": limit, "kept": max(ours) <= limit}
    return limits | {
        "name": name,
        "unit": unit,
        "values": {method: quartiles(samples) for method, samples in values.items()},
        "samples": dict(values),
        "ratios": ratios,
        "floors": dict(floors),
        "reached": {
            peer: peer_ratio["ratio"] >= floors[peer]
            for peer, peer_ratio in ratios.items()
            if peer in floors
        },
        "skipped": dict(skipped),
        "note": note,
    }


def failure(case: Measured, error: Exception) -> dict[str, Any]:
    """The row of a failed case."""
    floors = getattr(case, "floors", {})
    return row(case.name, "", {}, floors, {OURS: reason(error)}) | {"failed": True}


def reason(error: BaseException) -> str:
    """The first line of a message, without the folders of this machine."""
    lines = str(error).strip().splitlines() or [""]
    text = re.sub(r"(?<![\w.])(?:/[\w.+@~-]+)+/", "", lines[0])
    text = text if len(text) <= 200 else text[:197] + "..."
    return text if isinstance(error, UnavailableError) else f"{type(error).__name__}: {text}"


def prepared(
    methods: Mapping[str, Callable[[], Work]],
) -> tuple[dict[str, Work], dict[str, str]]:
    """The prepared works, and the reasons for skipping the remaining ones."""
    skipped: dict[str, str] = {}
    works: dict[str, Work] = {}
    for name, prepare in methods.items():
        try:
            works[name] = prepare()
        except Exception as error:
            skip(skipped, name, error)
    return works, skipped


def forms(works: Mapping[str, Work], names: Iterable[str]) -> dict[str, str]:
    """Forms of the works, for those with a `form`."""
    names_of_forms = {name: str(getattr(works[name], "form", "")) for name in names}
    return {name: form for name, form in names_of_forms.items() if form}


def skip(skipped: dict[str, str], name: str, error: Exception) -> None:
    """Note why a method did not run; an error of our own is no reason to skip it."""
    if name == OURS and not isinstance(error, UnavailableError):
        raise error
    skipped[name] = reason(error)
