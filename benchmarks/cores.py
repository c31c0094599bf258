"""Scaling of an optimizer step with cores: measured here, and modelled for larger processors.

``python -m benchmarks.cores`` measures, for AdamW, SGD with momentum, LAMB and LARS, the arithmetic
of one core with everything in its cache, and steps on large matrices with 1, 2, 4, ... threads; and
the memory bandwidth of as many threads. The model takes the longer of two times: arithmetic divided
by the cores, and bytes divided by the processor's bandwidth. reports/bench/cores.{csv,md} compares
it with the measurements and has its results for larger processors.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import pandas as pd
import torch
from torch import Tensor

from benchmarks import machine
from benchmarks.bandwidth import bandwidth
from benchmarks.cases.adamw import EIGHT, FUSED, PRESET, traffic
from benchmarks.cases.optimizers import LAMB, LARS, MOMENTUM, traffic_with_norms
from benchmarks.command import count, one_line_errors, positive, study_options, written
from benchmarks.data import matrices, new_gradients, parameters
from benchmarks.markdown import markdown
from benchmarks.timing import Work, interleaved
from qmaps import optim
from qmaps.storage.files import output_folder

Make = Callable[[list[Tensor]], torch.optim.Optimizer]
Bytes = Callable[[Sequence[str | None]], float]


@dataclass(frozen=True)
class Step:
    """A measured step.

    Attributes:
        make: returns the optimizer, given the parameters.
        nbytes: bytes to and from memory for each parameter.
    """

    make: Make
    nbytes: float


def widths(
    base: str,
    wide: Make,
    narrow: Sequence[Callable[..., torch.optim.Optimizer]],
    options: Mapping[str, float],
    states: int,
    nbytes: Bytes,
) -> dict[str, Step]:
    """Steps of an optimizer in 32, 8 and 4 bits.

    Args:
        base: name of the step in 32 bits.
        wide: makes the optimizer with states in 32 bits.
        narrow: its classes in 8 and 4 bits.
        options: options of these classes.
        states: number of its states, at most the two of AdamW.
        nbytes: returns the bytes of a step for each parameter, given the quantizers of the states.
    """
    eight, four = (partial(kind, **options) for kind in narrow)
    return {
        base: Step(wide, nbytes((None,) * states)),
        "8 bits": Step(eight, nbytes(EIGHT[:states])),
        "4 bits": Step(four, nbytes(PRESET[:states])),
    }


TORCH_FUSED, OWN = f"32 bits, {FUSED}", "32 bits, qmaps"
STEPS: dict[str, dict[str, Step]] = {
    "AdamW": widths(
        TORCH_FUSED,
        partial(torch.optim.AdamW, fused=True),
        (optim.AdamW8bit, optim.AdamW4bit),
        {},
        2,
        traffic,
    ),
    "SGD with momentum": widths(
        TORCH_FUSED,
        partial(torch.optim.SGD, fused=True, **MOMENTUM),
        (optim.SGD8bit, optim.SGD4bit),
        MOMENTUM,
        1,
        traffic,
    ),
    "LAMB": widths(
        OWN,
        partial(optim.LAMB, **LAMB),
        (optim.LAMB8bit, optim.LAMB4bit),
        LAMB,
        2,
        traffic_with_norms,
    ),
    "LARS": widths(
        OWN,
        partial(optim.LARS, **LARS),
        (optim.LARS8bit, optim.LARS4bit),
        LARS,
        1,
        traffic_with_norms,
    ),
}
"""Steps timed in turns, by optimizer; the others are compared to the first, in 32 bits."""
SMALL = 1 << 17, 3 << 17
"""Two sizes with equal overheads; the difference of their times is arithmetic alone."""


@dataclass(frozen=True)
class Processor:
    """A processor of the model.

    Attributes:
        name: name in the table.
        cores: cores of one socket.
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
"""Share of a peak bandwidth reached by programs, about."""


def nanoseconds(arithmetic: float, nbytes: float, cores: int, bytes_per_second: float) -> float:
    """Time of a step per parameter by the model.

    Args:
        arithmetic: nanoseconds per parameter on one core with everything in its cache.
        nbytes: bytes per parameter to and from memory.
        cores: number of working cores.
        bytes_per_second: their joint memory bandwidth.
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


def thread_counts(maximum: int) -> list[int]:
    """1, 2, 4, ... and the most."""
    counts = [1 << n for n in range(maximum.bit_length()) if 1 << n <= maximum]
    return counts if counts[-1] == maximum else [*counts, maximum]


def in_cache(steps: Mapping[str, Step], rounds: int) -> dict[str, float]:
    """Nanoseconds per parameter of arithmetic on one core, by step."""
    sets = {size: parameters([(size,)]) for size in SMALL}
    refreshes = [new_gradients(params) for params in sets.values()]

    def refresh(number: int) -> None:
        for renew in refreshes:
            renew(number)

    # Many steps a turn: one takes less than a thousandth of a second.
    def repeated(step: Work) -> Work:
        return lambda: [step() for _ in range(20)]

    works = {
        f"{size} {name}": repeated(step.make(params).step)
        for size, params in sets.items()
        for name, step in steps.items()
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
        for name in steps
    }


def from_memory(
    steps: Mapping[str, Step], rounds: int, scale: float, number: int
) -> dict[str, float]:
    """Nanoseconds per parameter on matrices in memory with so many threads, by step."""
    params = parameters(matrices(scale))
    works = {name: step.make(params).step for name, step in steps.items()}
    with threads(number):
        seconds, failed = interleaved(works, rounds, refresh=new_gradients(params))
    for error in failed.values():
        raise error
    elements = sum(p.numel() for p in params)
    return {name: 1e9 * min(times) / elements for name, times in seconds.items()}


def rates(rounds: int, scale: float, max_threads: int) -> dict[int, float]:
    """Bytes per second to and from memory, by the number of threads."""
    bandwidths = {}
    for number in thread_counts(max_threads):
        with threads(number):
            bandwidths[number] = max(bandwidth(rounds, scale).values())
    return bandwidths


def measured(rounds: int, scale: float, max_threads: int) -> pd.DataFrame:
    """One row per optimizer, number of threads and step.

    Returns:
        `optimizer`, `threads`, `step`, `arithmetic` (nanoseconds per parameter on one core),
        `bytes` (per parameter), `bytes_per_second`, and `measured` and `model` (nanoseconds per
        parameter).
    """
    records = []
    bytes_per_second = rates(rounds, scale, max_threads)
    for optimizer, steps in STEPS.items():
        arithmetic = in_cache(steps, rounds)
        for number, rate in bytes_per_second.items():
            from_ram = from_memory(steps, rounds, scale, number)
            for name, step in steps.items():
                records.append(
                    {
                        "optimizer": optimizer,
                        "threads": number,
                        "step": name,
                        "arithmetic": arithmetic[name],
                        "bytes": step.nbytes,
                        "bytes_per_second": rate,
                        "measured": from_ram[name],
                        "model": nanoseconds(arithmetic[name], step.nbytes, number, rate),
                    }
                )
    return pd.DataFrame(records)


def enough(arithmetic: float, nbytes: float, bytes_per_second: float) -> int:
    """Smallest number of cores to make a step memory-bound.

    Args:
        arithmetic: nanoseconds per parameter on one core.
        nbytes: bytes per parameter.
        bytes_per_second: memory bandwidth of all cores together.
    """
    # Rounded first, so that two cores and a rounding error are not three.
    return max(1, math.ceil(round(arithmetic * bytes_per_second / (1e9 * nbytes), 6)))


def modelled(frame: pd.DataFrame, processor: Processor) -> list[str]:
    """A row of the table of modelled processors: memory-bound core counts by step, and the ratio.

    Args:
        frame: rows of `measured` of one optimizer.
        processor: modelled processor.
    """
    rate = processor.gb_per_s * 1e9 * REACHED
    single = frame[frame["threads"] == 1]
    base = single.iloc[0]
    cells = [processor.name, str(processor.cores), f"{processor.gb_per_s:g}"]
    base_ns = nanoseconds(base["arithmetic"], base["bytes"], processor.cores, rate)
    for _, row in single.iterrows():
        cells.append(str(enough(row["arithmetic"], row["bytes"], rate)))
        if row["step"] != base["step"]:
            narrow_ns = nanoseconds(row["arithmetic"], row["bytes"], processor.cores, rate)
            cells.append(f"{base_ns / narrow_ns:.2f}")
    return cells


def processors(frame: pd.DataFrame, hardware: Sequence[Processor]) -> list[str]:
    """The table of other processors for each optimizer, in Markdown."""
    lines = []
    for optimizer, part in frame.groupby("optimizer", sort=False):
        base, *narrow = part[part["threads"] == 1]["step"]
        head = ["processor", "cores", "peak GB/s", f"{base}: bound from"]
        for name in narrow:
            head += [f"{name}: bound from", f"{name}: speed"]
        rows = [modelled(part, processor) for processor in hardware]
        lines += [f"### {optimizer}", "", *markdown(head, rows), ""]
    return lines


def page(frame: pd.DataFrame, hardware: Sequence[Processor], info: Sequence[str]) -> str:
    """The report.

    Args:
        frame: result of `measured`.
        hardware: modelled processors.
        info: machine and command.
    """
    single = frame[frame["threads"] == 1]
    bases = frame.groupby(["optimizer", "threads"], sort=False)["measured"].first()
    lines = [
        "# Steps on more cores",
        "",
        *info,
        "",
        "AdamW and SGD with momentum (0.9) are compared with torch's fused steps in 32 bits; LAMB "
        "and LARS, which torch does not have, with ours in 32 bits. LAMB and LARS have the options "
        "of bitsandbytes (`max_unorm`), for which LARS reads its states for the norm too. States "
        "are those of `AdamW8bit` and `AdamW4bit`, `SGD8bit` and `SGD4bit`, and so on.",
        "",
        "## Parts",
        "",
        "Arithmetic is that of one core with everything in its cache. Bytes are those that a step "
        "moves to and from memory for each parameter; LAMB and LARS read parameters, gradients and "
        "states twice.",
        "",
        *markdown(
            ("optimizer", "step", "ns of arithmetic per parameter", "bytes per parameter"),
            [
                (row.optimizer, row.step, f"{row.arithmetic:.3f}", f"{row.bytes:.2f}")
                for row in single.itertuples()
            ],
        ),
        "",
        "## Measured here",
        "",
        "On four matrices in memory; least times over the rounds. The model is the longer of "
        "arithmetic divided by the threads and bytes at the bandwidth of that many threads.",
        "",
        *markdown(
            ("optimizer", "threads", "GB/s", "step", "ns per parameter", "model",
             "speed beside 32 bits"),
            [
                (
                    row.optimizer,
                    str(row.threads),
                    f"{row.bytes_per_second / 1e9:.0f}",
                    row.step,
                    f"{row.measured:.3f}",
                    f"{row.model:.3f}",
                    f"{bases[row.optimizer, row.threads] / row.measured:.2f}",
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
        *processors(frame, hardware),
    ]  # fmt: skip
    return "\n".join(lines)


@one_line_errors
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = study_options("benchmarks.cores", __doc__, rounds=15, out="reports/bench")
    parser.add_argument("--scale", type=positive, default=1.0, help="size of the matrices")
    parser.add_argument("--threads", type=count, help="the most (default: as many as torch has)")
    parser.add_argument("--processor", nargs=2, type=positive, action="append", default=[],
                        metavar=("CORES", "GB/S"), help="model this one too")  # fmt: skip
    options = parser.parse_args(argv)
    output_folder(options.out)
    max_threads = options.threads or min(torch.get_num_threads(), os.cpu_count() or 1)
    frame = measured(options.rounds, options.scale, max_threads)
    asked = [
        Processor(f"{cores:g} cores, {rate:g} GB/s", int(cores), rate)
        for cores, rate in options.processor
    ]
    info = machine.about(argv, "benchmarks.cores")
    frame.insert(0, "machine", machine.named(info["machine"]))
    text = page(frame, [*asked, *PROCESSORS], machine.described(info))
    return written(options.out, "cores", text, frame)


if __name__ == "__main__":
    sys.exit(main())
