"""Recommendations choose the pair of least cost within a budget, and report its bytes correctly."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import qmaps
from qmaps.algebra.pair import Pair
from qmaps.analyze.recommend import Recommendation, run, write
from qmaps.analyze.recommend.candidates import CANDIDATES, FULL, PRESETS, diagnostic
from qmaps.analyze.recommend.picks import Sizes, least, within
from qmaps.analyze.recommend.run import _choice, _lost, _quantizers
from qmaps.capture import CapturedStates
from qmaps.capture.snapshot import Lazy
from qmaps.cli import main
from qmaps.errors import BadTypeError, BadValueError, CaptureError
from qmaps.optim import AdamW, Choice
from qmaps.optim.presets import PRESETS as OPTIMIZER_PRESETS

FOUR, EIGHT = "B128/DE@4s + B128/DE-0@4u", "B256/DE-sym@8s + B256/geometric@8u+qsr"
ZERO = "B128/DE@4s + B128/DE@4u"
ALONE = "B256/DE@8s + 32-bit"
SPECS = [FOUR, EIGHT, ZERO, ALONE]
SHAPES = {"a[0]": (48, 128), "b": (96, 128), "c": (64, 128), "small": (30,)}


@pytest.fixture(scope="module")
def states() -> CapturedStates:
    """Three parameters; one has small updates, another has hard second moments."""
    draw = torch.Generator().manual_seed(0)
    tensors = {}
    for number, (name, shape) in enumerate(SHAPES.items()):
        v = torch.rand(shape, generator=draw) * 10.0 ** (-6 - number)
        if name == "c":
            v = v * 10.0 ** (-6 * torch.rand(shape, generator=draw))
        m = torch.randn(shape, generator=draw) * v.sqrt() * 0.3
        tensors[name] = {"exp_avg": m, "exp_avg_sq": v}
    return CapturedStates.from_tensors(tensors, step=500)


def recommend(states: object, **options: Any) -> Recommendation:
    return run(states, **{"candidates": SPECS, "steps": 8, **options})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def recommendation(states: CapturedStates) -> Recommendation:
    return recommend(states, bits=6.3)


class Model:
    def named_parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        return [(name, torch.nn.Parameter(torch.ones(shape))) for name, shape in SHAPES.items()]


def built(choice: Choice, **options: Any) -> AdamW:
    weights = Model().named_parameters()
    optimizer = AdamW(weights, **choice.kwargs, **options)
    for _, weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    return optimizer


def test_one_safe_pair_within_the_budget_is_chosen(states: CapturedStates) -> None:
    recommendation = recommend(states, bits=24)
    assert recommendation.choice.overrides == {}
    assert recommendation.tensors.loc[recommendation.tensors["chosen"], "quantizer"].unique() == [
        EIGHT
    ]
    # By bytes, and in 32 bits where nothing else is free of zero points.
    exact = recommend(states, nbytes=10**6, candidates=[ZERO], parameters=["c"])
    assert exact.choice.state_quantizers is None
    assert exact.nbytes == exact.full_nbytes
    assert exact.choice.overrides == {}


def test_without_a_safe_pair_each_tensor_gets_its_own(recommendation: Recommendation) -> None:
    assert recommendation.pairs.set_index("quantizer")["verdict"][FOUR] == "caution"
    tensors = recommendation.tensors.set_index(["parameter", "quantizer"])
    chosen = recommendation.tensors[recommendation.tensors["chosen"]].set_index("parameter")
    assert chosen.index.tolist() == ["a[0]", "b", "c"]
    assert set(chosen["quantizer"]) == {FOUR, EIGHT}
    budget = 6.3 * (48 + 96 + 64) * 128 / 4
    assert chosen["nbytes"].sum() <= budget
    assert recommendation.bits_per_element == 4 * chosen["nbytes"].sum() / (48 + 96 + 64) / 128
    for name, row in chosen.iterrows():  # by its step cost and its share of the cost
        assert row["error"] == pytest.approx(
            max(0, row["step_cost"]) * row["cost"] / chosen["cost"].sum()
        )
        better = tensors.loc[name]
        better = better[better["error"] < row["error"] - 1e-3]
        freed = better["nbytes"] - row["nbytes"]
        assert (chosen["nbytes"].sum() + freed > budget).all()


def test_the_choice_takes_the_bytes_that_it_says(
    recommendation: Recommendation, tmp_path: Path
) -> None:
    optimizer = built(recommendation.choice)
    assert optimizer.memory().nbytes == recommendation.nbytes
    assert built(Choice(None)).memory().nbytes == recommendation.full_nbytes
    quantizers = {
        row.parameter: row.quantizer for row in optimizer.memory() if row.state == "exp_avg"
    }
    chosen = recommendation.tensors[recommendation.tensors["chosen"]].set_index("parameter")[
        "first"
    ]
    assert quantizers == {**chosen.to_dict(), "small": None}
    recommendation.save(tmp_path / "choice.json")
    assert qmaps.load_choice(tmp_path / "choice.json") == recommendation.choice.kwargs
    provenance = recommendation.choice.provenance
    assert {name: provenance[name] for name in ("step", "parameters", "gradients", "budget")} == {
        "step": 500, "parameters": 3, "gradients": "simulated", "budget": {"bits": 6.3},
    }  # fmt: skip
    scope: dict[str, Any] = {"model": Model()}
    exec(recommendation.code, scope)
    assert scope["optimizer"].memory().nbytes == recommendation.nbytes
    assert f"# Training loop\n{recommendation.code}\n" in str(recommendation)
    assert "simulated" in str(recommendation)


def test_pairs_are_judged_and_the_best_of_each_width_named(recommendation: Recommendation) -> None:
    rows = recommendation.pairs.set_index("quantizer")
    assert rows.index[-1] == ALONE  # the widest
    assert rows["up_to"].tolist() == sorted(rows["up_to"])
    assert rows["diagnostic"].to_dict() == {FOUR: False, EIGHT: False, ZERO: False, ALONE: True}
    assert rows["preset"].to_dict() == {FOUR: "", EIGHT: "8bit", ZERO: "", ALONE: ""}
    assert rows.loc[ZERO, "verdict"] == "unsafe"
    assert rows.loc[ZERO, "reason"].startswith("second moments become 0")
    assert rows.loc[ZERO, "reason"].endswith("most in c)")
    assert rows.loc[EIGHT, "verdict"] == "unproven"  # gradients were simulated
    best = {limit: pair and pair.spec for limit, pair in recommendation.best.items()}
    assert best == {2.3: None, 3.3: None, 4.3: FOUR, 6.3: FOUR, 8.3: EIGHT}
    assert set(PRESETS.values()) == set(OPTIMIZER_PRESETS) - {"32bit"}
    assert not any(diagnostic(Pair.parse(spec)) for spec in CANDIDATES)


def test_zero_points_come_last_and_longer_updates_are_no_gain(states: CapturedStates) -> None:
    wide, short = "B256/DE@8s + B256/DE@8u", "B128/DE@4s + rank1/linear@4u"
    recommendation = recommend(states, bits=9, candidates=[short, wide])
    rows = recommendation.pairs.set_index("quantizer")
    assert rows.loc[wide, "step_cost"] < rows.loc[short, "step_cost"] / 2
    assert rows.loc[wide, "zero_point_share"] > 0
    assert recommendation.best[8.3] == Pair.parse(short)
    chosen = recommendation.tensors[recommendation.tensors["chosen"]].set_index("parameter")
    assert chosen.loc["c", "quantizer"] == short
    assert set(chosen["quantizer"]) == {short, wide}  # it has zero points only in c
    # Too long updates are no gain, and do not make up for noise.
    row = {"zero_point_share": 0.0, "largest_update": 5.0, "cost": 1.0, "update_noise": 0.0}
    assert _lost({**row, "update_gain": 1.3}, 2.0) == 0
    assert _lost({**row, "update_gain": 1.3, "update_noise": 1.0}, 2.0) == 0.01
    assert _lost({**row, "update_gain": math.exp(-0.3)}, 2.0) == pytest.approx(0.15)


def test_sums_are_those_of_whole_parameters(states: CapturedStates) -> None:
    full, sampled = (
        recommend(states, candidates=[EIGHT], bits=9, share=share).tensors for share in (1.0, 0.4)
    )
    assert sampled["numel"].tolist() == full["numel"].tolist() == full["replayed"].tolist()
    assert (sampled["replayed"] < 0.6 * full["numel"]).all()
    assert sampled["cost"].tolist() == pytest.approx(full["cost"].tolist(), rel=0.2)  # of a third


def test_parameters_of_a_kind_get_the_same_pair() -> None:
    pair = {"exp_avg": torch.zeros(48, 128), "exp_avg_sq": torch.zeros(48, 128)}
    states = CapturedStates.from_tensors(
        {f"layers.{n}.{part}": pair for n in range(3) for part in "xy"}
    )
    errors = {"x": (0.10, 0.11, 0.09), "y": (0.0, 0.0, 0.2)}
    rows = [
        {"parameter": f"layers.{n}.{part}", "quantizer": spec, "nbytes": size, "error": error}
        for part, of_part in errors.items()
        for n, error_of_four in enumerate(of_part)
        for spec, size, error in ((FOUR, 10, error_of_four), (EIGHT, 20, 0.0), (FULL.spec, 80, 0.0))
    ]
    table = pd.DataFrame({"quantizer": [FOUR, EIGHT], "verdict": ["caution", "unsafe"]})
    pairs = [Pair.parse(FOUR), Pair.parse(EIGHT)]
    picks = within(100, pd.DataFrame(rows), table, pairs, Sizes(states, states.parameters()))
    assert picks == {name: pairs[".x" in name] for name in states.parameters()}


@pytest.mark.slow
def test_a_step_cost_gets_the_smallest_pair_that_keeps_to_it(states: CapturedStates) -> None:
    table = recommend(states).pairs
    costs = table.set_index("quantizer")["step_cost"]
    for pair in (FOUR, EIGHT):
        recommended = recommend(states, step_cost=costs[pair] * 1.01)
        assert recommended.tensors.loc[recommended.tensors["chosen"], "quantizer"].unique() == [
            pair
        ]
        assert recommended.step_cost == pytest.approx(costs[pair])
        assert recommended.choice.provenance["budget"] == {"step_cost": costs[pair] * 1.01}
    # However small its cost, a pair with zero points is never taken.
    table.loc[table["quantizer"] == FOUR, "zero_point_share"] = 0.1
    pairs, sizes = [Pair.parse(FOUR), Pair.parse(EIGHT)], Sizes(states, ["b"])
    assert least(9.0, table, pairs, sizes) == {"b": pairs[1]}


def test_diagnostic_pairs_are_not_chosen(states: CapturedStates) -> None:
    chosen = recommend(states, bits=20.1, candidates=[FOUR, ALONE], parameters=["c"])
    assert chosen.tensors.loc[chosen.tensors["chosen"], "quantizer"].tolist() == [FOUR]


@pytest.mark.slow
def test_second_moments_that_can_be_zero_are_not_chosen_unless_named() -> None:
    draw = torch.Generator().manual_seed(0)
    v = torch.rand(48, 128, generator=draw) + 0.5  # with no zero points under any map
    tensors = {"w": {"exp_avg": torch.randn(48, 128, generator=draw) * 0.3, "exp_avg_sq": v}}
    for options in ({"bits": 8.3}, {"bits": 24}):
        outcome = run(tensors, steps=4, **options)
        named = [outcome.choice, *outcome.singles.values(), outcome.simplest]
        texts = [choice.to_json() for choice in named if choice is not None]
        assert len(texts) > 4
        assert not any("/DE@8u" in text for text in texts)
        row = outcome.pairs.set_index("preset").loc["paper-8bit"]
        assert (row["zero_point_share"], bool(row["diagnostic"])) == (0, True)
    asked = run(tensors, steps=4, bits=8.3, candidates=["paper-8bit", "4bit"])
    assert asked.choice.to_json().count("B2048/DE@8u") == 1


def test_zero_points_are_counted_on_all_elements() -> None:
    draw = torch.Generator().manual_seed(0)
    v = torch.rand(600, 64, generator=draw) + 0.5
    v[1, :40] = 1e-8  # in no replayed row
    m = torch.randn(600, 64, generator=draw).sign() * 0.3
    states = {"w": {"exp_avg": m, "exp_avg_sq": v}, "small": {"exp_avg": m, "exp_avg_sq": v + 1}}
    recommendation = recommend(states, bits=9, share=0.01, candidates=[ZERO, FOUR, EIGHT])
    rows = recommendation.tensors.set_index(["parameter", "quantizer"])
    assert rows.loc[("w", ZERO), "replayed"] < 3000
    assert rows.loc[("w", ZERO), "zero_point_share"] == 40 / (600 * 64)
    assert rows.loc[("w", ZERO), "verdict"] == "unsafe"
    assert rows.loc[("small", ZERO), "zero_point_share"] == 0
    assert recommendation.pairs.set_index("quantizer").loc[ZERO, "verdict"] == "unsafe"
    assert (rows.xs(EIGHT, level="quantizer")["zero_point_share"] == 0).all()


def test_unmeasured_and_unsafe_parameters_are_named() -> None:
    draw = torch.Generator().manual_seed(0)
    m, v = torch.randn(48, 128, generator=draw), torch.rand(48, 128, generator=draw) + 0.5
    hard = v * 10.0 ** (-8 - 8 * torch.rand(48, 128, generator=draw))
    tensors = {
        "heavy": {"exp_avg": m, "exp_avg_sq": v},
        "light": {"exp_avg": m * hard.sqrt(), "exp_avg_sq": hard},
        "never": dict.fromkeys(("exp_avg", "exp_avg_sq"), torch.zeros(48, 128)),
    }
    recommendation = recommend(tensors, bits=8, candidates=["B256/DE@8s + rank1/linear@4u"])
    rows = recommendation.tensors[recommendation.tensors["chosen"]].set_index("parameter")
    assert rows["verdict"].to_dict() == {
        "heavy": "unproven", "light": "unsafe", "never": "not measured"
    }  # fmt: skip
    assert recommendation.verdict == "unproven"
    assert "; light is unsafe: updates keep " in recommendation.reason
    for note in ("Unsafe by themselves: light.", "Not measured: the replayed rows have no updates "
                 "in never.", "Step 0 is early: ", "Gradients were not recorded; "):  # fmt: skip
        assert note in str(recommendation)


@pytest.mark.parametrize(("beta2", "averaged"), [(0.999, "1,000"), (0.9999, "10,000"), (0.9, "")])
def test_the_note_on_early_steps_depends_on_beta2(beta2: float, averaged: str) -> None:
    draw = torch.Generator().manual_seed(0)
    m, v = torch.randn(48, 128, generator=draw), torch.rand(48, 128, generator=draw) + 0.5
    states = CapturedStates(
        {"a\nb": {"exp_avg": Lazy.of(m), "exp_avg_sq": Lazy.of(v)}},
        step=60,
        hyperparameters={"a\nb": {"betas": [0.9, beta2]}},
    )
    moving = ["B64/linear@4s+sr + B128/DE-0@4u"]
    notes = recommend(states, bits=8, candidates=moving, steps=2).notes
    early = (
        f"Step 60 is early: second moments average about {averaged} gradients and have seen few. "
        "Ask again with a later step."
    )
    assert (early in notes) == bool(averaged)
    assert notes[-1].endswith("a weight whose gradient is always 0 would move in a\\nb.")


def test_pairs_that_move_masked_weights_are_named(states: CapturedStates) -> None:
    note = "Not for masked weights: a weight whose gradient is always 0 would move in"
    moving = recommend(states, candidates=["B64/linear@4s+sr + B128/DE-0@4u"], bits=8)
    assert f"{note} a[0], b, c." in moving.notes
    assert not any(note in text for text in recommend(states, candidates=[FOUR], bits=8).notes)


def test_a_recommendation_of_a_codebook_of_ones_own_prints(states: CapturedStates) -> None:
    values = [-1, -0.5, -0.2, -0.05, 0.0, 0.05, 0.2, 0.5, 1]
    holding_zero = qmaps.Codebook(values, label="mine")
    moving = qmaps.Codebook([value for value in values if value], label="moving")
    pairs = [f"B128/{map_.spec} + B128/DE-0@4u" for map_ in (holding_zero, moving)]
    recommended = recommend(states, candidates=pairs, codebooks=[holding_zero, moving], bits=4.3)
    assert recommended.pairs.set_index("quantizer")["keeps_zero"].to_dict() == {
        pairs[0]: True, pairs[1]: False,
    }  # fmt: skip
    assert "qmaps.Codebook([-1.0, -0.5, " in str(recommended)
    assert json.loads(json.dumps(recommended.summary()))["code"] == recommended.code


def test_of_a_folder_the_last_step_with_gradients_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weight = torch.nn.Parameter(torch.zeros(48, 128))
    optimizer = torch.optim.AdamW([weight], betas=(0.8, 0.95))
    states = tmp_path / "states"
    with qmaps.capture.StateRecorder(
        optimizer, states, names=[("a", weight)], steps=[3, 20, 24], gradients=12
    ):
        for _ in range(25):
            weight.grad = torch.randn(48, 128)
            optimizer.step()
    recommended = recommend(states, bits=8.3)
    assert (recommended.gradients, recommended.tensors["step"].unique().tolist()) == (
        "recorded",
        [3],
    )
    frame = qmaps.replay.run(states, SPECS)
    assert (frame["gradients"].unique(), frame["step"].unique().tolist()) == (["recorded"], [20])
    command = ["recommend", str(states), "--bits", "8.3", "--out", str(tmp_path), "--json"]
    with pytest.raises(SystemExit):
        main([*command, "--spec", EIGHT])
    assert json.loads(capsys.readouterr().out)["choice"]["provenance"]["step"] == 3


def test_the_code_has_the_parameter_groups_of_the_run(tmp_path: Path) -> None:
    torch.manual_seed(0)
    block = torch.nn.Sequential(torch.nn.Linear(80, 80), torch.nn.LayerNorm(80))
    model = torch.nn.Sequential(torch.nn.Embedding(100, 80), *[block] * 2, torch.nn.Linear(80, 9))
    named = list(model.named_parameters())
    groups = [
        {"params": [(n, p) for n, p in named if p.ndim > 1], "weight_decay": 0.1},
        {"params": [(n, p) for n, p in named if p.ndim <= 1], "weight_decay": 0.0, "lr": 1e-4},
    ]
    before = AdamW(groups, lr=1e-3)
    torch.optim.lr_scheduler.LambdaLR(before, lambda step: 0.0)
    for _ in range(3):
        model(torch.arange(100)).square().mean().backward()
        before.step()
    path = tmp_path / "optimizer.pt"
    torch.save(before.state_dict(), path)
    recommendation = recommend(path, candidates=["4bit"])
    scope: dict[str, Any] = {"model": model}
    for code in (recommendation.code, recommendation.summary()["singles"]["4.3"]):
        exec(code, scope)
        built_groups = scope["optimizer"].param_groups
        options = [(g["weight_decay"], g["lr"], g["param_names"]) for g in built_groups]
        assert options == [
            (g["weight_decay"], g["initial_lr"], g["param_names"]) for g in before.param_groups
        ]
    scope["optimizer"].load_state_dict(torch.load(path))


def test_presets_are_candidates_by_name(states: CapturedStates) -> None:
    recommendation = recommend(states, candidates=["4bit", "8bit"], bits=6.3)
    assert sorted(recommendation.pairs["preset"]) == ["4bit", "8bit"]
    replayed = qmaps.replay.run(states, "8bit", steps=2, parameters=["c"])
    swept = qmaps.sweep.run(states, ["8bit"])
    updates = swept.loc[swept["state"] == "update", "quantizer"]
    assert {*replayed["quantizer"], *updates} == {EIGHT}
    with pytest.raises(BadValueError) as caught:
        recommend(states, candidates=["4bits"])
    assert str(caught.value) == (
        "pair='4bits' is not a preset; allowed are 32bit, 8bit, 4bit, 3bit, 2bit, paper-8bit, "
        "paper-4bit, or 'FIRST + SECOND' of specs; nearest match: 4bit"
    )


@pytest.mark.slow
def test_parameters_that_are_not_named_stay_in_32_bits(states: CapturedStates) -> None:
    recommendation = recommend(states, parameters=["a*", "c"])
    assert recommendation.choice.overrides["b"] is None
    assert built(recommendation.choice).memory().nbytes == recommendation.nbytes
    low = recommend(states, min_quantized_size=29, candidates=[EIGHT], bits=9)
    assert built(low.choice).memory().nbytes == low.nbytes
    assert "    min_quantized_size=29,\n)" in low.code
    high = recommend(states, min_quantized_size=7000)
    assert built(high.choice).memory().nbytes == high.nbytes
    assert high.choice.overrides == {}  # the size makes overrides unnecessary


def test_overrides_are_patterns() -> None:
    pair = {"exp_avg": torch.zeros(48, 128), "exp_avg_sq": torch.zeros(48, 128)}
    names = [f"layers.{n}.{part}" for n in range(3) for part in ("weight", "scale", "bias")]
    states = CapturedStates.from_tensors(dict.fromkeys([*names, "head"], pair))
    picks = {name: Pair.parse(EIGHT if "bias" in name else FOUR) for name in names}
    choice = _choice(states, picks, Sizes(states, names), 4096, {})
    assert choice.overrides == {
        "layers.*.bias": Choice(_quantizers(Pair.parse(EIGHT))).state_quantizers,
        "head": None,
    }
    assert choice.min_quantized_size is None


@pytest.mark.slow
def test_a_parameter_without_updates_counts_as_all_together() -> None:
    ones = {"exp_avg": torch.full((48, 128), 0.1), "exp_avg_sq": torch.ones(48, 128)}
    still = {name: torch.zeros(48, 128) for name in ones}
    recommendation = recommend({"moves": ones, "still": still}, bits=6.3)
    chosen = recommendation.tensors[recommendation.tensors["chosen"]].set_index("parameter")
    costs = recommendation.pairs.set_index("quantizer")["step_cost"]
    row = chosen.loc["still"]
    assert row["error"] == pytest.approx(costs[row["quantizer"]] / 2)  # half of the elements
    assert (
        recommendation.tensors[recommendation.tensors["parameter"] == "still"]["error"].nunique()
        > 1
    )
    with pytest.raises(CaptureError, match=r"all exact updates of .* are 0; there is nothing"):
        recommend({"still": still})


BAD: list[tuple[dict[str, Any], str]] = [
    (
        {"bits": 4},
        "bits=4 is less than any choice takes; the smallest takes 4.25 bits per state element",
    ),
    (
        {"nbytes": 100},
        "nbytes=100 is less than any choice takes; the smallest takes 28528, 240 of them for "
        "states that stay in 32 bits",
    ),
    ({"bits": 4, "nbytes": 5}, "bits=4 and nbytes=5: give one of them"),
    ({"bits": 4, "step_cost": 0.1}, "bits=4 and step_cost=0.1: give one of them"),
    ({"step_cost": 0}, "step_cost=0 must be above 0 and finite"),
    ({"step_cost": True}, "step_cost=True must be a number"),
    (
        {"step_cost": 1e-12, "parameters": ["c"], "candidates": [FOUR]},
        "step_cost=1e-12 is less than that of any pair; the smallest is 0.085",
    ),
    ({"bits": 0}, "bits=0 must be above 0 and finite"),
    ({"bits": "4"}, "bits='4' must be a number"),
    ({"candidates": [ALONE]}, "candidates must hold at least one pair that quantizes both moments"),
    ({"steps": 1}, "steps=1 must be 2 to 2**32 - 1"),
    (
        {"parameters": "x*"},
        "parameters='x*' matches no parameter of 'memory'; the names are a[0], b, c, small",
    ),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_bad_input(options: dict[str, Any], message: str, states: CapturedStates) -> None:
    with pytest.raises((BadValueError, BadTypeError)) as caught:
        recommend(states, **options)
    assert str(caught.value) == message


def test_files_appear_whole(recommendation: Recommendation, tmp_path: Path, monkeypatch) -> None:
    write(recommendation, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "choice.json", "pairs.parquet", "summary.json", "tensors.parquet",
    }  # fmt: skip

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("qmaps.analyze.recommend.result.write_frame", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(recommendation, tmp_path)
    assert not (tmp_path / "choice.json").exists()
