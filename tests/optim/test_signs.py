"""Cost of a map that holds +1 and no -1; docs/choosing.md has the numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from qmaps.optim import AdamW

DOCS = (Path(__file__).parents[2] / "docs" / "choosing.md").read_text()


def moved(sign: float, quantizers: str) -> float:
    """Distance of the largest elements of their blocks after 100 equal gradients."""
    param = torch.nn.Parameter(torch.zeros(64, 128))
    gradient = torch.full((64, 128), sign * 1e-3)
    gradient.view(-1)[::256] = sign
    optimizer = AdamW([param], weight_decay=0, state_quantizers=quantizers)
    for _ in range(100):
        param.grad = gradient.clone()
        optimizer.step()
    return float(param.detach().view(-1)[::256].mean())


@pytest.mark.parametrize(
    ("bits", "former", "ratio", "sentence"),
    [
        (
            8,
            "B256/DE@8s + B256/DE-0@8u",
            0.95,
            "its mirror image has in 4 bits, 0.95 in 8 and 0.38 in 3",
        ),
        (4, "B128/DE@4s+sr + B128/DE-0@4u", 0.545, "has moved 0.55 of what"),
        (3, "B128/DE@3s+sr + B128/DE-0@3u", 0.38, "0.38 in 3"),
    ],
)
def test_negative_maxima(bits: int, former: str, ratio: float, sentence: str) -> None:
    assert -moved(-1.0, former) / moved(1.0, former) == pytest.approx(ratio, abs=0.005)
    assert -moved(-1.0, f"{bits}bit") == pytest.approx(moved(1.0, f"{bits}bit"), rel=0.01)
    assert sentence in DOCS
