"""The examination of an installation: versions, engines, problems, and the cost of a step."""

from __future__ import annotations

import math
import os
import platform
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from textwrap import wrap
from typing import Any

import torch

from qmaps.algebra.quantizer import quantizer
from qmaps.engines import native
from qmaps.engines.native import build
from qmaps.errors import BackendWarning, BadTypeError, BadValueError, shown
from qmaps.ops.backends import Backend, backend, backends
from qmaps.optim.adamw import AdamW
from qmaps.optim.presets import PRESETS

PROBLEM, NOTE = "problem", "note"
WIDTHS = {"32 bits": "32bit", "8 bits": "8bit", "4 bits": "4bit"}
"""The presets that are measured."""
ELEMENTS = 1 << 25
"""Elements of each float32 array whose transfer is timed: more than most caches hold."""
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

    `specs` has the quantizer of each state, or None. `ns_per_parameter` is the measured median and
    `ns_of_memory` the time to move a step's bytes; `milliseconds` and `state_nbytes` are those of
    the model that was asked about. Numbers that are not known are None.
    """

    states: str
    specs: Mapping[str, str | None]
    ns_per_parameter: float | None
    ns_of_memory: float | None
    state_bits_per_parameter: float
    milliseconds: float | None
    state_nbytes: int | None


@dataclass(frozen=True)
class Report:
    """The result of `doctor`; ``str`` is text of 80 columns.

    `processor` has its name, the cores that this process may use, the threads, bytes of memory (0
    if unknown), and the instruction sets that the native engine uses (None without it) and could
    use. `bandwidth` is in bytes per second, `matrix` the shape of the parameter that was stepped.
    Both are empty or None if nothing was measured. Problems are the first of the `findings`.
    """

    versions: Mapping[str, str]
    backends: Sequence[Backend]
    processor: Mapping[str, Any]
    bandwidth: Mapping[str, float]
    steps: Sequence[StepCost]
    matrix: tuple[int, int] | None
    parameters: int | None
    findings: Sequence[Finding]

    @property
    def problems(self) -> int:
        """Number of problems."""
        return sum(finding.level == PROBLEM for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """The report as plain dicts, lists, strings and numbers."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    __repr__ = __str__


def doctor(parameters: int | None = None, *, seconds: float = 4.0) -> Report:
    """Examine this installation: what it has, what is wrong, and what a step costs here.

    Paste the printed report into the report of a problem. ``qmaps doctor`` prints it, too.

    Args:
        parameters: number of parameters of a model; the report then says how long its step takes
            and what its states take, as if all were in large tensors.
        seconds: how long to measure, about: half of it memory bandwidth, half steps of AdamW in
            32, 8 and 4 bits on the CPU. 0 measures nothing.

    Raises:
        BadValueError, BadTypeError: an argument is not allowed, or `QMAPS_BACKEND` is not.

    >>> report = doctor(7_000_000_000, seconds=0)
    >>> [(step.states, step.state_nbytes) for step in report.steps]
    [('32 bits', 56000000000), ('8 bits', 14218750000), ('4 bits', 7437500000)]
    """
    if parameters is not None:
        if isinstance(parameters, bool) or not isinstance(parameters, int):
            raise BadTypeError(f"parameters={shown(parameters)} must be an int or None")
        if not 1 <= parameters <= 2**53:
            raise BadValueError(f"parameters={shown(parameters)} must be an int from 1 to 2**53")
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise BadTypeError(f"seconds={shown(seconds)} must be a number")
    if not (math.isfinite(seconds) and seconds >= 0):
        raise BadValueError(f"seconds={shown(seconds)} must be at least 0 and finite")
    fast = backend() == "native"  # raises if QMAPS_BACKEND is wrong
    cpu, engines = processor(), backends()
    speeds = bandwidth(seconds / 2) if seconds else {}
    shape = (SHAPE if fast else SMALL) if seconds else None
    steps = costs(step_times(shape, seconds / 2) if shape else {}, speeds.get("update"), parameters)
    remarks = findings(engines, cpu)
    return Report(versions(), engines, cpu, speeds, steps, shape, parameters, remarks)


def versions() -> dict[str, str]:
    """Versions of the software that results depend on, by name."""
    packages = dict.fromkeys(("qmaps", "torch", "numpy"), "unknown")
    for package in packages:
        with suppress(PackageNotFoundError):  # a source tree that was never installed
            packages[package] = version(package)
    compiler = "none" if native.core is None else getattr(native.core, "compiler", "unknown")
    system = {"Python": platform.python_version(), "system": platform.platform()}
    return {**packages, **system, "compiler": compiler}


def processor() -> dict[str, Any]:
    """The processor of this machine, as `Report` has it."""
    memory, used = 0, None if native.core is None else str(native.isa())
    with suppress(AttributeError, OSError, ValueError):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "name": name(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "memory": memory,
        "instructions": used,
        "others": [isa for isa in native.isas() if isa != used],
    }


def name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name as the system gives it."""
    match = re.search(r"^model name\s*:\s*(.+)$", _text(cpuinfo), re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine()


def cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Number of cores that this process may use: its affinity, and the limit of its container."""
    affine = hasattr(os, "sched_getaffinity")
    count = len(os.sched_getaffinity(0)) if affine else os.cpu_count() or 1
    limit = re.fullmatch(r"(\d+) (\d+)\s*", _text(quota))
    return min(count, max(1, math.ceil(int(limit[1]) / int(limit[2])))) if limit else count


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(encoding="utf-8")
    return ""


def findings(engines: Sequence[Backend], cpu: Mapping[str, Any]) -> list[Finding]:
    """Remarks on the engines, threads and environment variables; problems first."""
    problems: list[tuple[str, ...]] = []
    notes: list[tuple[str, ...]] = []
    if native.core is None:
        message = (
            "The native engine is missing, so CPU tensors run on plain PyTorch: with the same "
            f"results, but {build.SLOWER}. Reason: {native.reason.rpartition(';')[0]}."
        )
        problems.append((message, "Install a C++20 compiler and run:", build.command()))
    elif (source := build.newer_source()) is not None:
        message = f"{source.as_posix()} was changed after the native engine was built."
        problems.append((message, "Build it again:", build.command()))
    threads, count, requested = cpu["threads"], cpu["cores"], os.environ.get("OMP_NUM_THREADS")
    setting = f" (OMP_NUM_THREADS={requested})" if requested else ""
    on_cores = f"{count} core{'s' * (count > 1)}{setting}"
    if threads > count:
        message = f"{threads} threads share {on_cores}; they wait for each other."
        problems.append((message, f"Set OMP_NUM_THREADS={count}."))
    elif threads < (count if requested else count // 2):  # torch uses one thread of two per core
        message = f"{threads} thread{' is' if threads == 1 else 's are'} used, on {on_cores}."
        repair = f"Set OMP_NUM_THREADS={count}, unless other processes need the other cores."
        notes.append((message, repair))
    if os.environ.get("QMAPS_BACKEND") == "reference":
        message = "QMAPS_BACKEND=reference turns off the native and CUDA engines."
        notes.append((message, "Unset QMAPS_BACKEND for the fastest engine."))
    isa, best = cpu["instructions"], native.isas()[:1]
    if isa is not None and best != [isa]:
        message = f"QMAPS_ISA={isa} keeps the native engine from using {best[0]}."
        notes.append((message, "Unset QMAPS_ISA for the fastest instruction set."))
    cuda = next(engine for engine in engines if engine.name == "cuda")
    if not cuda.available:
        repair = "Nothing to do without an NVIDIA GPU. With one, install a CUDA build of torch."
        notes.append((f"There is no CUDA engine: {cuda.reason}.", repair))
    return [Finding(PROBLEM, *remark) for remark in problems] + [Finding(NOTE, *n) for n in notes]


def seconds_of(call: Callable[[], object], seconds: float) -> float:
    """The median time of a call, measured for about `seconds`."""
    from torch.utils.benchmark import Timer  # slow to import

    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    return float(timer.blocked_autorange(min_run_time=seconds).median)


def bandwidth(seconds: float) -> dict[str, float]:
    """Bytes per second that "copy" (a = b) and "update" (a -= b) read and write."""
    a, b = torch.ones((2, ELEMENTS), dtype=torch.float32)
    return {
        "copy": 2 * b.nbytes / seconds_of(lambda: a.copy_(b), seconds / 2),
        "update": 3 * b.nbytes / seconds_of(lambda: a.sub_(b), seconds / 2),
    }


def step_times(shape: tuple[int, int], seconds: float) -> dict[str, float]:
    """Nanoseconds per parameter of a step of AdamW, by width of the states."""
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


def costs(
    times: Mapping[str, float], bytes_per_second: float | None, parameters: int | None
) -> list[StepCost]:
    """The cost of a step by width, from `step_times` and the bandwidth of an update."""
    rows = []
    for width, preset in WIDTHS.items():
        specs, numel, ns = AdamW.preset_specs(PRESETS[preset]), math.prod(SHAPE), times.get(width)

        def nbytes(count: int, specs: Mapping[str, str | None] = specs) -> int:
            return sum(quantizer(q).nbytes((count,)) if q else 4 * count for q in specs.values())

        bits = 8 * nbytes(numel) / numel
        # Parameter and gradient are read, the parameter is written; states are read and written.
        of_memory = 1e9 * (12 + 2 * bits / 8) / bytes_per_second if bytes_per_second else None
        milliseconds = ns * parameters / 1e6 if ns is not None and parameters else None
        of_states = nbytes(parameters) if parameters else None
        rows.append(StepCost(width, specs, ns, of_memory, bits, milliseconds, of_states))
    return rows


def _lines(report: Report) -> Iterator[str]:
    """The lines of a report, of at most 80 characters."""
    count = report.problems or "no"
    yield f"qmaps {report.versions['qmaps']}: {count} problem{'s' * (count != 1)} found"
    for finding in report.findings:
        yield from ("", *_wrapped(f"{finding.level}: ", finding.message))
        yield from _wrapped("  ", finding.repair)
        if finding.command:
            yield f"    {finding.command}"  # on one line, however long, to be copied
    cpu = report.processor
    also = f"; {' and '.join(cpu['others'])} would also run" if cpu["others"] else ""
    processor = {
        "name": cpu["name"],
        "cores": f"{cpu['cores']} that this process may use",
        "threads": f"{cpu['threads']} of torch and of the native engine",
        "memory": f"{cpu['memory'] / 2**30:.1f} GiB" if cpu["memory"] else "unknown",
        "instructions": f"{cpu['instructions'] or 'none'}{also}",
    }
    runs = {True: "runs", False: "does not run"}
    engines = {e.name: f"{runs[e.available]}: {e.reason}" for e in report.backends}
    tables = {"Versions": report.versions, "Back ends": engines, "Processor": processor}
    for title, table in tables.items():
        widest = max(map(len, table))
        yield from ("", title)
        for label, text in table.items():
            yield from _wrapped(f"  {label:{widest}}  ", text)
    yield from ("", "Memory bandwidth")
    about = {"copy": "one array to another", "update": "a -= b, as a step reads and writes"}
    for kind, speed in report.bandwidth.items():
        yield f"  {kind:6}  {speed / 1e9:.1f} GB/s, {about[kind]}"
    counted = "a byte counts when it is read and when it is written"
    size = f"arrays of {ELEMENTS // 2**18} MiB; {counted}"
    yield f"  {size if report.bandwidth else 'not measured'}"
    model = f", for {report.parameters:,} parameters" if report.parameters else ""
    yield from ("", f"A step of AdamW on the CPU{model}")
    header = ("states", "ns/parameter", "memory alone", "bits/parameter", "step", "states take")
    for states, ns, memory, bits, step, nbytes in [header, *map(_cells, report.steps)]:
        line = f"  {states:7}  {ns:>12}  {memory:>12}  {bits:>14}"
        yield f"{line}  {step:>11}  {nbytes:>12}" if report.parameters else line
    if report.matrix is None:
        yield "  not measured"
        return
    text = (
        f"The time of a step was measured on one matrix of {' x '.join(map(str, report.matrix))}. "
        "Memory alone is the time to move a step's bytes at the speed of an update. Bits are those "
        "of the states, with their scales."
    )
    yield from _wrapped("  ", text)


def _cells(cost: StepCost) -> tuple[str, ...]:
    ms, nbytes = cost.milliseconds, cost.state_nbytes or 0
    times = (cost.ns_per_parameter, cost.ns_of_memory)
    return (
        cost.states,
        *("-" if time is None else f"{time:.2f}" for time in times),
        f"{cost.state_bits_per_parameter:.2f}",
        "-" if ms is None else f"{ms:,.1f} ms" if ms < 1e4 else f"{ms / 1e3:,.1f} s",
        f"{nbytes / 2**20:,.1f} MiB" if nbytes < 2**30 else f"{nbytes / 2**30:,.2f} GiB",
    )


def _wrapped(start: str, text: str) -> list[str]:
    """A text in lines of 80 columns; words stay whole."""
    lines = wrap(text, 80 - len(start), break_long_words=False, break_on_hyphens=False)
    return [(" " * len(start) if number else start) + line for number, line in enumerate(lines)]
