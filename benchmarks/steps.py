"""Steps of one optimizer beside another: every rule beside 8-bit AdamW, bfloat16 beside torch.

``python -m benchmarks.steps`` steps the same parameters with each optimizer in its turn, round
after round on one thread, and prints the time of a step divided by that of the first optimizer of
its group: the median over rounds, their quartiles, and the ratio of the shortest times. The first
of ``bfloat16 parameters`` is torch's fused AdamW: it keeps its moments in bfloat16 and rounds
parameters to nearest.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.command import one_line_errors
from benchmarks.data import matrices, new_gradients, parameters
from benchmarks.rounding import begun, table
from benchmarks.timing import interleaved
from qmaps import optim

HEAD = ("optimizer", "times as long", "quartiles", "by minima")
Make = Callable[[list[Tensor]], Any]
SR: dict[str, Any] = {"stochastic_rounding": True}
MASTER: dict[str, Any] = {"master_weights": True}
SPLIT: dict[str, Any] = {"master_weights": "bf16+8"}
WHOLE: dict[str, Any] = {"master_weights": "bf16+16"}
GROUPS: dict[str, tuple[torch.dtype, dict[str, Make]]] = {
    "rules, float32 parameters": (
        torch.float32,
        {
            "AdamW8bit": optim.AdamW8bit,
            "AdamW4bit": optim.AdamW4bit,
            "AdamW4bitFactor": optim.AdamW4bitFactor,
            "AdEMAMix8bit": optim.AdEMAMix8bit,
            "Adan8bit": optim.Adan8bit,
            "LAMB8bit": optim.LAMB8bit,
            "LARS8bit(momentum=0.9)": partial(optim.LARS8bit, momentum=0.9),
            "Adafactor8bit": optim.Adafactor8bit,
            "Adafactor8bit(beta1=0.9)": partial(optim.Adafactor8bit, beta1=0.9),
            "SM3": optim.SM3,
            "SGD8bit(momentum=0.9)": partial(optim.SGD8bit, momentum=0.9),
            "RMSprop8bit": optim.RMSprop8bit,
            "Adagrad8bit": optim.Adagrad8bit,
            "Lion8bit": optim.Lion8bit,
            'AdamW("bf16 + bf16")': partial(optim.AdamW, state_quantizers="bf16 + bf16"),
            'AdamW("fp16 + fp16")': partial(optim.AdamW, state_quantizers="fp16 + fp16"),
            'AdamW("bf16+sr + bf16+sr")': partial(
                optim.AdamW, state_quantizers="bf16+sr + bf16+sr"
            ),
        },
    ),
    "bfloat16 parameters": (
        torch.bfloat16,
        {
            "torch.optim.AdamW(fused=True)": partial(torch.optim.AdamW, fused=True),
            "AdamW": optim.AdamW,
            'AdamW("bf16 + bf16")': partial(optim.AdamW, state_quantizers="bf16 + bf16"),
            "AdamW(stochastic_rounding=True)": partial(optim.AdamW, **SR),
            "AdamW8bit": optim.AdamW8bit,
            "AdamW8bit(stochastic_rounding=True)": partial(optim.AdamW8bit, **SR),
            "AdamW8bit(master_weights=True)": partial(optim.AdamW8bit, **MASTER),
            'AdamW8bit(master_weights="bf16+8")': partial(optim.AdamW8bit, **SPLIT),
            'AdamW8bit(master_weights="bf16+16")': partial(optim.AdamW8bit, **WHOLE),
            "AdamW4bit": optim.AdamW4bit,
            "AdamW4bit(stochastic_rounding=True)": partial(optim.AdamW4bit, **SR),
            "AdamW4bit(master_weights=True)": partial(optim.AdamW4bit, **MASTER),
        },
    ),
}
"""Functions that make the optimizers of a group; the first one is the reference."""


def measure(scale: float, rounds: int) -> dict[str, dict[tuple[str, ...], list[float]]]:
    """Seconds of each round, by group and optimizer."""
    ratios: dict[str, dict[tuple[str, ...], list[float]]] = {}
    for group, (dtype, makers) in GROUPS.items():
        params = parameters(matrices(scale), dtype)
        works = {name: make(params).step for name, make in makers.items()}
        seconds, failed = interleaved(works, rounds, refresh=new_gradients(params))
        for error in failed.values():
            raise error
        ratios[group] = {(name,): seconds[name] for name in makers}
    return ratios


def lines(ratios: Mapping[str, Mapping[tuple[str, ...], Sequence[float]]]) -> list[str]:
    """A table for each group, in Markdown."""
    made = []
    for group, seconds in ratios.items():
        (first,), times = next(iter(seconds.items()))
        made += [f"{group} (a step of {first}: {1e3 * statistics.median(times):.1f} ms)", ""]
        made += [*table(seconds, HEAD), ""]
    return made


@one_line_errors
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = begun("benchmarks.steps", __doc__, 51, argv)
    print("\n".join(lines(measure(options.scale, options.rounds))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
