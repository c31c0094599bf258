"""Kernels run on the processor, with counts of executed lines and of bank conflicts."""

from __future__ import annotations

import ctypes
import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from qmaps.cuda.compiler import Entry
from qmaps.cuda.layout import THREADS
from qmaps.cuda.source import source_of
from tests.cuda.emulation import CXX, INCLUDE, EmulatedEngine

FLAGS = (
    *("-std=c++20", "-O0", "-g", "-fPIC", "-w", "-ffp-contract=off", "-fno-math-errno"),
    *("-fno-strict-aliasing", "-pthread"),
)
READS = Path(__file__).with_name("reads.cpp")
Line = tuple[str, int]
"""The name of a source file and a line."""


@dataclass
class Counts:
    """Counts of one kernel.

    Attributes:
        lines: number of executions of each line, over all threads.
        turns: mean number of turns of a warp's read of shared memory, by line.
    """

    lines: dict[Line, int] = field(default_factory=dict)
    turns: dict[Line, float] = field(default_factory=dict)


class CountingEngine(EmulatedEngine):
    """Emulates kernels and counts the work of steps.

    Attributes:
        steps: the last arguments of each step: number of blocks and argument.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.steps: dict[Entry, tuple[int, np.ndarray]] = {}
        self.counts: dict[Entry, Counts] = {}

    def launch(self, entry: Entry, blocks: int, argument: np.ndarray) -> None:
        """Run a kernel; a step also counts."""
        if not entry.name.startswith(("step<", "step_maxima<")):
            super().launch(entry, blocks, argument)
            return
        self.launched.append(entry.name)
        folder = self.folder / f"counts{len(self.counts)}"
        folder.mkdir(exist_ok=True)
        library = _build(entry, folder)
        argument = np.ascontiguousarray(argument)
        library.run(ctypes.c_int(blocks), ctypes.c_void_p(argument.ctypes.data))
        library.report(str(folder / "reads").encode())
        self.counts[entry] = Counts(_lines(folder), _turns(folder))


def _build(entry: Entry, folder: Path) -> Any:
    source = (
        f'#include "block.hpp"\n{source_of(entry.file)}'
        'extern "C" void __gcov_dump();\n'
        'extern "C" unsigned emulated_thread() { return threadIdx.x; }\n'
        'extern "C" void run(int blocks, const void* argument) {\n'
        f"    emulation::launch({entry.name}, blocks, {THREADS}, argument, true);\n"
        "    __gcov_dump();\n}\n"
    )
    (folder / "kernel.cpp").write_text(source)
    _run(CXX, *FLAGS, *INCLUDE, "--coverage", "-fsanitize=thread", "-c", "kernel.cpp", at=folder)
    _run(CXX, *FLAGS, "-O2", "-c", READS, at=folder)
    _run(CXX, *FLAGS, "--coverage", "-shared", "kernel.o", "reads.o", "-o", "kernel.so", at=folder)
    library = ctypes.CDLL(str(folder / "kernel.so"))
    rows = [row.split() for row in _run("nm", "-S", "kernel.so", at=folder).splitlines()]
    symbols = {row[-1]: row for row in rows if len(row) == 4}
    shared = next(row for name, row in symbols.items() if name.endswith("E9codebooks"))
    base = ctypes.cast(library.report, ctypes.c_void_p).value - int(symbols["report"][0], 16)
    begin = base + int(shared[0], 16)
    library.watch(ctypes.c_size_t(begin), ctypes.c_size_t(begin + int(shared[1], 16)))
    (folder / "base").write_text(f"{base:x}")
    return library


def _lines(folder: Path) -> dict[Line, int]:
    report = json.loads(_run("gcov", "--json-format", "--stdout", "kernel.gcda", at=folder))
    counts: dict[Line, int] = {}
    for file in report["files"]:
        for line in file["lines"]:
            place = Path(file["file"]).name, line["line_number"]
            counts[place] = max(counts.get(place, 0), line["count"])
    return counts


def _turns(folder: Path) -> dict[Line, float]:
    base = int((folder / "base").read_text(), 16)
    rows = [row.split() for row in (folder / "reads").read_text().splitlines()]
    places = [f"{int(place, 16) - base:x}" for place, _, _ in rows]
    lines = _run("addr2line", "-e", "kernel.so", *places, at=folder).splitlines() if rows else []
    sums: dict[Line, tuple[int, int]] = {}
    for line, (_, times, turns) in zip(lines, rows, strict=True):
        path, number = line.split(" ")[0].rsplit(":", 1)
        place = Path(path).name, int(number)
        before = sums.get(place, (0, 0))
        sums[place] = before[0] + int(times), before[1] + int(turns)
    return {place: turns / times for place, (times, turns) in sums.items()}


def _run(*command: object, at: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=at, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]}: {done.stderr[-2000:]}")
    return done.stdout
