"""How a sweep's time falls with workers: measured here, and a model of more.

``python -m benchmarks.scale`` sweeps the same snapshot in one process and with 1 and 2 workers, in
turns, and writes reports/scale.{json,md}. Times are ratios of medians to one process. The model for
more workers has measured parts: the time to read the states and the time to measure them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks import machine
from benchmarks.command import count, one_line_errors
from benchmarks.markdown import markdown as table_lines
from benchmarks.timing import interleaved, ratio
from qmaps import capture, sweep
from qmaps.capture import CapturedStates
from qmaps.capture.saved import write
from qmaps.storage.files import output_folder, write_json, write_text
from qmaps.sweep import executors

MODELLED = (1, 2, 4, 8, 16, 32, 64)
HEAD = ("workers", "measured, times one process", "model")


def snapshot(side: int, matrices: int, folder: Path) -> Path:
    """A snapshot of square matrices with both moments."""
    draw = torch.Generator().manual_seed(0)
    tensors = {}
    for number in range(matrices):
        noise = torch.randn(2, side, side, generator=draw)
        size = torch.randn(side, 1, generator=draw).exp()
        tensors[f"layer{number}.weight"] = {
            "exp_avg": noise[0] * size * 1e-3,
            "exp_avg_sq": (noise[1] * size).square() * 1e-6,
        }
    return write(CapturedStates.from_tensors(tensors, optimizer="AdamW"), folder / "states")


def read(path: Path) -> None:
    """Read every state once, as a sweep does."""
    for _ in capture.load(path).items():
        pass


def parallel_share(items: Sequence[sweep.Item], workers: int) -> float:
    """The share of the elements that the busiest worker has, the largest begun first."""
    loads = [0] * workers
    for numel in sorted((item.numel for item in items), reverse=True):
        loads[loads.index(min(loads))] += numel
    return max(loads) / sum(loads)


def model(items: Sequence[sweep.Item], workers: int, reading: float) -> float:
    """The time of a sweep on one machine, in units of that of one process.

    Measuring is divided among the workers as `parallel_share` says. Reading is not: all of them
    share one source.
    """
    return max(reading, parallel_share(items, workers))


def on(pool: Executor, items: Sequence[sweep.Item]) -> None:
    """Measure all items in a pool that is warm."""
    for _ in executors.on_executor(items, pool):
        pass


def measure(path: Path, pairs: Sequence[str], rounds: int) -> dict[str, list[float]]:
    """Seconds in every round of each way, by its name."""
    items = sweep.plan(path, pairs)
    pools = {count: executors.new_pool(count) for count in (1, 2)}
    try:
        seconds, failed = interleaved(
            {
                "one process": lambda: sweep.run(path, pairs),
                "reading": lambda: read(path),
                **{str(count): lambda pool=pool: on(pool, items) for count, pool in pools.items()},
            },
            rounds,
        )
    finally:
        for pool in pools.values():
            pool.shutdown()
    if failed:
        raise next(iter(failed.values()))
    return seconds


def page(
    found: dict[str, list[float]], items: Sequence[sweep.Item], about: dict[str, Any], pairs: int
) -> str:
    whole = found["one process"]
    reading = ratio(found["reading"], whole)["ratio"]
    elements = sum(item.numel for item in items)
    rows = [
        (
            str(workers),
            f"{ratio(found[str(workers)], whole)['ratio']:.2f}" if str(workers) in found else "",
            f"{model(items, workers, reading):.3f}",
        )
        for workers in MODELLED
    ]
    each = median(whole) / elements * 1e9
    rate = 8 * elements / median(found["reading"]) / 1e9
    return "\n".join(
        [
            "# How a sweep's time falls with workers",
            "",
            f"`{about['command']}`",
            "",
            f"{about['machine']['processor']}, {about['machine']['cores']} cores, one thread for "
            f"each process. {pairs} pairs over {len(items)} matrices of {items[0].numel} elements "
            f"with both moments: {each:.0f} ns for each element and all pairs; reading both "
            f"moments and looking for NaN: {rate:.2g} GB/s from the page cache, {reading:.2%} of "
            "the time. Measured: medians of rounds in turns, pools started before. Absolute "
            "numbers belong to this machine and moment, whose cores other work shared.",
            "",
            *table_lines(HEAD, rows),
            "",
            "The model is the larger of two times: reading, which all workers share, and the share "
            "of the busiest worker, where the largest parameters begin first and no parameter is "
            "divided. It assumes that every worker has a core and that memory bandwidth is not the "
            "limit; nothing above 2 workers was measured. A model's largest parameter (an "
            "embedding) bounds the time from below, whatever the number of workers.",
            "",
        ]
    )


@one_line_errors
def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--side", type=count, default=256, help="of matrices (default 256)")
    parser.add_argument("--matrices", type=count, default=32, help="(default 32)")
    parser.add_argument("--pairs", type=count, default=len(sweep.STANDARD), help="(default all)")
    parser.add_argument("--rounds", type=count, default=5, help="that count (default 5)")
    parser.add_argument("--out", type=Path, default=Path("reports"), help="folder for results")
    options = parser.parse_args(arguments)
    out = output_folder(options.out)
    pairs = sweep.STANDARD[: options.pairs]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = snapshot(options.side, options.matrices, Path(folder))
            found = measure(path, pairs, options.rounds)
            items = sweep.plan(path, pairs)
    finally:
        torch.set_num_threads(threads)
    given = sys.argv[1:] if arguments is None else list(arguments)
    about = machine.about(given, "benchmarks.scale")
    write_json(out / "scale.json", {"about": about, "found": found})
    write_text(out / "scale.md", page(found, items, about, len(pairs)))
    print((out / "scale.md").read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
