from __future__ import annotations

from pathlib import Path

import pytest
import torch

from qmaps.capture import CapturedStates
from qmaps.papers import run


def adam_states(seed: int) -> CapturedStates:
    """Moments as of a small layer, with outlier rows and a few tiny second moments."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in (("layers.0.up.weight", (96, 64)), ("layers.0.down.weight", (64, 96))):
        rows = torch.exp(1.5 * torch.randn(shape[0], 1, generator=generator))
        m = 1e-3 * rows * torch.randn(shape, generator=generator)
        v = (1e-3 * rows * torch.randn(shape, generator=generator)).square()
        tensors[name] = {"exp_avg": m, "exp_avg_sq": v}
    return CapturedStates.from_tensors(tensors, step=7, optimizer="AdamW")


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages of somebody's own states."""
    folder = tmp_path_factory.mktemp("papers")
    states = [adam_states(0), adam_states(1)]
    run(states=states, out=folder / "pages", runs=folder / "runs", command="qmaps papers --mine")
    return folder / "pages"
