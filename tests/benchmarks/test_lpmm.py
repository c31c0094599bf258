"""The ablation of low-precision model memory, at the size of a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from benchmarks.lpmm import underflow
from benchmarks.lpmm.__main__ import Contender, grid, main, markdown, summary
from qmaps.lab import workloads
from qmaps.lpmm import LowPrecisionParameter
from reproduction import figures

pytestmark = pytest.mark.slow


def test_the_headline_is_written_and_goes_on_from_what_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["digits", "--headline", "--seeds", "2", "--steps", "3"]
    given += ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path)]
    assert main(given) == 0
    first = (tmp_path / "headline.csv").read_text()
    assert main(given) == 0
    assert (tmp_path / "headline.csv").read_text() == first
    assert "4/4 digits 12-8-8 stochastic N=1 seed 1: " in capsys.readouterr().out
    page = (tmp_path / "headline.md").read_text()
    assert "| 32 bits | - | 1 | 2 |" in page
    assert "| 12 bits | stochastic | 1 | 2 |" in page
    frame = pd.read_csv(tmp_path / "headline.csv")
    assert abs(frame["loss"].iloc[0] - frame["loss"].iloc[2]) < 0.05
    assert frame["loss"].iloc[0] != frame["loss"].iloc[2]


def test_the_grid_is_that_of_the_tables() -> None:
    labels = [contender.label for contender in grid(16)]
    assert len(labels) == 5 + 3 * 6
    assert labels[:2] == ["full N=1", "full N=2"]
    assert "8-8-8 nearest N=1" in labels
    assert "10-8-8 stochastic N=16" in labels


def test_a_contender_keeps_its_model_as_it_says() -> None:
    work = workloads.get("digits")
    model = work.model(0)
    optimizer: Any = Contender(10, False, 4).make(model, work)
    weight = model[0].weight
    assert isinstance(weight, LowPrecisionParameter)
    assert weight.codes.quantizer.spec == "B2048/linear0@10s"
    assert weight.accumulator is not None
    assert weight.accumulator.total.quantizer.spec == "B2048/linear0@8s"
    assert optimizer.accumulation_steps == 4
    assert optimizer.memory().rows[0].quantizer == "B2048/DE@8s"
    plain = work.model(0)
    Contender().make(plain, work)
    assert not isinstance(plain[0].weight, LowPrecisionParameter)


def test_differences_are_taken_to_full_precision_of_the_same_n() -> None:
    rows = [
        {"workload": "w", "parameters": p, "rounding": r, "N": n, "seed": s, "loss": loss}
        for p, r, n, s, loss in (
            ("32", "", 1, 0, 1.0), ("32", "", 1, 1, 2.0), ("32", "", 2, 0, 3.0),
            ("32", "", 2, 1, 5.0), ("8", "stochastic", 2, 0, 4.0), ("8", "stochastic", 2, 1, 6.5),
        )
    ]  # fmt: skip
    last = summary(pd.DataFrame(rows)).iloc[-1]
    assert last["difference"] == pytest.approx(1.25)
    assert last["in_spreads"] == pytest.approx(1.25 / 2**0.5)


def test_the_figures_of_small_updates_are_made_and_runs_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(underflow, "BITS", (12, 8))
    given = ["digits", "--steps", "4", "--micro-batches", "2", "--seeds", "3"]
    given += ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path)]
    assert underflow.main(given) == 0
    for name in ("bin-changes", "update-histogram", "convergence", "bound"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    drawn = {path.stem: pd.read_csv(path) for path in tmp_path.glob("*.csv")}
    assert set(drawn["bin-changes"]["setting"]) == {"nearest", "stochastic", "stochastic, N = 2"}
    assert figures.update_histogram(drawn["update-histogram"]).axes
    assert drawn["convergence"]["unit"].unique() == ["nats per image"]
    by_seed = drawn["convergence"].groupby("setting")["seed"].unique()
    assert by_seed["stochastic"].tolist() == by_seed["nearest"].tolist() == [0, 1, 2]
    assert by_seed["stochastic, N = 2"].tolist() == [0]
    ends = drawn["convergence"].query("setting == 'nearest' and split == 'val' and step == 4")
    assert ends.groupby("width")["loss"].nunique().tolist() == [3, 3]
    assert drawn["bound"]["step"].unique().tolist() == [1, 2, 3, 4]
    table = pd.read_csv(tmp_path / "underflow.csv")
    assert table["width"].tolist() == ["12 bits"] * 3 + ["8 bits"] * 3
    assert table["N"].tolist() == [1, 1, 2] * 2
    # delta is 16 times larger, so that the same updates are smaller in its unit.
    nearest = table[table["setting"] == "nearest"]
    assert nearest["wanted_change"].iloc[0] == pytest.approx(
        nearest["wanted_change"].iloc[1] * 2047 / 127, rel=0.1
    )
    assert nearest["underflow"].iloc[0] < nearest["underflow"].iloc[1]
    page = (tmp_path / "underflow.md").read_text()
    assert "| 8 bits | stochastic | 2 |" in page
    monkeypatch.setattr(underflow, "observed", None)  # would fail if a run were made again
    monkeypatch.setattr(underflow, "save", lambda *_: None)  # the same pictures
    assert underflow.main(given) == 0
    assert (tmp_path / "underflow.md").read_text() == page
    one = next((tmp_path / "runs").glob("digits-4-of-2-12*nearest*"))
    (one / "done").unlink()
    with pytest.raises(TypeError):
        underflow.main(given)


def test_kept_points_of_curves_are_those_of_all() -> None:
    steps = range(1, 21)
    rows = [
        {"step": step, "split": split, "metric": "loss", "value": 1 / step, "width": "8 bits",
         "setting": "nearest", "N": 1, "seed": seed}
        for seed in (0, 1) for split in ("train", "val") for step in steps
    ]  # fmt: skip
    both = underflow.curves(pd.DataFrame(rows))
    frame = both[both["seed"] == 1]
    train = frame[frame["split"] == "train"]
    assert train["step"].tolist() == [1, 5, 10, 15, 20]
    assert train["smoothed"].iloc[1] == pytest.approx(sum(1 / step for step in range(1, 6)) / 5)
    assert len(frame[frame["split"] == "val"]) == 20
    bound = pd.DataFrame({"step": range(1, 301), "gap": 1.0})
    kept = underflow.thinned(bound)["step"].tolist()
    assert kept[:4] == [1, 2, 3, 4]
    assert kept[-1] == 300
    assert len(kept) < 50


def test_a_summary_weighs_elements_alike() -> None:
    about = {"width": "8 bits", "setting": "nearest", "N": 1}
    rows = [
        {"step": step, "numel": numel, "bin_change": b, "wanted_change": w, "updated": u,
         "underflow": f, **about}
        for step, numel, b, w, u, f in (
            (1, 10, 9.0, 9.0, 10, 1.0),  # of the first half, left out
            (2, 10, 1.0, 2.0, 10, 0.5), (2, 30, 3.0, 4.0, 0, float("nan")),
        )
    ]  # fmt: skip
    losses = pd.DataFrame([{"step": 2, "split": "val", "metric": "loss", "value": 0.5, **about}])
    (row,) = underflow.summary(pd.DataFrame(rows), losses, 2).to_dict("records")
    assert row["bin_change"] == pytest.approx((10 * 1 + 30 * 3) / 40)
    assert row["wanted_change"] == pytest.approx((10 * 2 + 30 * 4) / 40)
    assert row["underflow"] == 0.5
    assert row["loss"] == 0.5


def test_a_page_says_what_the_paper_says_and_whether_it_holds() -> None:
    full = [("32", "", n, seed, 1.0 + 0.1 * seed) for n in (1, 2) for seed in (0, 1)]
    few = [
        (bits, rounding, n, seed, loss + 0.1 * seed)
        for bits, rounding, n, loss in (
            ("12", "nearest", 1, 1.0), ("12", "stochastic", 1, 1.01),
            ("8", "nearest", 1, 1.5), ("8", "stochastic", 1, 1.3), ("8", "stochastic", 2, 1.2),
        )
        for seed in (0, 1)
    ]  # fmt: skip
    names = ["parameters", "rounding", "N", "seed", "loss"]
    frame = pd.DataFrame([*full, *few], columns=names).assign(workload="w", steps=1)
    page = markdown(summary(frame), "command")
    assert "- reproduced: 12/8/8 bits" in page
    assert "- reproduced: 8 bits rounded to nearest" in page
    assert "- **differs**: Stochastic rounding brings 8 bits back (within two spreads).\n" in page
    assert "- reproduced: Micro-batches" in page
    assert "What the paper says" not in markdown(summary(frame[frame["N"] == 1]), "command")
