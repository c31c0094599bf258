"""States on disk, for the tests of sweeps."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from qmaps.capture import CapturedStates, load
from qmaps.capture.recorder import write
from qmaps.sweep.plan import Item, Spec, items_of, sweep_digest

SPECS = [
    "B128/DE@4s", "B128/DE@4s + B128/DE-0@4u", "B2048/quantile@8s + rank1/linear@4u",
    "B128/lloyd@4s + B32x8/linear@4u", "tensor/DE@8s + logB128/log2@4u", "row/linear@4s + 32-bit",
]  # fmt: skip
SHAPES = {"a": (300, 201), "b": (5000,), "c": (250, 400), "first": (90, 60), "e": (70, 70)}


def tensors() -> dict[str, dict[str, torch.Tensor]]:
    """Moments of five parameters, one without a second; two are large enough for two threads."""
    g = torch.Generator().manual_seed(0)
    states = {}
    for name, shape in SHAPES.items():
        m = torch.randn(shape, generator=g) * 1e-3
        v = (torch.randn(shape, generator=g) * torch.exp(torch.randn(shape, generator=g))) ** 2
        m.view(-1)[:5] = 0
        states[name] = {"exp_avg": m, "exp_avg_sq": v * 1e-6}
    del states["first"]["exp_avg_sq"]
    return states


def on_disk(folder: Path) -> Path:
    """The path of a snapshot with the states of `tensors`."""
    return write(CapturedStates.from_tensors(tensors(), step=7), folder / "states")


def plan(path: Path, specs: Sequence[Spec], **options: Any) -> list[Item]:
    """The items of a sweep of states on disk."""
    return items_of(load(path), specs, **options)


def digest(path: Path, specs: Sequence[Spec], **options: Any) -> str:
    """The digest of a sweep of states on disk."""
    size = options.get("min_quantized_size", 4096)
    return sweep_digest(plan(path, specs, **options), load(path), size)


def same(actual: pd.DataFrame, expected: pd.DataFrame) -> None:
    """Compare rows, columns and bits of two frames."""
    pd.testing.assert_frame_equal(actual, expected, check_exact=True)


@dataclass(frozen=True)
class Deadly(Item):
    """An item that kills its worker as often as `lives` says; `place` holds the count."""

    place: str = ""
    lives: int = 0

    def measure(self, states: CapturedStates) -> pd.DataFrame:
        died = Path(self.place)
        count = len(died.read_text()) if died.exists() else 0
        if count < self.lives:
            died.write_text("x" * (count + 1))
            os.kill(os.getpid(), signal.SIGKILL)
        return super().measure(states)
