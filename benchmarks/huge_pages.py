"""Effect of asking for huge pages: new tensors, first steps and later steps.

``python -m benchmarks.huge_pages`` does each work with `qmaps.engines.huge_pages` asking the system
and without, in turns on one thread, and prints how many times as long it takes with: the median
over rounds, their quartiles, and the ratio of the shortest times.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from benchmarks.command import one_line_errors
from benchmarks.data import matrices, new_gradients, normal, parameters, quantizer
from benchmarks.rounding import begun, table
from benchmarks.timing import Work, interleaved
from qmaps import optim
from qmaps.engines import huge_pages

HEAD = ("work", "times as long", "quartiles", "by minima")
OPTIMIZERS: tuple[Callable[[list[Tensor]], torch.optim.Optimizer], ...] = (
    optim.AdamW,
    optim.AdamW8bit,
    optim.AdamW4bit,
)


@contextmanager
def asking(asks: bool) -> Iterator[None]:
    """Let new tensors ask for huge pages, or not, inside the block."""
    before = huge_pages.LEAST
    huge_pages.LEAST = before if asks else sys.maxsize
    try:
        yield
    finally:
        huge_pages.LEAST = before


def either(work: Work) -> dict[bool, Work]:
    """A work without and with huge pages."""

    def done(asks: bool) -> object:
        with asking(asks):
            return work()

    return {asks: lambda asks=asks: done(asks) for asks in (False, True)}


def works(scale: float, params: list[Tensor]) -> dict[str, dict[bool, Work]]:
    """Each work without and with huge pages, by its name."""
    x = normal((max(1 << 14, int((1 << 24) * scale)),))
    works_by_name: dict[str, dict[bool, Work]] = {}
    for spec in ("B256/DE@8s", "B128/DE@4s"):
        q = quantizer(spec)
        t = q.quantize(x)
        works_by_name[f"{spec}, dequantize into a new tensor"] = either(t.dequantize)
        works_by_name[f"{spec}, quantize into a new tensor"] = either(lambda q=q: q.quantize(x))
    for make in OPTIMIZERS:
        name = getattr(make, "__name__", "")
        works_by_name[f"{name}, first step"] = either(lambda make=make: make(params).step())
        later = {}
        for asks in (False, True):
            optimizer = make(params)
            with asking(asks):
                optimizer.step()
            later[asks] = optimizer.step
        works_by_name[f"{name}, later step"] = later
    return works_by_name


def measure(scale: float, rounds: int) -> dict[str, dict[bool, list[float]]]:
    """Seconds of each round without and with huge pages, by work."""
    params = parameters(matrices(scale))
    refresh = new_gradients(params)
    refresh(0)
    ratios = {}
    for name, both in works(scale, params).items():
        seconds, failed = interleaved(
            {str(asks): work for asks, work in both.items()}, rounds, refresh=refresh
        )
        for error in failed.values():
            raise error
        ratios[name] = {asks: seconds[str(asks)] for asks in both}
    return ratios


@one_line_errors
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = begun("benchmarks.huge_pages", __doc__, 21, argv)
    rows: list[str] = []
    for name, seconds in measure(options.scale, options.rounds).items():
        *head, _, ratio = table({("without",): seconds[False], (name,): seconds[True]}, HEAD)
        rows += [ratio] if rows else [*head, ratio]
    print("\n".join(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
