from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure

from qmaps.capture import CapturedStates
from reproduction import run


def adam_states(seed: int, layers: int = 1) -> CapturedStates:
    """Moments like those of small layers, with outlier rows and a few tiny second moments."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    shapes = {"up": (96, 64), "down": (64, 96)}
    for number, (part, shape) in product(range(layers), shapes.items()):
        name = f"layers.{number}.{part}.weight"
        rows = torch.exp(1.5 * torch.randn(shape[0], 1, generator=generator))
        m = 1e-3 * rows * torch.randn(shape, generator=generator)
        v = (1e-3 * rows * torch.randn(shape, generator=generator)).square()
        tensors[name] = {"exp_avg": m, "exp_avg_sq": v}
    return CapturedStates.from_tensors(tensors, step=7, optimizer="AdamW")


def without_layout(figure: Figure) -> None:
    """Skip layouts; they take most of the time, and tests of figures cover them."""
    figure.set_layout_engine("none")


@pytest.fixture(scope="session")
def pages(made_once: Callable[[str, Callable[[Path], None]], Path]) -> Path:
    """The pages of a user's states."""

    def make(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Figure, "draw_without_rendering", without_layout)
            run(
                states=[adam_states(0), adam_states(1)],
                out=folder / "pages",
                runs=folder / "runs",
                command="python -m reproduction --mine",
            )

    return made_once("papers", make) / "pages"
