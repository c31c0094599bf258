"""The table of approximation errors, small."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch

from benchmarks import approximation

pytestmark = pytest.mark.slow


def test_the_table_beside_the_papers(tmp_path: Path) -> None:
    given = ["--samples", "20000", "--steps", "3", "--out", str(tmp_path)]
    assert approximation.main(given) == 0
    frame = pd.read_csv(tmp_path / "approximation.csv")
    assert len(frame) == 5 * 10
    page = (tmp_path / "approximation.md").read_text()
    assert page.count("\n| ") == 2 + len(frame)
    samples = frame[frame["data"].str.startswith(("uniform", "normal"))]
    relative = samples.pivot(index="data", columns="type", values="mean_rel_error")
    assert (relative.idxmin(axis=1) == "dynamic tree").all()
    for name in ("dynamic tree", "linear", "mantissa", "static tree, 4 levels"):
        rows = samples[samples["type"] == name]
        assert (rows["paper_rel"] / rows["mean_rel_error"]).between(1.1, 1.8).all(), name
        assert (rows["paper_rel"] / rows["search_rel_error"]).between(0.8, 1.25).all(), name


def test_types_without_normalization_are_the_papers_example() -> None:
    for name, expected in (("mantissa", 0.2), ("static tree", 0.23125)):
        q = approximation.quantizer(name, 0.9)
        x = torch.tensor([0.2345678])
        assert q.quantize(x).dequantize().item() == pytest.approx(expected, rel=1e-6)
    x = torch.tensor([0.0, 0.5, -70.0])
    absolute, relative = approximation.errors("mantissa", x)
    assert (absolute, relative) == (0.0, 0.0)


def test_bad_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        approximation.main(["--samples", "0"])
    assert "--samples and --steps must be at least 1" in capsys.readouterr().err
