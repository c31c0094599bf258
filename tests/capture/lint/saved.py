"""Small checkpoints and their findings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from qmaps.capture.lint import Finding, lint_file


def trained(
    make: Any, scale: float = 1.0, dtype: torch.dtype = torch.float32, **options: Any
) -> torch.optim.Optimizer:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 12), nn.Linear(12, 8)).to(dtype)
    optimizer = make(net.named_parameters(), **options)
    for _ in range(3):
        optimizer.zero_grad()
        (net(torch.randn(4, 16, dtype=dtype)).square().mean() * scale).backward()
        optimizer.step()
    return optimizer


def findings_of(state_dict: Any, folder: Path, names: Any = None) -> list[Finding]:
    torch.save(state_dict, folder / "o.pt")
    return lint_file(folder / "o.pt", names=names)
