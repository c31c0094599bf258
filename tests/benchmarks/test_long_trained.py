"""The report on states of a long training, from a checkpoint of a small model."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import nn

from benchmarks import long_trained

pytestmark = pytest.mark.slow

PAIRS = ("B256/DE@8s + B256/DE-0@8u", "B128/DE@4s + B128/DE@4u")


class Small(nn.Module):
    """One matrix, and a row of it that no gradient reaches any more."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(96, 64, bias=False)


def test_the_page_has_ranges_and_zero_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = Small()
    optimizer = torch.optim.Adam(model.parameters())
    scale = torch.logspace(-6, 0, 96)
    for _ in range(3):
        model.linear.weight.grad = torch.randn(64, 96) * scale
        optimizer.step()
    (state,) = optimizer.state.values()
    state["exp_avg_sq"][0] = 1e-42
    torch.save({"optimizer_state": optimizer.state_dict()}, tmp_path / "checkpoint.pt")
    monkeypatch.setattr(long_trained, "package_file", lambda *_: tmp_path / "checkpoint.pt")
    monkeypatch.setattr(long_trained, "Encoder", Small)
    monkeypatch.setattr(long_trained, "PAIRS", PAIRS)
    monkeypatch.setattr(long_trained, "DRAWN", PAIRS[:1])
    monkeypatch.setattr(long_trained, "SECONDS", ("B128/DE@4u",))
    assert long_trained.main(["--out", str(tmp_path)]) == 0
    text = (tmp_path / "long-trained.md").read_text(encoding="utf-8")
    assert "| `linear.weight` | 1.0e-21 |" in text
    assert f"| {1 / 64:.2%} |" in text
    assert (
        f"1 of 2 pairs decode second moments to 0 where the first moment is not: `{PAIRS[1]}`"
        in text
    )
    rows = pd.read_csv(tmp_path / "long-trained.csv")
    assert set(rows["quantizer"]) == set(PAIRS)
    assert rows["one_step"].is_monotonic_increasing
    assert (tmp_path / "long-trained.png").stat().st_size > 1000
