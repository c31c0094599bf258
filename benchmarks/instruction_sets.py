"""Steps and single operations with every instruction set of the processor, in turns.

``python -m benchmarks.instruction_sets`` steps one parameter with AdamW in 8 and 4 bits, and
quantizes and dequantizes it, with each instruction set in its turn on one thread, beside torch's
fused AdamW: once with torch's default, and once with AVX2 (``ATEN_CPU_CAPABILITY=avx2``), each in
its own process. Times are processor times of the thread, to reduce the effect of other programs.
It writes reports/bench/instruction-sets.md.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

import qmaps
from benchmarks import machine
from benchmarks.command import count, one_line_errors
from benchmarks.data import normal
from benchmarks.markdown import markdown
from benchmarks.timing import Work, interleaved
from qmaps.engines import native
from qmaps.optim import AdamW
from reproduction.report_file import write_report

FUSED = "torch fused"
SIZES = (1 << 18, 1 << 24)
"""Numbers of elements: within the caches, and beyond them."""
SPECS = (
    "B256/DE-sym@8s",
    "B256/geometric@8u+qsr",
    "B64xbf16/mu-law10:linear0@4s+qsr",
    "B64xbf16/geometric@4u+qsr",
    "B128/DE@4s",
    "B256/DE@8s+sr",
)
PAIRS = ("8bit", "4bit", "B128/DE@4s+sr + B128/linear@4u+sr")
HELD = "ATEN_CPU_CAPABILITY"


def thread_clock(work: Work) -> float:
    """Processor seconds of this thread in one call."""
    start = time.thread_time()
    work()
    return time.thread_time() - start


def with_set(isa: str, work: Work) -> Work:
    """The same work with an instruction set."""

    def run() -> None:
        os.environ["QMAPS_ISA"] = isa
        work()

    return run


def works(numel: int) -> dict[str, Work]:
    """Timed works, by name: the operation, then the instruction set."""
    p = torch.nn.Parameter(normal((numel,)))
    p.grad = normal((numel,), seed=1) / 64
    made: dict[str, Work] = {FUSED: torch.optim.AdamW([p], lr=1e-6, fused=True).step}
    for pair in PAIRS:
        for isa in native.isas():
            step = AdamW([p], lr=1e-6, state_quantizers=pair).step
            made[f"AdamW {pair}|{isa}"] = with_set(isa, step)
    key = qmaps.RoundingKey(seed=1, step=3)
    out = torch.empty(numel)
    for spec in SPECS:
        q = qmaps.quantizer(spec)
        x = p.grad if q.map.signed else p.grad.abs()
        encode = functools.partial(q.quantize_unchecked, x, key=key)
        decode = functools.partial(q.quantize(x, key=key).dequantize, out=out)
        for isa in native.isas():
            made[f"quantize {spec}|{isa}"] = with_set(isa, encode)
            made[f"dequantize {spec}|{isa}"] = with_set(isa, decode)
    return made


def measure(rounds: int) -> dict[str, dict[str, list[float]]]:
    """Nanoseconds an element in every round, by size and name."""
    torch.set_num_threads(1)
    results = {}
    for numel in SIZES:
        counted = rounds if numel == SIZES[0] else max(2, rounds // 4)
        seconds, failed = interleaved(works(numel), counted, clock=thread_clock)
        for error in failed.values():
            raise error
        results[str(numel)] = {
            name: [1e9 * second / numel for second in times] for name, times in seconds.items()
        }
    return results


def in_process(rounds: int, capability: str) -> dict[str, dict[str, list[float]]]:
    """`measure` in a process of its own, where torch is held to a capability, or not."""
    held = {HELD: capability} if capability else {}
    free = {name: value for name, value in os.environ.items() if name not in (HELD, "QMAPS_ISA")}
    command = [sys.executable, "-m", "benchmarks.instruction_sets", "--json"]
    done = subprocess.run(
        [*command, "--rounds", str(rounds)],
        env={**free, **held, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    result: dict[str, dict[str, list[float]]] = json.loads(done.stdout)
    return result


def rows(times: dict[str, list[float]], isas: Sequence[str]) -> list[tuple[str, ...]]:
    """Medians of each operation by instruction set, and how many times torch's step they take."""
    torch_step = median(times[FUSED])
    table_rows: list[tuple[str, ...]] = [(FUSED, *[""] * len(isas), f"{torch_step:.2f}")]
    for name in dict.fromkeys(name.split("|")[0] for name in times if name != FUSED):
        medians = [median(times[f"{name}|{isa}"]) for isa in isas]
        cells = [f"{ns:.2f} ({ns / medians[0]:.2f})" for ns in medians]
        steps = name.startswith("AdamW")
        ratios = " / ".join(f"{ns / torch_step:.1f}" for ns in medians) if steps else ""
        table_rows.append((name, *cells, ratios))
    return table_rows


@one_line_errors
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.instruction_sets")
    parser.add_argument("--rounds", type=count, default=41, help="that count (default 41)")
    parser.add_argument("--json", action="store_true", help="print the times of this process")
    options = parser.parse_args(argv)
    if options.json:
        print(json.dumps(measure(options.rounds)))
        return 0
    info: dict[str, Any] = machine.about(
        sys.argv[1:] if argv is None else argv, "benchmarks.instruction_sets"
    )
    isas = native.isas()
    lines = [
        "# Instruction sets",
        "",
        f"`{info['command']}`",
        "",
        f"{info['date']}, {info['machine']['processor']}, one thread, torch "
        f"{torch.__version__}. Nanoseconds an element, medians of turns in one process; in "
        f"brackets how many times those of {isas[0]}. The last column has torch's step, and how "
        f"many times as long as it our steps take with {', '.join(isas)}.",
    ]
    for held, name in (("avx2", "torch held to AVX2"), ("", "torch as it comes")):
        for numel, times in in_process(options.rounds, held).items():
            lines += ["", f"## {int(numel):,} elements, {name}", ""]
            lines += markdown(("operation", *isas, "beside torch's step"), rows(times, isas))
    path = Path("reports/bench/instruction-sets.md")
    write_report(path, "\n".join(lines) + "\n")
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
