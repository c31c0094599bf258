"""Rounding errors of moving averages, without trainings with quantized states.

``python -m benchmarks.moving_average`` writes reports/moving-average.md and its rows.

First moments: a moving average of random numbers; each element's standard deviation is that of its
gradient in a model after a few steps in 32 bits. Second moments: the average of squares of changing
size (`follow`), and `qmaps.replay`'s simulation of a fall. The averages are stored in codes after
every step.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

import qmaps
from benchmarks.command import command_line, one_line_errors, study_options, written
from benchmarks.long import NEW
from benchmarks.long_run import WORKLOAD
from benchmarks.long_tasks import MovedDigits
from benchmarks.markdown import markdown
from qmaps.algebra.pair import Pair
from qmaps.algebra.philox import RoundingKey
from qmaps.analyze.replay.averages import accumulated_noise, fall_ratios
from qmaps.engines.threads import one_thread
from qmaps.lab.workloads import Workload
from qmaps.optim.presets import FORMER, PRESETS, pair_of
from qmaps.storage.files import output_folder

FIRST = "B64xbf16/mu-law10:linear0"
FIRST_MOMENTS = (
    "B128/DE@4s+sr",
    "B128/DE@4s",
    "B128/DE-sym@4s+qsr",
    "B64xbf16/DE-sym@4s+qsr",
    "B64xbf16/nf4@4s+qsr",
    "B64xbf16/power2@4s+qsr",
    "B64xbf16/linear0@4s+qsr",
    "B64xbf16/mu-law5:linear0@4s+qsr",
    f"{FIRST}@4s+qsr",
    f"{FIRST}@4s+sr",
    "B64xbf16/mu-law10:linear0(nearest=true)@4s",
    "B64xbf16/mu-law20:linear0@4s+qsr",
    f"{FIRST.replace('64', '128')}@4s+qsr",
    f"{FIRST.replace('64', '32')}@4s+qsr",
    "rank1/mu-law10:linear0@4s+qsr",
    "B128/DE@3s+sr",
    f"{FIRST}@3s+qsr",
    "B16x8/linear0(full=true)@2s+sr",
    "B16x8/linear0(full=true)@2s+qsr",
    f"{FIRST}@5s+qsr",
    f"{FIRST}@6s+qsr",
    "B256/DE-sym@8s",
)
SECOND_MOMENTS = (
    *(str(pair_of(name).second) for name in (*FORMER, "paper-8bit", "paper-4bit")),
    "B256/DE-0@8u+sr",
    "B128/DE-0@4u+sr",
    "logB256/log2-0(in_log=true)@4u+sr",
    "B64xbf16/geometric@4u+sr",
    *dict.fromkeys(str(pair_of(name).second) for name in NEW),
    "B64xbf16/geometric@3u+qsr",
)
FORMATS = Path(__file__).parents[1] / "docs" / "formats.md"
SHAPE, DEVIATION = (16, 256), 0.7
"""Elements of the log-normal simulation, and of the logarithms of their deviations."""
CHANGES = ("fall", "fall to a hundredth", "rise", "one")
BETA1, BETA2, STEPS, SECOND_STEPS = 0.95, 0.999, 120, 3000


def deviations() -> Tensor:
    """Standard deviations of gradients, flat: of the matrices of two models after 300 steps.

    Rows with an element without any gradient are left out. The remaining rows keep their order, so
    each element keeps its neighbours.
    """
    parts = []
    works: tuple[Workload, ...] = (WORKLOAD, MovedDigits())
    for work in works:
        short = replace(work, steps=300, lr=0.003)
        model = short.model(0)
        optimizer = torch.optim.AdamW(model.parameters(), lr=short.lr)
        for step in range(1, short.steps + 1):
            optimizer.zero_grad()
            short.loss(model, short.batch(step, 0)).backward()
            optimizer.step()
        for param, state in optimizer.state.items():
            if param.dim() > 1:
                rows = state["exp_avg_sq"].flatten(1)
                seen = rows[(rows > 0).all(dim=1)].flatten()
                parts.append(seen[: seen.numel() // 256 * 256].view(-1, 256)[::3].flatten())
    return torch.cat(parts).sqrt()


def noise_of(spec: str, deviation: Tensor, mean: float) -> float:
    """Mean square of a first moment's error relative to that of the exact one, in the median block.

    Args:
        spec: quantizer spec.
        deviation: standard deviation of each element's gradient.
        mean: mean gradient divided by its deviation; the sign is random.

    Returns:
        The error of the sum of all moments of the second half, the effect on a weight. The median
        is over blocks of 64: under stochastic rounding, a few elements far smaller than the largest
        of their block would dominate a mean.
    """
    q, draw = qmaps.quantizer(spec), torch.Generator().manual_seed(0)
    shape = deviation.view(-1, 64).shape
    deviation = deviation.view(shape)
    middle = mean * deviation * torch.randn(shape, generator=draw)
    exact, stored = (torch.zeros(shape) for _ in range(2))
    error, total = (torch.zeros(shape) for _ in range(2))
    for step in range(STEPS):
        gradient = middle + deviation * torch.randn(shape, generator=draw)
        exact = BETA1 * exact + (1 - BETA1) * gradient
        used = BETA1 * stored + (1 - BETA1) * gradient
        stored = q.quantize(used, key=RoundingKey(step=step)).dequantize()
        if step >= STEPS // 2:
            error += (used - exact) / deviation
            total += exact / deviation
    return float((error.square().mean(1) / total.square().mean(1)).median())


def follow(spec: str | None, change: str, count: int = 8192) -> Tensor:
    """Second moments, before they are stored, of elements with other gradients after 300 steps.

    Gradients of every second element, or of one in 64, fall tenfold or a hundredfold, or rise
    tenfold, while those of their neighbours stay.
    """
    draw, q = torch.Generator().manual_seed(0), qmaps.quantizer(spec) if spec else None
    changing = torch.zeros(count, dtype=torch.bool)
    changing[:: 64 if change == "one" else 2] = True
    v = seen = torch.zeros(count)
    for step in range(SECOND_STEPS):
        gradient = torch.randn(count, generator=draw)
        if (step < 300) == (change == "rise"):
            gradient[changing] *= 0.01 if change == "fall to a hundredth" else 0.1
        seen = BETA2 * v + (1 - BETA2) * gradient.square()
        v = seen
        if q is not None:
            v = q.quantize_unchecked(seen, key=RoundingKey(step=step)).dequantize()
    return seen[changing]


def listed() -> dict[str, Pair]:
    """Pairs of moments by name: the presets and the published formats of docs/formats.md."""
    text = FORMATS.read_text(encoding="utf-8")
    formats = re.findall(r"^\| ([^|]+) \| [^|]+ \| `([^`]+ \+ [^`]+)` \|", text, re.MULTILINE)
    presets = [(f"preset `{name}`", name) for name in PRESETS if name != "32bit"]
    return {name: pair_of(spec) for name, spec in [*presets, *formats]}


@one_thread()
def log_normal(pairs: dict[str, Pair]) -> dict[str, tuple[float, float]]:
    """Fall ratio of the second moment and accumulated noise of the first, as in a replay."""
    draw = torch.Generator().manual_seed(0)
    deviation = (DEVIATION * torch.randn(SHAPE, generator=draw)).exp()
    first = [*dict.fromkeys(pair.first for pair in pairs.values() if pair.first)]
    second = [*dict.fromkeys(pair.second for pair in pairs.values() if pair.second)]
    noise = accumulated_noise(deviation, first, 0.9, RoundingKey(seed=0))
    falls = fall_ratios(deviation.square(), second, BETA2, RoundingKey(seed=0))
    noise_of_first = dict(zip(first, noise, strict=True))
    fall_of_second = dict(zip(second, falls, strict=True))
    return {
        name: (fall_of_second[pair.second], noise_of_first[pair.first])
        for name, pair in pairs.items()
        if pair.first and pair.second
    }


def rows() -> Iterator[dict[str, Any]]:
    """A row for each quantizer and case."""
    deviation = deviations()
    for spec in FIRST_MOMENTS:
        for mean in (0.0, 0.3):
            value = noise_of(spec, deviation, mean)
            yield {"moment": "first", "quantizer": spec, "case": f"mean {mean:g}", "value": value}
    exact = {change: follow(None, change) for change in CHANGES}
    for spec in SECOND_MOMENTS:
        for change in CHANGES:
            ratio = (follow(spec, change) / exact[change]).log().mean().exp()
            yield {"moment": "second", "quantizer": spec, "case": change, "value": float(ratio)}


def page(
    frame: pd.DataFrame,
    pairs: dict[str, Pair],
    measured: dict[str, tuple[float, float]],
    command: str,
) -> str:
    """The report on `rows`, and on `log_normal` of pairs."""
    tables = {
        "pairs": markdown(
            ("method", "pair", "v after fall", "noise of m"),
            [
                (name, f"`{pairs[name].spec}`", f"{v:.2g}" if v < 100 else f"{v:.0f}", f"{m:.2g}")
                for name, (v, m) in measured.items()
            ],
        )
    }
    for moment in ("first", "second"):
        part = frame[frame["moment"] == moment]
        wide = part.pivot_table("value", "quantizer", "case", sort=False)
        bits = [qmaps.quantizer(spec).nbytes((256, 256)) / 8192 for spec in wide.index]
        head = ("quantizer", "bits", *(str(case) for case in wide.columns))
        cells = [
            (f"`{spec}`", f"{size:.2f}", *(f"{value:.3g}" for value in wide.loc[spec]))
            for spec, size in zip(wide.index, bits, strict=True)
        ]
        tables[moment] = markdown(head, cells)
    return "\n".join(
        [
            "# Errors of moving averages",
            "",
            f"`{command}`. No quantized training is in these numbers; those are in "
            "[long](long/README.md).",
            "",
            "## First moments",
            "",
            f"A moving average with beta1 {BETA1} of random gradients. Their standard deviations "
            "are those of the elements of two models, so that they differ within a block as they "
            "do in trainings. The number is the mean square of the error of the sum over "
            f"{STEPS // 2} steps, relative to the exact sum, in the median block of 64; lower is "
            "better. *mean 0.3*: gradients have a mean of 0.3 of their deviation. Elements far "
            "below the largest of their block have more error: to nearest their moment is lost, "
            "under `+sr` and `+qsr` it is right in the mean, in rare large updates.",
            "",
            *tables["first"],
            "",
            "## Second moments",
            "",
            "The stored second moment times the exact one, as a geometric mean over the elements "
            f"whose gradients changed, after {SECOND_STEPS:,} steps with beta2 {BETA2}; 1 is "
            "right. "
            "*fall*: the gradients of every other element fall tenfold while their neighbours' "
            "stay; *one*: those of one element in 64.",
            "",
            *tables["second"],
            "",
            "## Presets and published formats",
            "",
            "`v after fall`: the gradients of every other element, but not the largest of each 16, "
            f"fall tenfold; its second moment after {3 / (1 - BETA2):,.0f} steps at beta2 = "
            f"{BETA2:g}, divided by the exact one, as a geometric mean of those that are not 0. 1 "
            "is right, and 17 is a second moment that did not fall. `noise of m`: what quantizing "
            "adds to a moving average of noise at beta1 = 0.9, as a mean square by that of the "
            "average; 0 is right. Both are the columns `fall_ratio_second` and "
            f"`accumulated_noise_first` of `qmaps.replay.run`, here for {SHAPE[0]} x {SHAPE[1]} "
            "elements whose gradients are normal, with deviations that are log-normal "
            f"({DEVIATION:g}). Second moments differ more within a block here than above, and the "
            "smallest of them are below the range of 2 and 3 bits.",
            "",
            *tables["pairs"],
            "",
        ]
    )


@one_line_errors
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    out = output_folder(study_options("benchmarks.moving_average", __doc__).parse_args(argv).out)
    frame = pd.DataFrame(rows())
    frame["value"] = [float(f"{value:.5g}") for value in frame["value"]]
    command, pairs = command_line("benchmarks.moving_average", []), listed()
    return written(out, "moving-average", page(frame, pairs, log_normal(pairs), command), frame)


if __name__ == "__main__":
    sys.exit(main())
