"""The blind test's units, tests of equivalence, plan and pages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks.blind import equivalence, plan, report, tune
from benchmarks.blind.__main__ import main
from benchmarks.blind.judges import JUDGES, SEEN
from benchmarks.blind.workloads.packages import package_file
from benchmarks.prediction.steps import bounds, committed
from benchmarks.trials import FULL
from benchmarks.version_0_3 import PAIR_OF
from qmaps.algebra.pair import Pair
from qmaps.analyze.recommend.verdict import ENDED
from qmaps.errors import BadValueError
from qmaps.lab.workloads.stdlib_lm import StdlibLMTiny
from qmaps.storage.files import records
from reproduction.workloads import docstring_lm

pytestmark = pytest.mark.slow

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
        assert (tmp_path / name).stat().st_size > 10_000


def test_numbers_of_the_documentation() -> None:
    steps = pd.read_csv(FOLDER / "steps.csv")
    new = steps[~steps["judge"].isin(SEEN) & steps["quantizer"].isin(plan.PAIRS)]
    kept_up = new[(new["factor"] == 1) & new["outcome"].isin(equivalence.WITHIN)]
    assert set(kept_up["quantizer"]) == {PAIR_OF["8bit"]}
    assert len(kept_up) == 2
    quarter = new[new["factor"] == 0.25].set_index(["quantizer", "judge"])
    for name in ("8bit", "4bit"):
        preset = quarter.loc[PAIR_OF[name]]
        assert set(preset["outcome"]) <= set(equivalence.WITHIN)
        assert len(preset) == 4
    stdlib = "judge == 'stdlib-lm' and length == 1 and factor == 1"
    trials = pd.read_csv(FOLDER / "trials.csv").query(stdlib)
    losses = trials.pivot_table("loss", "seed", "quantizer")
    failed = (losses.sub(losses[FULL], axis=0) > 0.2).sum()
    assert [failed[PAIR_OF[name]] for name in ("8bit", "4bit")] == [3, 2]
    assert len(losses) == 8
    rates = pd.read_csv(FOLDER / "tuning.csv").query("judge == 'stdlib-lm'").groupby("lr")["loss"]
    assert rates.min()[2 * JUDGES["stdlib-lm"].lr] > losses[FULL].max() + 0.2
    at_quarter = steps[steps["factor"] == 0.25].set_index(["preset", "judge"])
    for name in ("8bit", "4bit"):
        outcomes = at_quarter.loc[name, "outcome"]
        assert outcomes.index[~outcomes.isin(equivalence.WITHIN)].tolist() == ["digits"]
        assert len(outcomes) == 9
        assert at_quarter.loc[(name, "digits"), "nats"] < 0
    tuned = new[new["factor"] == 1].set_index(["quantizer", "judge"])
    four_at_best = tuned.loc[(PAIR_OF["4bit"], "microbiome"), "steps"]
    safe = new[(new["factor"] == 1) & (new["verdict_gradients"] == "safe")].dropna(subset="steps")
    within = int((safe["steps"] <= plan.MARGIN).sum())
    (left_out,) = records(bounds(committed()).query("judge == 'microbiome'"))
    root = FOLDER.parents[1]
    text = " ".join(
        (root / "docs" / "safety.md").read_text("utf-8").split()
        + (root / "docs" / "recommend.md").read_text("utf-8").split()
        + (root / "reports" / "README.md").read_text("utf-8").split()
    )
    for numbers in (
        f"In the blind test {within} of {len(safe)} pairs of quantizers that `qmaps recommend` "
        "called safe trained at most 2% slower.",
        "so that {} of {} do, of which".format(*ENDED["safe"]),
        "of {1} unproven ones {0} do.".format(*ENDED["unproven"]),
        f"{within} of {len(safe)} pairs called safe on models that no threshold had seen",
        f"At the best rate {within} of {len(safe)} were; at a quarter `8bit` and `4bit`, also on "
        "four seen models",
        f"`4bit` was {four_at_best:.1%} slower on `microbiome`",
        "all {} trained pairs that are safe".format(*ENDED["safe"]),
        "of the {1} unproven ones {0} did".format(*ENDED["unproven"]),
        f"would have been {left_out['bound']:.2g}, and {left_out['pairs'] - left_out['kept_up']} "
        f"of its {left_out['pairs']} pairs",
    ):
        assert numbers.replace("%", " %") in text


def test_docstring_lm_has_eight_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docstring_lm, "PRETRAINING", 1)
    docstring_lm.pretrained.cache_clear()
    weights = [JUDGES["docstring-lm"].model(seed).state_dict()["head.weight"] for seed in (0, 1, 8)]
    docstring_lm.pretrained.cache_clear()
    assert torch.equal(weights[0], weights[2])
    assert not torch.equal(weights[0], weights[1])


def test_mixes_beat_the_simplest_pair_on_one_model() -> None:
    steps, trials = (pd.read_csv(FOLDER / name) for name in ("steps.csv", "trials.csv"))
    rows = report.rules(steps)
    cells = report.beside_simplest(rows, trials)
    chosen = rows.assign(high=[float(cell[:-1].split()[-1]) if cell else 0.0 for cell in cells])
    chosen = chosen[chosen["quantizer"].isin(plan.CHOICES)]
    assert chosen["judge"].nunique() == 4
    assert chosen.loc[chosen["high"] < 0, "judge"].unique().tolist() == ["microbiome"]
    guide = (FOLDER.parents[1] / "docs" / "recommend.md").read_text("utf-8").split()
    assert "beyond the interval, on one of four models" in " ".join(guide)
    assert report.without_zero_points(steps).endswith("with them 1 of 6 pairs.")
