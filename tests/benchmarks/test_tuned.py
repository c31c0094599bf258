"""The benchmark of optimizers at their own best rates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from benchmarks import tuned
from benchmarks.families import FAMILIES
from qmaps.lab import workloads

pytestmark = pytest.mark.slow

RATE = workloads.get("digits").lr
ADAMW = ("AdamW", "32bit")


def train(monkeypatch: pytest.MonkeyPatch, losses: dict[float, float]) -> list[float]:
    """Put a table of losses by factor in the place of training; returns what is trained."""
    trained = []

    def run(work: Any, name: str, width: str, seed: int, out: Path) -> dict[str, Any]:
        factor = work.lr / RATE
        assert (name, width, out.name) == (*ADAMW, f"{factor:g}")
        trained.append(factor)
        return {"workload": work.name, "optimizer": name, "width": width, "seed": seed,
                "loss": losses[factor] + seed}  # fmt: skip

    monkeypatch.setattr(tuned, "run", run)
    return trained


@pytest.mark.parametrize(
    ("losses", "best"),
    [
        ({1: 3, 4: 1, 16: 2, 2: 1.5, 8: 0.5}, 8),  # inside; then between the neighbours
        ({1: 1, 4: 2, 16: 3, 0.25: 2, 0.5: 0.5, 2: 4}, 0.5),  # at the low end
        ({1: 3, 4: 2, 16: 1, 64: 1.5, 8: 4, 32: 5}, 16),  # at the high end
        ({1: float("nan"), 4: 1, 16: 2, 2: 3, 8: 4}, 4),  # the first rate diverges
    ],
)
def test_a_best_rate_lies_inside_the_rates_tried(
    losses: dict[float, float], best: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = {**dict.fromkeys((factor * 2.0**n for factor in losses for n in (-1, 1)), 9.0),
              **losses}  # fmt: skip
    trained = train(monkeypatch, losses)
    rows = pd.DataFrame(tuned.tune("digits", ADAMW, 2, tmp_path))
    assert len(rows) == len(trained) == 2 * rows["rate"].nunique()  # nothing is trained twice
    found = tuned.best(rows)
    assert found["rate"].unique() == pytest.approx([best * RATE * FAMILIES["AdamW"].rate])
    assert min(trained) < best < max(trained)
    assert {best / 2, best * 2} <= set(trained)


def test_a_rate_that_only_gets_better_ends_at_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    factors = [2.0**n for n in range(-12, 13)]
    trained = train(monkeypatch, {factor: -factor for factor in factors})
    tuned.tune("digits", ADAMW, 1, tmp_path)
    assert max(trained) == tuned.LIMITS[1]


def frame() -> pd.DataFrame:
    """Two rows at two rates each, of which one run diverges."""
    losses = {("AdamW", 0.1): [2.0, 3.0], ("AdamW", 0.2): [1.0, float("nan")],
              ("SM3", 0.1): [5.0, 6.0], ("SM3", 0.4): [4.0, 4.5]}  # fmt: skip
    return pd.DataFrame(
        {"workload": "digits", "optimizer": name, "width": "32bit", "seed": seed, "rate": rate,
         "loss": loss}
        for (name, rate), of_it in losses.items() for seed, loss in enumerate(of_it)
    )  # fmt: skip


def test_a_rate_at_which_a_seed_diverges_is_not_the_best() -> None:
    found = tuned.best(frame())
    assert found.groupby("optimizer")["rate"].first().to_dict() == {"AdamW": 0.1, "SM3": 0.4}
    assert set(found["rates"]) == {2}


def test_the_page_has_each_row_at_its_own_rate() -> None:
    text = tuned.markdown(frame(), "COMMAND")
    assert "\n`COMMAND`\n" in text
    assert "| AdamW | 32bit | 0.1 | 2 | 2.5000 | 0.7071 | 2 |" in text
    assert "| SM3 | 32bit | 0.4 | 2 | 4.2500 | 0.3536 | 2 |" in text


def test_the_command_writes_the_runs_and_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tune(work: str, row: tuple[str, str], seeds: int, runs: Path) -> list[dict[str, Any]]:
        assert (seeds, runs) == (3, tmp_path / "runs")
        return [
            {"workload": work, "optimizer": row[0], "width": row[1], "seed": seed, "rate": 0.1,
             "loss": 1.0} for seed in range(seeds)
        ]  # fmt: skip

    monkeypatch.setattr(tuned, "tune", tune)
    out = tmp_path / "reports"
    arguments = ["--seeds", "3", "--runs", str(tmp_path / "runs"), "--out", str(out)]
    assert tuned.main(arguments) == 0
    written = pd.read_csv(out / "tuned.csv")
    assert len(written) == 2 * len(tuned.ROWS) * 3
    assert (out / "tuned.md").read_text().count("| AdamWFactor | paper-4bit | 0.1 | 3 |") == 2


def test_committed_best_rates_lie_inside_what_was_tried() -> None:
    runs = pd.read_csv(Path(__file__).parents[2] / "reports" / "tuned.csv")
    keys = ["workload", "optimizer", "width"]
    chosen = tuned.best(runs).groupby(keys)["rate"].first()
    tried = runs.groupby(keys)["rate"]
    assert len(chosen) == 2 * len(tuned.ROWS)
    assert (tried.min() < chosen).all()
    assert (chosen < tried.max()).all()
