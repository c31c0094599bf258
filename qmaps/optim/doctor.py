"""The examination of an installation: versions, engines, problems, and the cost of a step."""

from __future__ import annotations

import math
import os
import platform
import re
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import torch

from qmaps.distribution import REPAIR, conflict
from qmaps.engines import native
from qmaps.engines.native import build
from qmaps.errors import BackendWarning
from qmaps.ops.backends import Backend, backend, backends
from qmaps.optim.adamw import AdamW
from qmaps.optim.rule import check_at_least_0, check_finite
from qmaps.storage import __version__
from qmaps.storage.units import bits

PROBLEM, NOTE = "problem", "note"
WIDTHS = {"32 bits": "32bit", "8 bits": "8bit", "4 bits": "4bit"}
"""The presets that are measured."""
SHAPE, SMALL = (2048, 4096), (512, 2048)
"""The parameter that is stepped, by the native engine and by the reference."""


@dataclass(frozen=True)
class Finding:
    """A remark of level "problem" or "note": a fact, advice, and a command to run or ``""``."""

    level: str
    message: str
    repair: str
    command: str = ""


@dataclass(frozen=True)
class StepCost:
    """The cost of a step of AdamW with states of one width.

    `ns_per_parameter` is the measured median, None if nothing was measured.
    """

    states: str
    bits_per_state_element: float
    state_bytes_per_parameter: float
    ns_per_parameter: float | None


@dataclass(frozen=True)
class Report:
    """The result of `doctor`; ``str`` is text of 80 columns.

    `processor` has its name, the cores that this process may use, the threads, and the instruction
    set of the native engine (None without it). Problems are the first of the `findings`.
    """

    versions: Mapping[str, str]
    backends: Sequence[Backend]
    processor: Mapping[str, Any]
    steps: Sequence[StepCost]
    findings: Sequence[Finding]

    @property
    def problems(self) -> int:
        """Number of problems."""
        return sum(finding.level == PROBLEM for finding in self.findings)

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    __repr__ = __str__


def doctor(*, seconds: float = 4.0) -> Report:
    """Examine this installation: what it has, what is wrong with it, and what a step costs here.

    Paste the printed report into the report of a problem. ``qmaps doctor`` prints it, too.

    Args:
        seconds: how long to measure steps of AdamW in 32, 8 and 4 bits on the CPU, about. 0
            measures nothing.

    Raises:
        BadValueError, BadTypeError: an argument is not allowed, or `QMAPS_BACKEND` is not.

    >>> report = doctor(seconds=0)
    >>> [(step.states, step.bits_per_state_element) for step in report.steps]
    [('32 bits', 32.0), ('8 bits', 8.125), ('4 bits', 4.25)]
    """
    check_finite("seconds", seconds)
    check_at_least_0({"seconds": seconds}, "seconds")
    shape = SHAPE if backend() == "native" else SMALL  # raises if QMAPS_BACKEND is wrong
    engines, cpu = backends(), processor()
    times = measured(shape, seconds) if seconds else {}
    remarks = sorted(findings(engines, cpu), key=lambda finding: finding.level != PROBLEM)
    return Report(versions(), engines, cpu, costs(times), remarks)


def versions() -> dict[str, str]:
    """Versions of the software that results depend on, by name."""
    compiler = "none" if native.core is None else getattr(native.core, "compiler", "unknown")
    packages = {"qmaps": __version__, "torch": str(torch.__version__), "numpy": np.__version__}
    system = {"Python": platform.python_version(), "system": platform.platform()}
    return {**packages, **system, "compiler": compiler}


def processor(root: Path = Path("/")) -> dict[str, Any]:
    """The processor of this machine, as `Report` has it."""
    texts = {"proc/cpuinfo": "", "sys/fs/cgroup/cpu.max": ""}
    for path in texts:
        with suppress(OSError):
            texts[path] = (root / path).read_text(encoding="utf-8")
    model = re.search(r"^model name\s*:\s*(.+)$", texts["proc/cpuinfo"], re.MULTILINE)
    affine = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if affine else os.cpu_count() or 1
    if quota := re.fullmatch(r"(\d+) (\d+)\s*", texts["sys/fs/cgroup/cpu.max"]):  # of a container
        cores = min(cores, max(1, math.ceil(int(quota[1]) / int(quota[2]))))
    return {
        "name": model[1].strip() if model else platform.processor() or platform.machine(),
        "cores": cores,
        "threads": torch.get_num_threads(),
        "instructions": None if native.core is None else str(native.isa()),
    }


def findings(engines: Sequence[Backend], cpu: Mapping[str, Any]) -> Iterator[Finding]:
    """Remarks on the engines, threads and environment variables."""
    if native.core is None:
        message = (
            "The native engine is missing, so CPU tensors run on plain PyTorch: with the same "
            f"results, but {build.SLOWER}. Reason: {native.reason.rpartition(';')[0]}."
        )
        yield Finding(PROBLEM, message, "Install a C++20 compiler and run:", build.command())
    if sentence := conflict():
        yield Finding(PROBLEM, f"{sentence[0].upper()}{sentence[1:]}.", f"{REPAIR}.")
    threads, count, requested = cpu["threads"], cpu["cores"], os.environ.get("OMP_NUM_THREADS")
    setting = f" (OMP_NUM_THREADS={requested})" if requested else ""
    on_cores, repair = f"{count} core{'s' * (count > 1)}{setting}", f"Set OMP_NUM_THREADS={count}"
    if threads > count:
        message = f"{threads} threads share {on_cores}; they wait for each other."
        yield Finding(PROBLEM, message, f"{repair}.")
    elif threads < (count if requested else count // 2):  # torch uses one thread of two per core
        message = f"{threads} thread{' is' if threads == 1 else 's are'} used, on {on_cores}."
        yield Finding(NOTE, message, f"{repair}, unless other processes need the other cores.")
    cuda = next(engine for engine in engines if engine.name == "cuda")
    if not cuda.available:
        repair = "Nothing to do without an NVIDIA GPU. With one, install a CUDA build of torch."
        yield Finding(NOTE, f"There is no CUDA engine: {cuda.reason}.", repair)


def seconds_of(call: Callable[[], object], seconds: float) -> float:
    """The median time of a call, measured for about `seconds`."""
    # torch.utils.benchmark imports setuptools, which torch up to 2.9 does not always bring.
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measured(shape: tuple[int, int], seconds: float) -> dict[str, float]:
    """Nanoseconds per parameter of a step by width."""
    times = {}
    for width, preset in WIDTHS.items():
        parameter = torch.nn.Parameter(torch.full(shape, 0.1, dtype=torch.float32))
        # Gradients far below the parameters, as in training: no value runs away.
        draw = torch.Generator().manual_seed(0)
        parameter.grad = torch.randn(shape, generator=draw, dtype=torch.float32) * 1e-3
        optimizer = AdamW([parameter], state_quantizers=preset)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BackendWarning)  # a finding says it
            optimizer.step()  # makes the states
            median = seconds_of(optimizer.step, seconds / len(WIDTHS))
        times[width] = 1e9 * median / parameter.numel()
    return times


def costs(times: Mapping[str, float]) -> list[StepCost]:
    """The cost of a step by width, from what was `measured`."""
    meta = torch.nn.Parameter(torch.empty(SHAPE, dtype=torch.float32, device="meta"))
    memory = {w: AdamW([meta], state_quantizers=p).memory() for w, p in WIDTHS.items()}
    return [
        StepCost(w, m.bits_per_state_element, m.bytes_per_parameter, times.get(w))
        for w, m in memory.items()
    ]


def _lines(report: Report) -> Iterator[str]:
    """The lines of a report, of at most 80 characters."""
    count, cpu = report.problems or "no", report.processor
    yield f"qmaps {report.versions['qmaps']}: {count} problem{'s' * (count != 1)} found"
    for finding in report.findings:
        yield "\n" + _wrapped(f"{finding.level}: ", finding.message)
        yield _wrapped("  ", finding.repair)
        if finding.command:
            yield f"    {finding.command}"  # on one line, however long, to be copied
    runs = {True: "runs", False: "does not run"}
    tables: dict[str, Mapping[str, str]] = {
        "Versions": report.versions,
        "Back ends": {e.name: f"{runs[e.available]}: {e.reason}" for e in report.backends},
        "Processor": {
            "name": cpu["name"],
            "cores": f"{cpu['cores']} that this process may use",
            "threads": f"{cpu['threads']} of torch and of the native engine",
            "instructions": cpu["instructions"] or "none",
        },
        "A step of AdamW on the CPU": dict(map(_cost, report.steps)),
    }
    for title, table in tables.items():
        yield "\n" + _wrapped("", title)
        for label, text in table.items():
            yield _wrapped(f"  {label:{max(map(len, table))}}  ", text)


def _cost(step: StepCost) -> tuple[str, str]:
    """The label of a step, and its line."""
    ns = "" if step.ns_per_parameter is None else f", {step.ns_per_parameter:.2f} ns"
    of_states = f"{bits(step.bits_per_state_element)} bits per state element"
    return step.states, f"{of_states}; per parameter {step.state_bytes_per_parameter:.2f} bytes{ns}"


def _wrapped(start: str, text: str) -> str:
    """A text in lines of 80 columns, indented below `start`; words stay whole."""
    return fill(
        text,
        80,
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_long_words=False,
        break_on_hyphens=False,
    )
