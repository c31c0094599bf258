"""How a step of AdamW scales with cores: measured here, and modelled for more of them.

``python -m benchmarks.cores`` measures the arithmetic of one core, with everything in its cache;
memory bandwidth; and steps on large matrices with 1, 2, 4, ... threads. The model takes the longer
of the two: arithmetic, divided by the cores, and bytes at the processor's bandwidth. It is compared
with what was measured and written for larger processors to reports/bench/cores.{csv,md}.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from benchmarks import machine
from benchmarks.bandwidth import bandwidth
from benchmarks.cases.adamw import EIGHT, FUSED, PRESET, TORCH, ours, traffic
from benchmarks.command import count, one_line_errors, positive
from benchmarks.data import matrices, new_gradients, parameters
from benchmarks.markdown import markdown
from benchmarks.timing import Work, interleaved
from qmaps.storage.files import output_folder, replacing, write_text

Make = Callable[[list[Tensor]], Work]
STEPS: dict[str, tuple[Make, float]] = {
    "32 bits, torch fused": (
        lambda params: torch.optim.AdamW(params, **TORCH[FUSED]).step,
        traffic((None, None)),
    ),
    "8 bits": (lambda params: ours(params, EIGHT).step, traffic(EIGHT)),
    "4 bits": (lambda params: ours(params, PRESET).step, traffic(PRESET)),
}
"""What makes each step, and the bytes that it moves for each parameter."""
BASE = next(iter(STEPS))
SMALL = 1 << 17, 3 << 17
"""Sizes whose difference in time is arithmetic alone: what a step costs besides is the same."""


@dataclass(frozen=True)
class Processor:
    """One that is not at hand.

    Attributes:
        name: for the table.
        cores: of one socket.
        gb_per_s: its peak memory bandwidth, channels times transfers times 8 bytes.
    """

    name: str
    cores: int
    gb_per_s: float


PROCESSORS = (
    Processor("desktop, 2 channels of DDR5-5600", 16, 89.6),
    Processor("server, 8 channels of DDR4-3200", 32, 204.8),
    Processor("server, 12 channels of DDR5-4800", 64, 460.8),
    Processor("server, 12 channels of DDR5-6400", 128, 614.4),
)
REACHED = 0.8
"""The share of a peak bandwidth that programs reach, about."""


def nanoseconds(arithmetic: float, nbytes: float, cores: int, bytes_per_second: float) -> float:
    """What a step takes per parameter by the model.

    Args:
        arithmetic: nanoseconds per parameter on one core with all in its cache.
        nbytes: bytes per parameter to and from memory.
        cores: that work.
        bytes_per_second: memory bandwidth of them together.
    """
    return max(arithmetic / cores, 1e9 * nbytes / bytes_per_second)


@contextmanager
def threads(number: int) -> Iterator[None]:
    """So many threads for torch and the engine."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def thread_counts(most: int) -> list[int]:
    """1, 2, 4, ... and the most."""
    counts = [1 << n for n in range(most.bit_length()) if 1 << n <= most]
    return counts if counts[-1] == most else [*counts, most]


def in_cache(rounds: int) -> dict[str, float]:
    """Nanoseconds per parameter of arithmetic on one core, by step."""
    sets = {size: parameters([(size,)]) for size in SMALL}
    refreshes = [new_gradients(params) for params in sets.values()]

    def refresh(number: int) -> None:
        for each in refreshes:
            each(number)

    # Many steps a turn: one takes less than a thousandth of a second.
    def repeated(step: Work) -> Work:
        return lambda: [step() for _ in range(20)]

    works = {
        f"{size} {name}": repeated(make(params))
        for size, params in sets.items()
        for name, (make, _) in STEPS.items()
    }
    with threads(1):
        seconds, failed = interleaved(works, rounds, refresh=refresh)
    for error in failed.values():
        raise error
    small, large = SMALL
    return {
        name: 1e9
        * (min(seconds[f"{large} {name}"]) - min(seconds[f"{small} {name}"]))
        / (20 * (large - small))
        for name in STEPS
    }


def from_memory(rounds: int, scale: float, number: int) -> tuple[dict[str, float], float]:
    """Nanoseconds per parameter on matrices in memory, by step, and bytes per second."""
    params = parameters(matrices(scale))
    works = {name: make(params) for name, (make, _) in STEPS.items()}
    with threads(number):
        seconds, failed = interleaved(works, rounds, refresh=new_gradients(params))
        rate = max(bandwidth(rounds, scale).values())
    for error in failed.values():
        raise error
    elements = sum(p.numel() for p in params)
    return {name: 1e9 * min(each) / elements for name, each in seconds.items()}, rate


def measured(rounds: int, scale: float, most: int) -> pd.DataFrame:
    """`threads`, `step`, `arithmetic`, `bytes`, `bytes_per_second`, `measured`, `model`."""
    arithmetic = in_cache(rounds)
    records = []
    for number in thread_counts(most):
        found, rate = from_memory(rounds, scale, number)
        for name, (_, nbytes) in STEPS.items():
            records.append(
                {
                    "threads": number,
                    "step": name,
                    "arithmetic": arithmetic[name],
                    "bytes": nbytes,
                    "bytes_per_second": rate,
                    "measured": found[name],
                    "model": nanoseconds(arithmetic[name], nbytes, number, rate),
                }
            )
    return pd.DataFrame(records)


def modelled(frame: pd.DataFrame, processor: Processor) -> list[str]:
    """A row of the table of other processors: by step, where memory binds, and the ratio."""
    rate = processor.gb_per_s * 1e9 * REACHED
    one = frame[frame["threads"] == 1].set_index("step")
    base = one.loc[BASE]
    cells = [processor.name, str(processor.cores), f"{processor.gb_per_s:g}"]
    whole = nanoseconds(base["arithmetic"], base["bytes"], processor.cores, rate)
    for name in STEPS:
        row = one.loc[name]
        bound = row["arithmetic"] * rate / (row["bytes"] * 1e9)
        cells.append(f"{bound:.0f}")
        if name != BASE:
            here = nanoseconds(row["arithmetic"], row["bytes"], processor.cores, rate)
            cells.append(f"{whole / here:.2f}")
    return cells


def page(frame: pd.DataFrame, about: Sequence[str]) -> str:
    """The report."""
    one = frame[frame["threads"] == 1]
    ratios = frame.pivot_table("measured", "threads", "step", sort=False)
    lines = [
        "# A step of AdamW on more cores",
        "",
        *about,
        "",
        "## Parts",
        "",
        "Arithmetic is that of one core with everything in its cache. Bytes are those that a step "
        "moves to and from memory for each parameter.",
        "",
        *markdown(
            ("step", "ns of arithmetic per parameter", "bytes per parameter"),
            [(row.step, f"{row.arithmetic:.3f}", f"{row.bytes:.2f}") for row in one.itertuples()],
        ),
        "",
        "## Measured here",
        "",
        "On four matrices in memory; least times over the rounds. The model is the longer of "
        "arithmetic divided by the threads and bytes at the bandwidth of that many threads.",
        "",
        *markdown(
            ("threads", "GB/s", "step", "ns per parameter", "model", "speed beside 32 bits"),
            [
                (
                    str(row.threads),
                    f"{row.bytes_per_second / 1e9:.0f}",
                    row.step,
                    f"{row.measured:.3f}",
                    f"{row.model:.3f}",
                    f"{ratios.loc[row.threads, BASE] / row.measured:.2f}",
                )
                for row in frame.itertuples()
            ],
        ),
        "",
        "## Modelled for larger processors",
        "",
        "With the arithmetic of a core measured here, which another core does not have, and "
        f"{REACHED:.0%} of the peak bandwidth of the memory. A step is bound by memory from so "
        "many cores on; beside 32 bits, all cores at work, it is so many times as fast. "
        "`--processor CORES GB/S` adds one.",
        "",
    ]
    head = ["processor", "cores", "peak GB/s"]
    for name in STEPS:
        head.append(f"{name}: bound from")
        if name != BASE:
            head.append(f"{name}: speed")
    rows = [modelled(frame, each) for each in frame.attrs["processors"]]
    return "\n".join([*lines, *markdown(head, rows), ""])


@one_line_errors
def main(given: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cores", description=__doc__)
    parser.add_argument("--rounds", type=count, default=15)
    parser.add_argument("--scale", type=positive, default=1.0, help="size of the matrices")
    parser.add_argument("--threads", type=count, help="the most (default: as many as torch has)")
    parser.add_argument("--processor", nargs=2, type=positive, action="append", default=[],
                        metavar=("CORES", "GB/S"), help="model this one too")  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("reports/bench"))
    options = parser.parse_args(given)
    out = output_folder(options.out)
    most = options.threads or min(torch.get_num_threads(), os.cpu_count() or 1)
    frame = measured(options.rounds, options.scale, most)
    asked = [
        Processor(f"{cores:g} cores, {rate:g} GB/s", int(cores), rate)
        for cores, rate in options.processor
    ]
    frame.attrs["processors"] = [*asked, *PROCESSORS]
    about = machine.about(sys.argv[1:] if given is None else given, "benchmarks.cores")
    frame.insert(0, "machine", about["machine"]["processor"])
    with replacing(out / "cores.csv") as temporary:
        frame.to_csv(temporary, index=False)
    write_text(out / "cores.md", page(frame, machine.described(about)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
