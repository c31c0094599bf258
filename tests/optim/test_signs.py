"""Cost of a map with +1 and without -1."""

from __future__ import annotations

import pytest
import torch

from qmaps.optim import AdamW


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


@pytest.mark.parametrize(("bits", "ratio"), [(8, 0.95), (4, 0.545), (3, 0.38)])
def test_negative_maxima(bits: int, ratio: float) -> None:
    former, now = f"{bits}bit-0.3", f"{bits}bit"
    assert -moved(-1.0, former) / moved(1.0, former) == pytest.approx(ratio, abs=0.005)
    assert -moved(-1.0, now) == pytest.approx(moved(1.0, now), rel=1e-5)
