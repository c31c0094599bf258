"""Cost of a monitor of quantized states in a training step.

``python -m benchmarks.monitor`` takes steps of each workload with and without a monitor, in turns,
and writes reports/monitor.{json,md}. A step is forward, backward, update and zeroing gradients. The
time within the monitor's hooks is also measured directly, as it is smaller than the noise of the
steps. All times are processor times, to reduce the effect of other programs.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import count as counted
from typing import Any

import torch

from benchmarks import machine
from benchmarks.command import among, count, one_line_errors, study_options, written
from benchmarks.markdown import markdown as table_lines
from benchmarks.timing import WARM_UPS, Work, interleaved, ratio
from qmaps.capture import Monitor
from qmaps.lab import workloads
from qmaps.lab.workloads import Workload
from qmaps.optim import AdamW, QuantizedOptimizer
from qmaps.storage.files import output_folder

WORKLOADS = ("digits", "stdlib-lm-tiny", "stdlib-lm")
PRESETS = ("8bit", "4bit")
EVERY = 100
HEAD = (
    "net", "AdamW", "states", "step, ms", "with a monitor, times without", "steps to wait, µs",
    "steps of the window, µs", "measured step, ms", "share of the training time",
)  # fmt: skip


class Timed(Monitor):
    """A monitor with the seconds of its hooks in each step."""

    seconds: list[float]

    def _before(self) -> None:
        self._spent = self._timed(super()._before)

    def _after(self) -> None:
        self.seconds.append(self._spent + self._timed(super()._after))

    @staticmethod
    def _timed(work: Callable[[], None]) -> float:
        return processor_time(work)


def processor_time(work: Work) -> float:
    """Processor seconds of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def stepping(workload: Workload, preset: str) -> tuple[Work, QuantizedOptimizer]:
    """Training steps, one a call, and their optimizer."""
    model = workload.model(0)
    optimizer = AdamW(model.named_parameters(), lr=1e-3, state_quantizers=preset)
    numbers = counted(1)

    def step() -> None:
        workload.loss(model, workload.batch(next(numbers), 0)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, optimizer


def measure(name: str, preset: str, rounds: int, every: int, folder: str) -> dict[str, float]:
    """Times of one workload, in seconds."""
    workload = workloads.get(name)
    plain, _ = stepping(workload, preset)
    watched, optimizer = stepping(workload, preset)
    out = f"{folder}/{name}-{preset}.csv"
    with Timed(optimizer, out, every=every, thresholds=None) as monitor:
        monitor.seconds = []
        works = {"plain": plain, "monitored": watched}
        seconds, failed = interleaved(works, rounds, clock=processor_time)
        for error in failed.values():
            raise error
        window = min(monitor._window, every)
        states = len(monitor.rows)
    kinds: dict[str, list[float]] = {"wait": [], "window": [], "measured": []}
    for number, elapsed in enumerate(monitor.seconds, start=1):
        remaining = -number % every
        kind = "measured" if remaining == 0 else "window" if remaining < window else "wait"
        if number > WARM_UPS:
            kinds[kind].append(elapsed)
    step = statistics.median(seconds["plain"])
    medians = {kind: statistics.median(times) if times else 0.0 for kind, times in kinds.items()}
    cost = (
        medians["wait"] * (every - window) + medians["window"] * (window - 1) + medians["measured"]
    )
    return {
        "states": states,
        "step": step,
        **ratio(seconds["monitored"], seconds["plain"]),
        **medians,
        "share": cost / (every * step),
    }


def page(measured: dict[str, dict[str, float]], info: dict[str, Any], every: int) -> str:
    """The times in Markdown."""
    rows = [
        (
            *name.split(", "),
            f"{row['states']:.0f}",
            f"{1e3 * row['step']:.1f}",
            f"{row['ratio']:.3f} ({row['q1']:.3f} to {row['q3']:.3f})",
            f"{1e6 * row['wait']:.1f}",
            f"{1e6 * row['window']:.0f}",
            f"{1e3 * row['measured']:.1f}",
            f"{row['share']:.2%}",
        )
        for name, row in measured.items()
    ]
    threads = "1 thread" if info["threads"] == 1 else f"{info['threads']} threads"
    lines = [
        "# The cost of a monitor",
        "",
        f"`{info['command']}`",
        "",
        f"{info['machine']['processor']}, torch {info['versions']['torch']}, {threads} of torch; "
        "all times are of the processor, because other work shared the machine. `qmaps.Monitor` "
        f"with `every={every}` and otherwise its defaults, writing a CSV file. Steps with a "
        "monitor and without one are taken in turns; their ratio is that of the medians, with the "
        "quartiles of the rounds. Three columns have the median time within the monitor's hooks: "
        "in a step outside the window, in a step of the window of 10 steps, and in the measured "
        f"step. The last column is the sum of these over {every} steps, divided by the time of "
        f"{every} steps without a monitor. The times within the hooks contain the clock's own, "
        "which is most of the time of a step outside the window.",
        "",
        *table_lines(HEAD, rows),
    ]
    return "\n".join(lines) + "\n"


@one_line_errors
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = study_options("benchmarks.monitor", __doc__, rounds=400)
    parser.add_argument(
        "workload", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(WORKLOADS)}"
    )
    parser.add_argument("--threads", type=count, default=1, help="of torch (default 1)")
    parser.add_argument("--every", type=count, default=EVERY, help=f"default {EVERY}")
    options = parser.parse_args(argv)
    among(parser, "workload", options.workload, list(WORKLOADS))
    output_folder(options.out)
    torch.set_num_threads(options.threads)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.workload or WORKLOADS:
            for preset in PRESETS:
                torch.manual_seed(0)
                measured = measure(name, preset, options.rounds, options.every, folder)
                results[f"{name}, {preset}"] = measured
    info = machine.about(argv, "benchmarks.monitor")
    text = page(results, info, options.every)
    return written(options.out, "monitor", text, {"about": info, "found": results})


if __name__ == "__main__":
    sys.exit(main())
