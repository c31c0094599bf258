"""Claims of the page on the 8-bit Adafactor: each can fail."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from reproduction import PAPERS, analyses
from reproduction.adafactor_8bit import (
    apollo,
    log_space_quantization,
    memory_footprint,
    quantization_precision,
    training_speed,
)
from reproduction.adafactor_8bit._maps import DYNAMIC, LINEAR, LOG
from reproduction.context import BASE, Context, NotYetError
from reproduction.exhibit import Frames, explain
from reproduction.memory import FACTORED, architectures, quantizers, state_bytes
from tests.reproduction.conftest import adam_states

pytestmark = pytest.mark.slow

PAPER = PAPERS["8-bit-adafactor"]
REPORTS = Path(__file__).parents[2] / "reports"


def holds(exhibit, frames: Frames) -> list[bool]:
    return [statement.holds for statement in exhibit.find(frames).statements]


def changed(frame: pd.DataFrame, quantizer: str, column: str, value: float) -> pd.DataFrame:
    frame = frame.copy()
    frame.loc[frame["quantizer"] == quantizer, column] = value
    return frame


# Quantization precision


@pytest.fixture(scope="module")
def precision(tmp_path_factory: pytest.TempPathFactory) -> Frames:
    context = Context(tmp_path_factory.mktemp("runs"), user_states=[adam_states(0)])
    return quantization_precision.build(context)


def test_precision_is_the_analysis_of_moments_and_of_means(precision: Frames) -> None:
    states = adam_states(0)
    moments = {name: v for name, _, v, _ in states.adam_pairs()}
    means = {
        f"{name} {axis}": v.double().mean(axis).float() for name, v in moments.items()
        for axis in (0, 1)
    }  # fmt: skip
    for name, tensors in (("moments", moments), ("sides", means)):
        expected = analyses.error_per_decade(tensors, quantization_precision.QUANTIZERS)
        # Means are sums in another order here: elements near an edge may change the decade.
        for column in ("share", "mean_rel_error"):
            left, right = precision[name][column], expected[column]
            assert left.to_numpy() == pytest.approx(right.to_numpy(), rel=0.05, nan_ok=True)


def test_precision_can_fail(precision: Frames) -> None:
    exhibit = quantization_precision.EXHIBIT
    moments = {"moments": precision["moments"]}
    assert holds(exhibit, moments) == [True] * 4
    for which, quantizer, column, value in (
        (0, LOG, "mean_rel_error", 0.06),
        (1, LINEAR, "mean_rel_error", 0.04),
        (2, LOG, "zeros", 0.01),
        (3, DYNAMIC, "mean_rel_error", 1e-5),
    ):
        worse = {"moments": changed(precision["moments"], quantizer, column, value)}
        assert not holds(exhibit, worse)[which], which
    assert len(holds(exhibit, precision)) == 8


# Log-space quantization


def training(log: float, linear: float, eight_bit: float) -> Frames:
    runs = [BASE, *log_space_quantization.METHODS.values()]
    return {
        "losses": pd.DataFrame(
            {"run": run.label, "seeds": 3, "mean": loss, "difference": loss - 2.0,
             "difference_std": 0.001}
            for run, loss in zip(runs, (2.0, log, 2.01, linear), strict=True)
        ),
        "adafactor": pd.DataFrame(
            {"group": log_space_quantization.GROUP, "optimizer": "optim.Adafactor",
             "quantizer": quantizer, "seed": seed, "loss": loss + 0.1 * seed}
            for quantizer, loss in (("32-bit", 2.0), ("8bit", eight_bit))
            for seed in range(3)
        ),
    }  # fmt: skip


def test_training_can_fail() -> None:
    exhibit = log_space_quantization.EXHIBIT
    assert holds(exhibit, training(2.001, 4.0, 2.001)) == [True] * 3
    assert holds(exhibit, training(2.001, float("nan"), 2.001)) == [True] * 3
    assert holds(exhibit, training(2.05, 2.02, 2.05)) == [False] * 3
    assert holds(exhibit, training(2.004, 4.0, 2.001)) == [(), True, True]  # chance
    assert holds(exhibit, training(float("nan"), 4.0, 2.001)) == [False, True, True]


def test_a_diverging_curve_does_not_hide_the_others() -> None:
    labels = [run.label for run in log_space_quantization.METHODS.values()]
    curves = pd.DataFrame({"run": [BASE.label, *labels]})
    shown = log_space_quantization.shown(curves)["run"].tolist()
    assert shown == [BASE.label, "log space", "dynamic"]
    assert log_space_quantization.named(curves)["run"].tolist() == [*shown, "linear"]


def test_the_runs_of_adafactor_have_smaller_states() -> None:
    frame = log_space_quantization.tuned_losses.runs(
        Context(Path(), reports=REPORTS), log_space_quantization.STUDY
    )
    sizes = frame[frame["group"] == log_space_quantization.GROUP].groupby("quantizer")["state_mib"]
    assert sizes.max()["8bit"] < 0.3 * sizes.min()["32-bit"]


# Memory footprint


@pytest.fixture
def footprint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pd.DataFrame:
    models = {name: architectures()[name] for name in ("OPT-1.3B", "LLaMA-7B")}
    monkeypatch.setattr(memory_footprint, "architectures", lambda: models)
    return memory_footprint.build(Context(tmp_path))["states"]


def test_memory_is_that_of_the_shapes(footprint: pd.DataFrame) -> None:
    nbytes = footprint.set_index(["model", "optimizer"])["state_bytes"]
    for name in ("OPT-1.3B", "LLaMA-7B"):
        model = architectures()[name]
        shapes = [shape for _, shape in model.shapes()]
        assert nbytes[name, "AdamW, 32 bits"] == 8 * model.parameters
        assert nbytes[name, "AdamW8bit"] == model.states(quantizers("8bit"))
        assert nbytes[name, "Adafactor, 32 bits"] == sum(state_bytes(s, FACTORED) for s in shapes)
        ours = 0
        for shape in shapes:
            parts = [shape] if len(shape) == 1 else [shape[:1], shape[1:]]
            ours += sum(state_bytes(part, LOG) for part in parts)
        assert nbytes[name, "Adafactor8bit"] == ours


def test_memory_can_fail(footprint: pd.DataFrame) -> None:
    exhibit = memory_footprint.EXHIBIT
    assert holds(exhibit, {"states": footprint}) == [True] * 4

    def with_bytes(optimizer: str, value: float) -> list[bool]:
        frame = footprint.copy()
        row = (frame["model"] == "LLaMA-7B") & (frame["optimizer"] == optimizer)
        frame.loc[row, "bytes_per_parameter"] = value
        return holds(exhibit, {"states": frame})

    assert with_bytes("Adafactor8bit", 3.0) == [False, False, True, True]
    assert with_bytes("Adafactor8bit", 0.0) == [True, True, False, True]
    assert with_bytes("APOLLO, rank 256", 3.0) == [True, True, True, False]


# Training speed


def test_speed_is_read_and_can_fail(tmp_path: Path) -> None:
    context = Context(tmp_path, reports=tmp_path)
    with pytest.raises(NotYetError) as caught:
        training_speed.build(context)
    assert str(caught.value) == (
        f"{tmp_path.name}/adafactor.json is not there yet; `python -m benchmarks.adafactor` at "
        "commit `65a89a2e` makes it"
    )
    times = {"Adafactor8bit": 1.0, "AdamW8bit": 0.7, "bitsandbytes AdamW8bit": 7.0}
    ratios = {name: {"ratio": ratio, "q1": ratio, "q3": ratio} for name, ratio in times.items()}
    (tmp_path / "adafactor.json").write_text(json.dumps({"ratios": ratios}))
    frames = training_speed.build(context)
    assert holds(training_speed.EXHIBIT, frames) == [True, False]  # torchao was left out
    finding = explain(training_speed.find(frames), training_speed.EXHIBIT.timed)
    assert finding.statements[1].detail == "7 times as fast."
    assert {ratio.value for ratio in finding.verdicts} == {"not comparable"}


def test_the_committed_times_have_the_peers() -> None:
    frames = training_speed.build(Context(Path("runs")))
    assert {training_speed.OURS, *training_speed.PEERS} <= set(frames["steps"]["optimizer"])
    assert np.isfinite(frames["steps"]["times"]).all()
    assert PAPER.exhibits[-2].command == "python -m benchmarks.adafactor` at commit `65a89a2e"


# APOLLO


def contest(*apart: float, controls: float = 0.0) -> Frames:
    """Final losses of APOLLO with these differences from the factored ones, one for each seed.

    Losses of the last control differ by about `controls`.
    """
    *controls_alike, last = apollo.CONTROLS
    rows = [
        {"judge": "w", "quantizer": name, "lr": 0.1, "steps": 200, "seed": seed, "state_mib": 1.0,
         "loss": 2.0 + 0.1 * seed + off * (name in (apollo.APOLLO, *controls_alike))
         + (controls + 0.001 * seed) * (name == last)}
        for seed, off in enumerate(apart)
        for name in (apollo.FACTORED, apollo.APOLLO, *apollo.CONTROLS)
    ]  # fmt: skip
    return {"runs": pd.DataFrame(rows)}


def test_apollo_is_faster_slower_or_neither() -> None:
    exhibit = apollo.EXHIBIT
    assert holds(exhibit, contest(-0.1, -0.11, -0.12)) == [True]
    assert holds(exhibit, contest(0.1, 0.11, 0.12)) == [False]
    assert holds(exhibit, contest(-0.1, 0.1, 0.01)) == [()]
    (statement,) = exhibit.find(contest(0.1, 0.11, 0.12)).statements
    assert statement.detail == "After 200 steps +0.1100 (+0.0852 to +0.1348), of 2.1000."


def test_apollo_has_a_cause_if_a_control_ends_lower() -> None:
    (lower,) = apollo.find(contest(0.1, 0.11, 0.12, controls=-0.05)).differences
    assert lower.elsewhere
    assert "and of the blocks' matrices alone -0.0490 (-0.0515 to -0.0465)." in lower.why
    (not_lower,) = apollo.find(contest(0.1, 0.11, 0.12)).differences
    assert not not_lower.elsewhere
    assert "does not end lower either" in not_lower.why


def test_apollo_takes_the_contest_alone(tmp_path: Path) -> None:
    runs = contest(0.1, 0.2)["runs"].assign(part="contest")
    swept = runs.assign(part="sweep", loss=9.0)
    pd.concat([swept, runs]).to_csv(tmp_path / "apollo.csv", index=False)
    frames = apollo.build(Context(tmp_path, tmp_path))
    assert len(frames["runs"]) == 2 * (2 + len(apollo.CONTROLS))
    assert frames["runs"]["loss"].max() < 9
