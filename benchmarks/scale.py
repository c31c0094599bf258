"""Time of a sweep by number of workers: measured here, and a model of more.

``python -m benchmarks.scale`` makes states of the shapes of GPT-2 small, sweeps them in one process
and with 1 and 2 workers, in turns, and writes reports/scale.{csv,md}. Times are ratios of medians
to one process, costs are processor time. The model for more workers has measured parts: the time to
read the states and the time to measure them.
"""

from __future__ import annotations

import math
import os
import resource
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import torch

from benchmarks import machine
from benchmarks.command import count, one_line_errors, study_options, written
from benchmarks.markdown import markdown as table_lines
from benchmarks.timing import interleaved, ratio, stopwatch
from qmaps import capture, sweep
from qmaps.analyze import executors
from qmaps.capture import CapturedStates
from qmaps.capture.recorder import write
from qmaps.capture.snapshot import Lazy
from qmaps.storage.files import output_folder
from qmaps.sweep.plan import Item, items_of

MODELLED = (1, 2, 4, 8, 16, 32, 64)
HEAD = ("workers", "measured, times one process", "model of these states", "model of GPT-2 small")
GOAL = 120 * 2
"""Seconds of a core for 100 pairs on all of GPT-2 small: two minutes on two cores."""

PAIRS = (
    *sweep.STANDARD,
    *(
        f"{norm}/{first}@4s + {norm}/{second}@4u"
        for norm in ("B64", "B512", "row", "B128x8")
        for first, second in (
            ("DE", "DE-0"), ("linear", "linear"), ("nf4", "power2"),
            ("inverse", "inverse"), ("DE", "power3"), ("linear0", "linear"),
        )
    ),
)  # fmt: skip
"""A hundred pairs: those of every sweep, and some more at 4 bits."""


LAYERS = 12
"""Those of GPT-2 small."""


def shapes(layers: int = LAYERS, width: int = 768) -> dict[str, tuple[int, ...]]:
    """The matrices of GPT-2 small, or of some layers and as large a share of the embeddings."""
    sizes: dict[str, tuple[int, ...]] = {
        "wte": (50257 * layers // LAYERS, width),
        "wpe": (1024 * layers // LAYERS, width),
    }
    for layer in range(layers):
        for name, columns in (("c_attn", 3 * width), ("c_proj", width), ("c_fc", 4 * width)):
            sizes[f"h.{layer}.{name}"] = (width, columns)
        sizes[f"h.{layer}.mlp.c_proj"] = (4 * width, width)
    return sizes


def snapshot(by_name: Mapping[str, tuple[int, ...]], folder: Path) -> Path:
    """A snapshot of both moments in these shapes."""

    def drawn(number: int, shape: tuple[int, ...], *, second: bool) -> torch.Tensor:
        draw = torch.Generator().manual_seed(2 * number + second)
        x = torch.randn(shape, generator=draw) * torch.randn(shape[0], 1, generator=draw).exp()
        return (x * 1e-3).square_() if second else x * 1e-3

    states = {
        f"{name}.weight": {
            state: Lazy(shape, torch.float32, partial(drawn, number, shape, second=bool(place)))
            for place, state in enumerate(("exp_avg", "exp_avg_sq"))
        }
        for number, (name, shape) in enumerate(by_name.items())
    }
    return write(CapturedStates(states, step=1, optimizer="AdamW"), folder / "states")


def planned(pairs: Sequence[str]) -> list[Item]:
    """The items of a sweep of all of GPT-2 small, without its states."""

    def absent() -> torch.Tensor:
        raise AssertionError

    states = {
        name: dict.fromkeys(("exp_avg", "exp_avg_sq"), Lazy(shape, torch.float32, absent))
        for name, shape in shapes().items()
    }
    return items_of(CapturedStates(states, step=1), pairs)


def read(path: Path) -> None:
    """Read every state once, as a sweep does."""
    for _ in capture.load(path).items():
        pass


def parallel_share(items: Sequence[Item], workers: int) -> float:
    """The busiest worker's share of the work; items with the most work start first."""
    loads = [0] * workers
    for work in sorted((item.work for item in items), reverse=True):
        loads[loads.index(min(loads))] += work
    return max(loads) / sum(loads)


def model(items: Sequence[Item], workers: int, reading: float) -> float:
    """The time of a sweep on one machine, in units of that of one process.

    Measuring is divided among the workers by `parallel_share`. Reading is not: all of them share
    one source.
    """
    return max(reading, parallel_share(items, workers))


def on(pool: Executor, items: Sequence[Item], states: CapturedStates) -> None:
    """Measure all items in a warm pool."""
    jobs = [executors.Job(item.number, item.parameter, item.work, item.measure) for item in items]
    for _ in executors.on_executor(jobs, pool, states):
        pass


def spin() -> int:
    """About a second of one core."""
    return sum(range(50_000_000))


def spins(pool: Executor, number: int) -> None:
    """About a second of computation on `number` workers of a warm pool at once."""
    for spun in [pool.submit(spin) for _ in range(number)]:
        spun.result()


def processor_seconds(who: int = resource.RUSAGE_SELF) -> float:
    """Processor time so far, of this process or of its finished children."""
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def measure(
    path: Path, pairs: Sequence[str], rounds: int
) -> tuple[dict[str, list[float]], list[float]]:
    """Seconds in every round of each way, by its name; and processor seconds of one process."""
    spent = []

    def one_process() -> None:
        before = processor_seconds()
        sweep.run(path, pairs)
        spent.append(processor_seconds() - before)

    states = capture.load(path)
    items = items_of(states, pairs)
    pools = {count: executors.new_pool(count) for count in (1, 2)}
    try:
        seconds, failed = interleaved(
            {
                "one process": one_process,
                "reading": lambda: read(path),
                **{str(count): partial(on, pool, items, states) for count, pool in pools.items()},
                **{f"{count} spins": partial(spins, pools[2], count) for count in pools},
            },
            rounds,
            warm_ups=1,
        )
    finally:
        for pool in pools.values():
            pool.shutdown()
    if failed:
        raise next(iter(failed.values()))
    return seconds, spent[-rounds:]


def whole(pairs: Sequence[str]) -> tuple[float, float]:
    """Seconds of one sweep of all of GPT-2 small by two workers; their processor seconds."""
    with tempfile.TemporaryDirectory() as folder:
        path = snapshot(shapes(), Path(folder))
        before = processor_seconds(resource.RUSAGE_CHILDREN)
        in_pool = stopwatch(lambda: sweep.run(path, pairs, workers=2))
        return in_pool, processor_seconds(resource.RUSAGE_CHILDREN) - before


def frame(
    seconds: dict[str, list[float]], items: Sequence[Item], pairs: Sequence[str]
) -> pd.DataFrame:
    """A row for each number of workers."""
    baseline = seconds["one process"]
    reading = ratio(seconds["reading"], baseline)["ratio"]
    every = planned(pairs)
    return pd.DataFrame(
        {
            "workers": workers,
            "measured": ratio(seconds[str(workers)], baseline)["ratio"]
            if str(workers) in seconds
            else None,
            "model": model(items, workers, reading),
            "model_gpt2": model(every, workers, reading),
        }
        for workers in MODELLED
    )


def page(
    rows: pd.DataFrame,
    seconds: dict[str, list[float]],
    spent: Sequence[float],
    items: Sequence[Item],
    info: dict[str, Any],
    in_pool: tuple[float, float] | None,
    load: float,
) -> str:
    """The report."""
    count = len(items[0].pairs)
    elements = sum({item.parameter: item.numel for item in items}.values())
    every = sum(math.prod(shape) for shape in shapes().values())
    every_item = planned([pair.spec for pair in items[0].pairs])
    cost = median(spent) / elements / count * 1e9
    goal = GOAL / every / 100 * 1e9
    reading = ratio(seconds["reading"], seconds["one process"])["ratio"]
    control = ratio(seconds["2 spins"], seconds["1 spins"])["ratio"]
    rate = 8 * elements / median(seconds["reading"]) / 1e9
    lines = [
        ("" if pd.isna(value) else f"{value:.3g}" for value in row)
        for row in rows.itertuples(index=False)
    ]
    alone = (
        ""
        if in_pool is None
        else f" Measured as one run by two workers: {in_pool[0]:.0f} s for {count} pairs on all "
        f"{every / 1e6:.0f}M elements, start of the workers included, and {in_pool[1]:.0f} s of "
        "their processor time."
    )
    return "\n".join(
        [
            "# How a sweep's time falls with workers",
            "",
            f"`{info['command']}`",
            "",
            f"{info['machine']['processor']}, {info['machine']['cores']} cores, one thread for "
            f"each process; {count} pairs over {elements / 1e6:.3g}M elements in matrices of "
            "GPT-2 small, random moments. Absolute numbers belong to this machine and hour: other "
            f"work shared its cores, and the load average was {load:.1f} before the first round.",
            "",
            f"- One process spends {cost:.1f} ns of processor time for each element and pair: "
            f"{cost * every * 100 / 1e9:.0f} s of a core for 100 pairs on all {every / 1e6:.0f}M "
            f"elements. The goal, two minutes on two cores, is {GOAL} s, or {goal:.1f} ns.{alone}",
            f"- Reading both moments and looking for NaN takes {reading:.2%} of the time, at "
            f"{rate:.2g} GB/s from the page cache.",
            "",
            *table_lines(HEAD, lines),
            "",
            "Measured: ratio of medians over rounds in turns; pools were started before. The model "
            "is the larger of two times: reading, which all workers share, and the share of the "
            "busiest worker, where the items with the most work begin first. It assumes that every "
            "worker has a core and that memory bandwidth is not the limit; nothing above 2 workers "
            "was measured. The control: two processes that only count took "
            f"{control:.2f} times as long at once as one of them alone. That is 1 where two cores "
            "are free; near 2, two workers have no more than one core, and their row says nothing "
            f"of the sweep. GPT-2 small is divided into {len(every_item)} items; the largest of "
            "them bounds the time from below, whatever the number of workers.",
            "",
        ]
    )


@one_line_errors
def main(arguments: Sequence[str] | None = None) -> int:
    parser = study_options("benchmarks.scale", __doc__, rounds=5)
    parser.add_argument("--layers", type=count, default=1, help="of 12 (default 1)")
    parser.add_argument("--width", type=count, default=768, help="of matrices (default 768)")
    parser.add_argument("--pairs", type=count, default=len(PAIRS), help="(default all)")
    parser.add_argument(
        "--whole", action="store_true", help="also sweep all of GPT-2 small once with two workers"
    )
    options = parser.parse_args(arguments)
    output_folder(options.out)
    pairs = PAIRS[: options.pairs]
    threads, (load, *_) = torch.get_num_threads(), os.getloadavg()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = snapshot(shapes(options.layers, options.width), Path(folder))
            seconds, spent = measure(path, pairs, options.rounds)
            items = items_of(capture.load(path), pairs)
        in_pool = whole(pairs) if options.whole else None
    finally:
        torch.set_num_threads(threads)
    info = machine.about(arguments, "benchmarks.scale")
    rows = frame(seconds, items, pairs)
    text = page(rows, seconds, spent, items, info, in_pool, load)
    return written(options.out, "scale", text, rows)


if __name__ == "__main__":
    sys.exit(main())
