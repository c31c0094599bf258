"""Moments of published formats and presets over thousands of steps, in simulations.

``python -m benchmarks.fall`` writes reports/fall.md. Of each pair on docs/formats.md, the presets,
and pairs with ``+qsr``: the second moment after a fall of gradients, and the noise in the first.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.command import command_line, one_line_errors
from benchmarks.formats import PRESETS as FORMER
from benchmarks.formats import formats
from benchmarks.markdown import markdown
from qmaps.algebra.pair import Pair
from qmaps.algebra.philox import RoundingKey
from qmaps.analyze.replay.averages import accumulated_noise, fall_ratios
from qmaps.engines.threads import one_thread
from qmaps.optim.presets import PRESETS, pair_of
from qmaps.storage.files import output_folder
from reproduction.report_file import write_report

BETAS = (0.9, 0.999)
SHAPE = (16, 256)
DEVIATION = 0.7  # of the logarithms of the gradients' deviations
SPREAD = {
    "8 bits with `geometric` and `+qsr`": "B256/DE-sym@8s + B256/geometric@8u+qsr",
    "4 bits with `geometric` and `+qsr`": "B128/DE-sym@4s + B128/geometric@4u+qsr",
    "3 bits with `geometric` and `+qsr`": "B128/DE-sym@3s + B128/geometric@3u+qsr",
}


def pairs() -> dict[str, Pair]:
    """The pairs by method."""
    presets = {f"preset `{name}`": name for name in PRESETS if name != "32bit"}
    listed = {name: spec for name, spec in formats().items() if name not in FORMER}
    return {name: pair_of(spec) for name, spec in {**presets, **SPREAD, **listed}.items()}


@one_thread()
def measured(of: dict[str, Pair]) -> dict[str, tuple[float, float]]:
    """The fall ratio of the second moment and the accumulated noise of the first, by method."""
    draw = torch.Generator().manual_seed(0)
    deviations = (DEVIATION * torch.randn(SHAPE, generator=draw)).exp()
    key = RoundingKey(seed=0)
    first = list(dict.fromkeys(pair.first for pair in of.values() if pair.first is not None))
    second = list(dict.fromkeys(pair.second for pair in of.values() if pair.second is not None))
    noise = dict(zip(first, accumulated_noise(deviations, first, BETAS[0], key), strict=True))
    falls = fall_ratios(deviations.square(), second, BETAS[1], key)
    ratios = dict(zip(second, falls, strict=True))
    return {
        name: (ratios[pair.second], noise[pair.first])
        for name, pair in of.items()
        if pair.first is not None and pair.second is not None
    }


def page(of: dict[str, Pair], found: dict[str, tuple[float, float]], command: str) -> str:
    """The report."""
    rows = [
        (name, f"`{of[name].spec}`", f"{v:.2g}" if v < 100 else f"{v:.0f}", f"{m:.2g}")
        for name, (v, m) in found.items()
    ]
    return "\n".join(
        [
            "# Moments of quantized states over thousands of steps",
            "",
            f"`{command}`",
            "",
            "`v after fall`: the gradients of every other element, but not the largest of each 16, "
            f"fall tenfold; its second moment after {3 / (1 - BETAS[1]):,.0f} steps at beta2 = "
            f"{BETAS[1]:g}, divided by the exact one, as a geometric mean of those that are not 0. "
            "1 is right, and 17 is a second moment that did not fall. `noise of m`: what quantizing"
            f" adds to a moving average of noise at beta1 = {BETAS[0]:g}, as a mean square by that "
            "of the average; 0 is right. Both are the columns `fall_ratio_second` and "
            "`accumulated_noise_first` of `qmaps.replay.run`, here for "
            f"{SHAPE[0]} x {SHAPE[1]} elements whose gradients are normal, with deviations that "
            f"are log-normal ({DEVIATION:g}).",
            "",
            *markdown(("method", "pair", "v after fall", "noise of m"), rows),
            "",
        ]
    )


@one_line_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fall", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("reports"))
    options = parser.parse_args(arguments)
    of = pairs()
    text = page(of, measured(of), command_line("benchmarks.fall", arguments))
    write_report(output_folder(options.out) / "fall.md", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
