"""Training with messages in four data types, small."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch

import qmaps
from benchmarks import parallel_training
from benchmarks.parallel_training import FULL, TYPES

pytestmark = pytest.mark.slow


def test_every_type_trains_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--net", "convolutional", "--seeds", "2", "--steps", "3", "--out", str(tmp_path)]
    given += ["--runs", str(tmp_path / "runs")]
    assert parallel_training.main(given) == 0
    frame = pd.read_csv(tmp_path / "parallel-training.csv")
    assert len(frame) == 2 * 2 * 5
    assert set(frame["type"]) == {FULL, *TYPES}
    both = frame[frame["type"] == FULL].pivot(index="seed", columns="parallel", values="error")
    assert (both["data"] == both["model"]).all()
    curves = pd.read_csv(tmp_path / "parallel-training-curves.csv")
    assert len(curves) == 2 * 5
    for name in ("train", "test"):
        assert curves[name].between(0, 1).all()
    means = frame.groupby(["parallel", "type"])["error"].mean()
    for row in curves.itertuples():
        assert row.test == pytest.approx(means[row.parallel, row.type], abs=1e-5)
    files = sorted((tmp_path / "runs").iterdir())
    assert len(files) == 2 * (1 + 2 * 4)
    stamps = [file.stat().st_mtime_ns for file in files]
    assert parallel_training.main(given) == 0
    assert stamps == [file.stat().st_mtime_ns for file in files]
    page = (tmp_path / "parallel-training.md").read_text()
    assert page.count("\n| convolutional") == 10
    given[5] = "4"
    capsys.readouterr()
    assert parallel_training.main(given) == 2
    file = tmp_path / "runs" / "convolutional-data-32-bit-seed0.json"
    assert capsys.readouterr().err == (
        f"error: {str(file)!r} holds a run with steps=3; 4 was asked for\n"
    )


def test_messages_are_quantized_both_ways() -> None:
    q = qmaps.quantizer("tensor/linear0@2s")  # -1, 0 and 1
    x = torch.tensor([0.2, -1.0, 0.9], requires_grad=True)
    send = parallel_training.Send(q)
    y = send(x)
    assert y.tolist() == [0.0, -1.0, 1.0]
    y.backward(torch.tensor([4.0, 1.0, -3.0]))
    assert x.grad is not None
    assert x.grad.tolist() == [4.0, 0.0, -4.0]
    assert send.eval()(x) is x
    net = parallel_training.split(parallel_training.paper_net(), q)
    assert sum(isinstance(layer, parallel_training.Send) for layer in net) == 3


def test_the_tests_of_no_difference() -> None:
    rows = [
        ("data", kind, seed, 0.1 + 0.01 * seed + (0.2 if kind == "linear" else 0.001 * (seed == 1)))
        for kind in (FULL, *TYPES)
        for seed in range(3)
    ]
    frame = pd.DataFrame(rows, columns=["parallel", "type", "seed", "error"]).assign(net="n")
    table, tests = parallel_training.summary(frame)
    row = table.set_index("type").loc["linear"]
    assert row["difference"] == pytest.approx(0.2 - 0.001 / 3)
    assert row["p"] < 1e-4
    assert tests["p"].item() < 1e-4
    page = parallel_training.markdown(frame.assign(steps=1), "command")
    assert "- n, data parallel: F = " in page
    assert ": a difference" in page
    same = frame[frame["type"] != "linear"]
    assert parallel_training.summary(same)[1]["p"].item() > 0.9
