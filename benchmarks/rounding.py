"""Cost of roundings and normalizers in a step of AdamW.

``python -m benchmarks.rounding`` steps the same parameters with each pair of quantizers in its
turn, round after round on one thread, and prints how many times as long a step takes as with the
plain pair of its group: the median over rounds, their quartiles, and the ratio of the shortest
times. `QMAPS_ISA=avx2` before the command chooses the instruction set.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from benchmarks import machine
from benchmarks.command import count, one_line_errors, positive
from benchmarks.data import matrices, new_gradients, parameters
from benchmarks.markdown import markdown
from benchmarks.timing import Work, interleaved, quartiles
from qmaps.optim import AdamW

HEAD = ("first moment", "second moment", "times as long", "quartiles", "by minima")
Pair = tuple[str, str]
GROUPS: dict[str, tuple[Pair, ...]] = {
    "rounding, 4 bits": (
        ("B128/DE@4s", "B128/DE-0@4u"),
        ("B128/DE@4s+sr", "B128/DE-0@4u"),
        ("B128/DE@4s+sr", "B128/DE-0@4u+sr"),
    ),
    "rounding, 8 bits": (
        ("B256/DE@8s", "B256/DE-0@8u"),
        ("B256/DE@8s+sr", "B256/DE-0@8u"),
        ("B256/DE@8s+sr", "B256/DE-0@8u+sr"),
    ),
    "scales": (
        ("B128/DE@4s", "B128/linear@4u"),
        ("B128/DE@4s", "rank1/linear@4u"),
        ("B128/DE@4s", "B128&rank1/linear@4u"),
        ("B128/DE@4s", "rank1x8/linear@4u"),
        ("B128/DE@4s", "B128x8/linear@4u"),
        ("B128x8/DE@4s", "B128x8/linear@4u"),
    ),
    "powers of blocks": (
        ("B128/e4m3@8s", "B128/e4m3@8u"),
        ("powB128r100352/e4m3@8s", "B128/e4m3@8u"),
        ("powB128r100352/e4m3@8s", "powB128r100352/e4m3@8u"),
    ),
    "scales of small blocks": (
        ("B32/DE@4s", "B32/linear@4u"),
        ("B32x8/DE@4s", "B32x8/linear@4u"),
    ),
}
"""Pairs of quantizers, the plain one first."""


def stepper(params: list[Tensor], pair: Pair) -> Work:
    """Steps of all parameters with a pair of quantizers, one a call."""
    return AdamW(params, state_quantizers=dict(zip(AdamW.states, pair, strict=True))).step


def measure(scale: float, rounds: int) -> dict[str, dict[Pair, list[float]]]:
    """Seconds of each round, by group and pair."""
    params = parameters(matrices(scale))
    works = {
        f"{group} {pair}": partial(stepper, params, pair)()
        for group, pairs in GROUPS.items()
        for pair in pairs
    }
    seconds, failed = interleaved(works, rounds, refresh=new_gradients(params))
    for error in failed.values():
        raise error
    return {
        group: {pair: seconds[f"{group} {pair}"] for pair in pairs}
        for group, pairs in GROUPS.items()
    }


def table(
    ratios: Mapping[tuple[str, ...], Sequence[float]], head: tuple[str, ...] = HEAD
) -> list[str]:
    """Ratios to the first row, round by round, in Markdown."""
    plain = next(iter(ratios.values()))
    rows: list[tuple[str, ...]] = []
    for names, seconds in ratios.items():
        summary = quartiles([mine / its for mine, its in zip(seconds, plain, strict=True)])
        rows.append((
            *(f"`{name}`" for name in names),
            f"{summary['median']:.2f}",
            f"{summary['q1']:.2f} to {summary['q3']:.2f}",
            f"{min(seconds) / min(plain):.2f}",
        ))  # fmt: skip
    return markdown(head, rows)


def begun(
    module: str, doc: str | None, rounds: int, argv: Sequence[str] | None
) -> argparse.Namespace:
    """Set one thread; return the options of a command for steps of matrices, and print the machine.

    Args:
        module: module of the command.
        doc: its description.
        rounds: default of ``--rounds``.
        argv: its arguments; None for those of this process.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=doc)
    parser.add_argument("--rounds", type=count, default=rounds, help=f"default {rounds}")
    parser.add_argument(
        "--scale",
        type=positive,
        default=1 / 16,
        help="of four matrices (default 1/16: 1024 x 1024)",
    )
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    info = machine.about(argv, module)
    print(f"{info['machine']['processor']}, {info['isa']}\n")
    return options


@one_line_errors
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = begun("benchmarks.rounding", __doc__, 101, argv)
    for group, ratios in measure(options.scale, options.rounds).items():
        plain = next(iter(ratios.values()))
        print(f"{group} (a plain step: {1e3 * statistics.median(plain):.1f} ms)\n")
        print("\n".join(table(ratios)), end="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
