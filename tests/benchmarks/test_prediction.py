"""The prediction experiment: its plan is fixed, and its statistics are what they are called."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import recorded
from benchmarks.prediction import measures, report, scores, steps
from benchmarks.prediction.__main__ import finished
from benchmarks.prediction.plan import COUNT, PARTS, pairs
from benchmarks.trials import FULL
from qmaps.algebra.pair import Pair
from qmaps.analyze.recommend import verdict
from qmaps.lab.workloads.gpt import GPTShape
from qmaps.lab.workloads.stdlib_lm import StdlibLMTiny
from qmaps.storage.files import output_folder, write_frame, write_record
from reproduction import judges
from reproduction.workloads.minilm import MiniLM

pytestmark = pytest.mark.slow


def test_the_pairs_are_those_that_were_registered() -> None:
    found = pairs()
    assert len(set(found)) == len(found) == COUNT
    assert [str(Pair.parse(pair)) for pair in found] == found
    digest = hashlib.sha256("\n".join(found).encode()).hexdigest()
    assert digest[:16] == "87641ea0786e71d2"


def test_every_part_has_its_32_bit_runs_and_no_trial_twice() -> None:
    for part in PARTS.values():
        if part.judge == "minilm" and MiniLM().missing():
            continue  # its data is in a package that is not installed
        trials = part.trials()
        assert len({trial.key for trial in trials}) == len(trials)
        full = [trial for trial in trials if trial.quantizer == FULL]
        assert len(full) == part.seeds * len(part.factors)
        assert recorded.SEED not in {trial.seed for trial in trials}


def frame(losses: dict[str, list[float]], lr: float = 0.003) -> pd.DataFrame:
    rows = [(q, lr, seed, loss) for q, each in losses.items() for seed, loss in enumerate(each)]
    return pd.DataFrame(rows, columns=["quantizer", "lr", "seed", "loss"]).assign(part="small")


def test_outcomes_are_paired_and_what_is_no_number_is_worst() -> None:
    found = scores.outcomes(frame({FULL: [1.0, 2.0], "a": [1.5, 2.25], "b": [np.nan, 2.0]}))
    assert found.loc[(0.003, "a")].tolist() == [0.5, 0.25]
    assert found.loc[(0.003, "b")].tolist() == [np.inf, 0.0]


def test_correlations_of_ranks() -> None:
    one = pd.Series([1.0, 2.0, 3.0, np.inf])
    assert scores.correlation(one, one**3) == pytest.approx(1)
    assert scores.correlation(one, pd.Series([4.0, 3.0, 2.0, -np.inf])) == pytest.approx(-1)
    low, high = scores.interval(pd.Series(np.arange(40.0)), pd.Series(np.arange(40.0)))
    assert (low, high) == (pytest.approx(1), pytest.approx(1))
    same = pd.DataFrame({seed: [1.0, 2.0, 3.0] for seed in range(4)})
    assert scores.ceiling(same) == pytest.approx(1)


def test_net_loss_of_exact_updates_is_none_and_of_others_depends_on_the_rate() -> None:
    rows = pd.DataFrame(
        {"replay_progress": [1.0, 0.5], "replay_cost": [2.0, 2.0], "replay_spent_cost": [2.0, 0.5]}
    )
    assert scores.net_loss(rows).tolist() == [0, 0.25]  # half of a step: 2 / 2 - 1 / 4
    assert scores.net_loss(rows, 2.0).tolist() == [0, -1]  # at double the rate it is the best one
    assert scores.net_loss(rows, 0.5).tolist() == [0, 0.3125]


def test_a_fitted_predictor_finds_the_column_that_matters() -> None:
    random = np.random.default_rng(0)
    rows = pd.DataFrame(random.normal(size=(60, 5))).add_prefix("replay_")
    outcome = pd.Series(np.exp(rows["replay_2"]))
    fit = scores.Fitted.of(rows, "replay_", outcome)
    assert int(np.argmax(fit.weights)) == 2
    other = pd.DataFrame(random.normal(size=(60, 5))).add_prefix("replay_")
    assert scores.correlation(fit.predict(other), other["replay_2"]) > 0.95


def test_a_judge_is_recorded_measured_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = GPTShape(context=16, width=32, layers=1, heads=2)
    work = StdlibLMTiny(shape=shape, steps=12, warmup_steps=2, validation_batches=1)
    monkeypatch.setitem(judges.JUDGES, "docstring-lm", work)
    chosen = pairs()[:8]
    states = measures.record("docstring-lm", tmp_path)
    found = measures.measured(states, chosen, report=lambda line: None)
    assert found["quantizer"].tolist() == chosen
    assert found["replay_steps"].eq(11).all()
    assert found["window_steps"].between(2, 3).all()
    assert found["replay_progress"][0] == pytest.approx(1, abs=0.02)
    assert {"step_mean_abs_error", "window_progress"} <= set(found.columns)
    random = np.random.default_rng(1)
    cost = dict(zip([FULL, *chosen], [0.0, *range(8)], strict=True))
    losses = {q: list(value + random.normal(size=4) / 10) for q, value in cost.items()}
    trials, known = frame(losses, work.lr), found.assign(judge="docstring-lm")
    table = report.scores(trials, known)
    assert "all" in set(table["chosen"])
    assert table["correlation"].dropna().abs().le(1 + 1e-9).all()
    assert table.set_index("predictor")["correlation"].notna()[[scores.NET, scores.FITTED]].all()
    assert table["ceiling"].max() > 0.9
    judged = report.verdicts(trials, known)
    assert judged["pairs"].sum() == len(chosen)
    assert set(judged["verdict"]) <= set(verdict.LEVELS)
    assert judged["most"].max() == pytest.approx(7, abs=0.3)
    safe = judged.set_index("verdict").loc["safe"]
    known["replay_zero_point_share"] = 0.1
    assert report.verdicts(trials, known)["verdict"].tolist() == ["unsafe"]
    page = report.page(table, trials, judged, "command")
    assert "net progress" in page
    without = report.page(table.assign(correlation=np.nan), trials, judged, "command")
    assert "| net progress | no value |" in without
    assert "nan (" not in without
    assert f"| small, 1 x the rate | safe | {safe['pairs']} |" in page
    report.draw(trials, known, tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 5000


def test_kept_runs_come_before_rows_of_the_report(tmp_path: Path) -> None:
    small, scratch = PARTS["small"], PARTS["scratch"]
    rows = [{"quantizer": FULL, "seed": 0, "loss": loss, "part": part}
            for part, loss in (("small", 3.0), ("scratch", 2.0))]  # fmt: skip
    pd.DataFrame(rows).to_csv(tmp_path / "trials.csv", index=False)
    known = [{"judge": part.judge, "quantizer": "a", "step_numel": 1} for part in (small, scratch)]
    pd.DataFrame(known).to_csv(tmp_path / "measures.csv", index=False)
    runs = tmp_path / "runs"
    first = [trial for trial in small.trials() if trial.seed == 0]
    for trial in first:
        row = {"quantizer": trial.quantizer, "seed": 0, "loss": 1.0}
        write_record(output_folder(runs / "trials") / f"{trial.key}.json", row)
    frame = pd.DataFrame({"quantizer": ["a"], "step_numel": [2]})
    write_frame(output_folder(runs / "prediction") / f"{small.judge}.parquet", frame)
    trials, found = finished(runs, tmp_path)
    assert trials[trials["part"] == "small"]["loss"].tolist() == [1.0] * len(first)
    assert trials[trials["part"] == "scratch"]["loss"].tolist() == [2.0]
    assert found.set_index("judge")["step_numel"].to_dict() == {small.judge: 2, scratch.judge: 1}


def test_pairs_in_steps() -> None:
    folder = Path(__file__).parents[2] / "reports" / "prediction"
    trials, measures = pd.read_csv(folder / "trials.csv"), pd.read_csv(folder / "measures.csv")
    slopes = pd.DataFrame(
        [("docstring-lm", 0.2, 0.01), ("lm-tiny", 0.4, 0.01), ("minilm", 0.1, 0.05)],
        columns=["judge", "slope", "slope_error"],
    )
    found = steps.points(trials, measures, slopes)
    assert found["judge"].unique().tolist() == ["docstring-lm", "lm-tiny"]  # others have no slope
    eight = found.set_index(["judge", "quantizer"])["slower"][
        "docstring-lm", "B256/DE@8s + B256/DE-0@8u"
    ]
    assert eight == pytest.approx(-0.0001 / 0.2, abs=0.0001 / 0.2)
    assert steps.ended(found)["pairs"].sum() == len(found) == 240
    shown = steps.page(found, "python -m benchmarks.prediction.steps")
    safe = steps.ended(found).groupby("verdict").sum(numeric_only=True).loc["safe"]
    assert f"| all | {safe['kept_up']} ({safe['within']}) of {safe['pairs']} | " in shown


def test_what_recommend_says_of_its_verdicts_is_counted() -> None:
    counts = steps.ended(steps.committed()).groupby("verdict").sum(numeric_only=True)
    assert {
        row.Index: (row.kept_up, row.pairs) for row in counts.loc[list(verdict.ENDED)].itertuples()
    } == verdict.ENDED
    assert steps.committed()["judge"].nunique() == verdict.MODELS
    left_out = steps.bounds(steps.committed())
    assert (left_out["kept_up"].sum(), left_out["pairs"].sum()) == verdict.LEFT_OUT
    safe = verdict.experience("safe", 0.0001)
    assert safe.startswith("of 27 pairs that replays of whole runs of 6")
    assert safe.endswith("of the choice of the bound, 35 of 44")


def test_the_bound_of_safe_holds_on_all_models() -> None:
    pairs = steps.committed()
    up_to = pairs[pairs["verdict"].isin(verdict.HARMLESS) & (pairs["cost"] <= verdict.SAFE)]
    assert (up_to["slower"] <= np.log(1.02)).mean() >= 0.95
    without = steps.bounds(pairs).set_index("judge")
    assert without.loc["microbiome", ["pairs", "kept_up"]].tolist() == [7, 1]
