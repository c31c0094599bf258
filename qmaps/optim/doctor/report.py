"""A report on an installation, as text of 80 columns that can be pasted anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from textwrap import wrap
from typing import Any

from qmaps.engines.backends import Backend
from qmaps.optim.doctor.findings import PROBLEM, Finding
from qmaps.optim.doctor.machine import Processor
from qmaps.optim.doctor.speed import ELEMENTS, FLOAT, StepCost

WIDTH = 80
"""Characters of a line."""


@dataclass(frozen=True)
class Report:
    """Result of `doctor`; prints as text.

    Attributes:
        versions: of qmaps and of what it runs on, by name.
        backends: every engine, and why it does or does not run.
        processor: the processor, and how much of it is used.
        bandwidth: bytes per second by kind of transfer; empty if not measured.
        steps: the cost of a step of AdamW, by width of the states.
        matrix: the shape of the parameter whose step was measured; None if none was.
        parameters: number of parameters of the model that was asked about, or None.
        findings: what is wrong or worth knowing, problems first.
    """

    versions: Mapping[str, str]
    backends: Sequence[Backend]
    processor: Processor
    bandwidth: Mapping[str, float]
    steps: Sequence[StepCost]
    matrix: tuple[int, int] | None
    parameters: int | None
    findings: Sequence[Finding]

    @property
    def problems(self) -> int:
        """Number of findings that are problems."""
        return sum(each.level == PROBLEM for each in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """All of it as plain dicts, lists, strings and numbers."""
        return asdict(self)

    def __str__(self) -> str:
        sections = (
            ("Versions", _pairs(self.versions.items())),
            ("Back ends", _pairs((each.name, _state(each)) for each in self.backends)),
            ("Processor", _pairs(self._processor())),
            ("Memory bandwidth", self._bandwidth()),
            (self._title(), self._steps()),
        )
        texts = ["\n".join([title, *lines]) for title, lines in sections]
        return "\n\n".join(["\n".join(self._findings()), *texts])

    __repr__ = __str__

    def _findings(self) -> Iterator[str]:
        count = self.problems
        word = "no problems" if not count else "1 problem" if count == 1 else f"{count} problems"
        yield f"qmaps {self.versions['qmaps']}: {word} found"
        for each in self.findings:
            yield ""
            yield from _wrapped(f"{each.level}: ", each.message)
            yield from _wrapped("  ", each.repair)
            if each.command:
                yield f"    {each.command}"  # on one line, however long, to be copied

    def _processor(self) -> Iterator[tuple[str, str]]:
        found = self.processor
        yield "name", found.name
        yield "cores", f"{found.cores} that this process may use"
        yield "threads", f"{found.threads} of torch and of the native engine"
        yield "memory", f"{found.memory / 2**30:.1f} GiB" if found.memory else "unknown"
        if found.instructions is not None:
            also = f"; {' and '.join(found.others)} would also run" if found.others else ""
            yield "instructions", f"{found.instructions}{also}"

    def _bandwidth(self) -> Iterator[str]:
        if not self.bandwidth:
            yield "  not measured"
            return
        about = {"copy": "one array to another", "update": "a -= b, as a step reads and writes"}
        yield from _pairs(
            (kind, f"{speed / 1e9:.1f} GB/s, {about[kind]}")
            for kind, speed in self.bandwidth.items()
        )
        size = ELEMENTS * FLOAT // 2**20
        yield f"  arrays of {size} MiB; a byte counts when it is read and when it is written"

    def _title(self) -> str:
        if self.parameters is None:
            return "A step of AdamW on the CPU"
        return f"A step of AdamW on the CPU, for {self.parameters:,} parameters"

    def _steps(self) -> Iterator[str]:
        header = ["states", "ns/parameter", "memory alone", "bits/parameter"]
        if self.parameters is not None:
            header += ["step", "states take"]
        rows = [header]
        for each in self.steps:
            row = [each.states, _number(each.ns_per_parameter), _number(each.ns_of_memory)]
            row.append(f"{each.state_bits_per_parameter:.2f}")
            if self.parameters is not None:
                row += [_duration(each.milliseconds), _size(each.state_nbytes)]
            rows.append(row)
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
            yield "  " + "  ".join([row[0].ljust(widths[0]), *cells[1:]])
        if self.matrix is not None:
            height, width = self.matrix
            about = (
                f"The time of a step was measured on one matrix of {height} x {width}. Memory "
                "alone is the time to move a step's bytes at the speed of an update. Bits are "
                "those of the states, with their scales."
            )
            yield from _wrapped("  ", about)
        else:
            yield "  not measured"


def _state(backend: Backend) -> str:
    return f"{'runs' if backend.available else 'does not run'}: {backend.reason}"


def _pairs(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Names and what they are, in two columns."""
    found = list(rows)
    wide = max(len(name) for name, _ in found)
    for name, text in found:
        yield from _wrapped(f"  {name.ljust(wide)}  ", text)


def _wrapped(start: str, text: str) -> list[str]:
    """A text in lines of 80 columns; words stay whole."""
    return wrap(
        text,
        WIDTH,
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _duration(milliseconds: float | None) -> str:
    if milliseconds is None:
        return "-"
    return f"{milliseconds:,.1f} ms" if milliseconds < 1e4 else f"{milliseconds / 1e3:,.1f} s"


def _size(nbytes: int | None) -> str:
    if nbytes is None:
        return "-"
    return f"{nbytes / 2**20:,.1f} MiB" if nbytes < 2**30 else f"{nbytes / 2**30:,.2f} GiB"
