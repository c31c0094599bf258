"""Cases: contenders that do the same work, and their floors."""

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
    """A contender cannot run here; the message says why."""


@dataclass(frozen=True)
class Options:
    """Options of a run.

    Attributes:
        scale: size of the work; 1 is full.
        rounds: counted rounds.
        budget: seconds that one contender of a case may take before it stops early.
    """

    scale: float = 1.0
    rounds: int = 7
    budget: float = 10.0


@dataclass(frozen=True)
class Setup:
    """The work of a case at one size.

    Attributes:
        contenders: by name, what prepares its work. One that raises is reported as skipped.
        elements: times are given per element.
        nbytes: by contender, bytes per element that must cross the memory bus.
        needs: by contender, what else it needs.
        refresh: given the round's number, changes the inputs; not timed.
        check: measures whether the answers are right, after the timing.
    """

    contenders: Mapping[str, Callable[[], Work]]
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
    """Contenders timed in turns.

    Attributes:
        name: what is done.
        make: given the scale, the work.
        floors: by peer, the least ratio of its time to ours that is asked for.
        note: what a reader of the table has to know.
        goal: the least share of what bounds it (`benchmarks.limits`) that is asked for.
    """

    name: str
    make: Callable[[float], Setup]
    floors: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
    goal: float | None = None

    def measure(self, options: Options) -> list[dict[str, Any]]:
        """One row."""
        setup = self.make(options.scale)
        works, skipped = prepared(setup.contenders)
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
        name: what is done.
        unit: of the values.
        values: by contender, one for each round.
        floors: by peer, the least ratio that is asked for.
        skipped: by contender, why it has no values.
        note: what a reader has to know.
        limit: the most that is asked of our own value.
    """
    ours = values.get(OURS)
    peers = [peer for peer in values if peer != OURS]
    # A size may be zero, and has no ratio then.
    ratios = {peer: ratio(values[peer], ours) for peer in peers} if ours and min(ours) > 0 else {}
    limits = {} if limit is None or not ours else {"limit": limit, "kept": max(ours) <= limit}
    return limits | {
        "name": name,
        "unit": unit,
        "values": {contender: quartiles(samples) for contender, samples in values.items()},
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
    """The row of a case that could not be measured at all."""
    floors = getattr(case, "floors", {})
    return row(case.name, "", {}, floors, {OURS: reason(error)}) | {"failed": True}


def reason(error: BaseException) -> str:
    """The first line of a message, without the folders of this machine."""
    lines = str(error).strip().splitlines() or [""]
    text = re.sub(r"(?<![\w.])(?:/[\w.+@~-]+)+/", "", lines[0])
    text = text if len(text) <= 200 else text[:197] + "..."
    return text if isinstance(error, UnavailableError) else f"{type(error).__name__}: {text}"


def prepared(
    contenders: Mapping[str, Callable[[], Work]],
) -> tuple[dict[str, Work], dict[str, str]]:
    """The works that can be done here, and why the others cannot."""
    skipped: dict[str, str] = {}
    works: dict[str, Work] = {}
    for name, prepare in contenders.items():
        try:
            works[name] = prepare()
        except Exception as error:
            skip(skipped, name, error)
    return works, skipped


def forms(works: Mapping[str, Work], names: Iterable[str]) -> dict[str, str]:
    """Forms of the works that name one."""
    names_of_forms = {name: str(getattr(works[name], "form", "")) for name in names}
    return {name: form for name, form in names_of_forms.items() if form}


def skip(skipped: dict[str, str], name: str, error: Exception) -> None:
    """Note why a contender did not run; an error of our own is no reason to skip it."""
    if name == OURS and not isinstance(error, UnavailableError):
        raise error
    skipped[name] = reason(error)
