"""The blind test's units, tests of equivalence, plan and pages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks.blind import equivalence, plan, report, tune
from benchmarks.blind.__main__ import main
from benchmarks.blind.judges import JUDGES
from benchmarks.blind.workloads.packages import package_file
from benchmarks.trials import FULL
from qmaps.algebra.pair import Pair
from qmaps.errors import BadValueError
from qmaps.lab.workloads.stdlib_lm import StdlibLMTiny
from reproduction.workloads import docstring_lm

FOLDER = Path(__file__).parents[2] / "reports" / "blind"


def runs(difference: float, spread: float = 1e-4, slope: float = 0.1) -> pd.DataFrame:
    """Runs of 32 bits and of one pair on a loss of -slope log(steps), three lengths and 4 seeds."""
    noise = np.random.default_rng(0)
    rows = []
    for seed in range(4):
        for length in (0.7, 1.0, 1.4):
            loss = seed - slope * np.log(length)
            rows.append((FULL, seed, length, loss))
            if length == 1:
                loss += slope * np.log1p(difference) + noise.normal(scale=spread)
                rows.append(("pair", seed, length, loss))
    frame = pd.DataFrame(rows, columns=["quantizer", "seed", "length", "loss"])
    return frame.assign(judge="model", factor=1.0, steps=(100 * frame["length"]).round())


@pytest.mark.parametrize(
    ("difference", "spread", "outcome"),
    [
        (0.0, 1e-4, "equivalent"),
        (0.019, 1e-5, "equivalent"),
        (-0.05, 1e-4, "no worse"),
        (0.03, 1e-4, "worse"),
        (0.0, 1e-2, "not shown"),
    ],
)
def test_outcome(difference: float, spread: float, outcome: str) -> None:
    (row,) = equivalence.in_steps(runs(difference, spread)).to_dict("records")
    assert row["outcome"] == outcome
    assert row["seeds"] == 4
    if spread < 1e-2:
        assert row["steps"] == pytest.approx(difference, abs=3e-3)
    assert row["low"] < row["steps"] < row["high"]


def test_slope_of_a_noisy_curve_is_not_used() -> None:
    frame = runs(0.0)
    frame.loc[frame["length"] == 1.4, "loss"] += [0.0, 0.2, -0.2, 0.1]
    (row,) = equivalence.in_steps(frame).to_dict("records")
    assert row["slope_error"] > 0.2 * row["slope"]
    assert row["outcome"] == "not tested"
    assert np.isnan(row["steps"])


def test_diverged_runs() -> None:
    frame = runs(0.0)
    frame.loc[(frame["quantizer"] == "pair") & (frame["seed"] == 1), "loss"] = np.inf
    (row,) = equivalence.in_steps(frame).to_dict("records")
    assert row["outcome"] == "worse"
    frame = runs(0.0)
    frame.loc[(frame["quantizer"] == FULL) & (frame["seed"] == 1), "loss"] = np.inf
    (row,) = equivalence.in_steps(frame).to_dict("records")
    assert row["outcome"] == "not tested"


def test_slope() -> None:
    curve = runs(0.0).query("quantizer == @FULL")
    assert equivalence.slope(curve, 100) == pytest.approx((0.1, 0), abs=1e-3)


def test_needed_seeds_grow_with_the_spread() -> None:
    frame = runs(0.0, 1e-4).query("length <= 1")
    spread, seeds = equivalence.needed_seeds(frame)
    assert 2e-4 < spread < 3e-3
    assert seeds == 4
    _, more = equivalence.needed_seeds(runs(0.0, 5e-3).query("length <= 1"))
    assert 6 <= more <= 16


@pytest.mark.parametrize("losses", [[np.nan, np.inf, 0, 0], [np.nan] * 4])
def test_diverged_runs_are_worse(losses: list[float]) -> None:
    frame = runs(0.0)
    frame.loc[frame["quantizer"] == "pair", "loss"] = losses
    (row,) = equivalence.in_steps(frame).to_dict("records")
    assert row["outcome"] == "worse"


def test_a_pilot_whose_loss_rises_is_refused() -> None:
    with pytest.raises(BadValueError, match="must be finite and fall with the steps"):
        equivalence.needed_seeds(runs(0.0, slope=-0.1).query("length <= 1"))


def test_judges_without_seeds_are_named() -> None:
    with pytest.raises(BadValueError, match="judge='mnist' has no number of seeds yet"):
        plan.trials("mnist", Path())


def test_plan() -> None:
    assert len(set(plan.PAIRS)) == 20
    for pair in plan.PAIRS:
        Pair.parse(pair)
    judge = next(iter(plan.SIZES))
    trials = plan.trials(judge, Path("choices"))
    arms = 1 + len(plan.PAIRS) + len(plan.CHOICES)
    tuned = [t for t in trials if t.workload == JUDGES[judge]]
    assert len(tuned) == arms * plan.SIZES[judge].seeds
    assert {t.seed for t in trials} == set(range(plan.SIZES[judge].seeds))


def test_tuning_goes_beyond_the_range(tmp_path: Path) -> None:
    """At 8 steps the largest rate wins, so larger ones are tried."""
    work = StdlibLMTiny(steps=3, lr=1e-5, warmup_steps=0, batch_size=2)
    frame = tune.tune("judge", work, tmp_path, workers=1)
    best = tune.options(frame)["judge"]
    assert best["lr"] > 4e-5
    assert frame["lr"].min() < best["lr"] < frame["lr"].max()
    assert set(frame["seed"]) == set(tune.SEEDS)


def test_choice_of_options_is_not_moved_by_noise() -> None:
    losses = pd.DataFrame({0.0: [1.0, 2.0], 0.6: [1.003, 2.0], 0.9: [1.1, 2.1]})
    assert tune.choose(losses, 0.9) == (0.0, 0.6)
    assert tune.choose(losses, None) == (0.0, 0.0)
    assert tune.choose(pd.DataFrame({1.0: [2.0, 2.0], 2.0: [1.0, np.nan]}), None) == (1.0, 1.0)


def test_judges_have_the_options_that_were_best() -> None:
    tuned = tune.options(pd.read_csv(FOLDER / "tuning.csv"))
    assert set(plan.SIZES) <= set(tuned)
    for judge, best in tuned.items():
        work = JUDGES[judge]
        own = (work.lr, work.betas[0], work.weight_decay)
        assert own == pytest.approx([best[name] for name in tune.OPTIONS])


def test_missing_package() -> None:
    with pytest.raises(BadValueError, match="package 'no_such' is not installed; install it with"):
        package_file("no_such", "weights.pt")


def test_confusion() -> None:
    rows = [
        (plan.PAIRS[0], "safe", "equivalent", 0.0),
        (plan.PAIRS[1], "safe", "worse", 0.1),
        (plan.PAIRS[2], "unsafe", "not shown", 0.03),
        ("recommended", "safe", "equivalent", 0.0),
    ]
    frame = pd.DataFrame(rows, columns=["quantizer", "verdict_gradients", "outcome", "steps"])
    unknown = frame.assign(judge="without a slope", outcome="not tested", steps=np.nan)
    both = pd.concat([frame.assign(judge="model"), unknown]).assign(factor=1.0)
    table = report.confusion(both, "gradients").set_index("verdict")
    assert table.loc["safe"].tolist() == [2, 1, 1, 0, 1]
    assert table.loc["unsafe"].tolist() == [1, 0, 0, 1, 1]
    assert report.earned(table.reset_index()).startswith(
        'Of 2 pairs called safe, 1 have a mean within the margin or better: the word "safe" is not '
    )


def test_training_needs_choices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "microbiome", "--out", str(tmp_path), "--runs", str(tmp_path)]) == 2
    assert "judge='microbiome' has no choices in" in capsys.readouterr().err


def test_the_page_of_a_whole_judge(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = pd.read_csv(FOLDER / "verdicts.csv")
    lengths = [(length, FULL, seed) for length in plan.CURVE_LENGTHS for seed in range(2)]
    arms = [(1.0, name, seed) for name in (FULL, *plan.PAIRS, *plan.CHOICES) for seed in range(4)]
    noise = np.random.default_rng(0)
    rows = [
        ("microbiome", factor, length, name, seed, 120 * length,
         -0.1 * np.log(length) + 0.01 * (name == plan.DANGEROUS[0]) + noise.normal(scale=1e-5))
        for factor in plan.FACTORS for length, name, seed in (*lengths, *arms)
    ]  # fmt: skip
    columns = ["judge", "factor", "length", "quantizer", "seed", "steps", "loss"]
    trials = pd.DataFrame(rows, columns=columns)
    monkeypatch.setattr(plan, "size", lambda _: len(trials))
    steps = report.judged(trials, told)
    assert set(steps.loc[steps["outcome"] == "worse", "quantizer"]) == {plan.DANGEROUS[0]}
    taken = report.rules(steps).set_index("rule")
    assert taken.loc["fewest bits called safe", "quantizer"] == plan.PAIRS[10]  # 3.25 bits
    assert set(taken["outcome"]) == {"equivalent"}
    other = trials["quantizer"] != FULL  # worse by 0.001 on every second eighth of the validation
    for part in range(1, 9):
        trials[f"loss_{part}"] = trials["loss"].round(2) + 0.001 * (part % 2) * other
    page = report.page(steps, trials, pd.read_csv(FOLDER / "tuning.csv"), "command")
    assert "| microbiome | 8bit | 0.19 | 0.19 | 0.19 |" in page
    assert 'the word "safe" is earned in this mode.' in page
    assert "On `microbiome`, at the best learning rate for 32 bits, 19 of 20 pairs trained" in page
    assert "(the tests show it of 19)" in page
    for name, draw in report.PICTURES.items():
        draw(steps, tmp_path / name)
        assert (tmp_path / name).exists()


def test_docstring_lm_has_eight_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docstring_lm, "PRETRAINING", 1)
    docstring_lm.pretrained.cache_clear()
    weights = [JUDGES["docstring-lm"].model(seed).state_dict()["head.weight"] for seed in (0, 1, 8)]
    docstring_lm.pretrained.cache_clear()
    assert torch.equal(weights[0], weights[2])
    assert not torch.equal(weights[0], weights[1])
