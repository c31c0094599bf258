"""Replays agree with a separate recursion over one quantizer and one step at a time."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import qmaps
from qmaps.algebra.pair import Pair
from qmaps.algebra.philox import RoundingKey
from qmaps.algebra.quantizer import Quantizer
from qmaps.analyze.replay.recursion import Updates, largest_possible
from qmaps.capture import CapturedStates, Gradients, StateRecorder
from qmaps.errors import BadTypeError, BadValueError, CaptureError, SpecError
from qmaps.optim import AdamW

EPS = 1e-8
PAIRS = [
    "B128/DE@4s + rank1/linear@4u",
    "B128/DE@4s + B128/DE@4u",
    "32-bit + B256/DE-0@8u",
    "B64/linear@3s+sr + 32-bit",
    "row/DE@5s+sr + logB128/log2@4u",
    "B128/quantile@4s + B128/DE@4u+sr",
    "B256/linear@16s + B256/linear@10u",
    "B64/linear@4s+qsr + rank1/linear@4u+qsr",
    "32-bit + 32-bit",
]


def record(out: Path, window: int = 12, start: int = 5, **options: object) -> Path:
    """Record a run; its gradients have a mean, noise, and rare outliers."""
    torch.manual_seed(0)
    weights = {
        "a": torch.nn.Parameter(torch.zeros(48, 128)),
        "b": torch.nn.Parameter(torch.ones(6)),
    }
    means = {name: 0.5 * torch.randn_like(p) for name, p in weights.items()}
    optimizer = torch.optim.AdamW(weights.values(), betas=(0.8, 0.95), eps=EPS, **options)
    # The parameter's own numbers come after those of others.
    names = list(weights.items())
    recorder = StateRecorder(optimizer, out, names=names, steps=[start], gradients=max(2, window))
    with recorder:
        for _ in range(start + window):
            for name, parameter in weights.items():
                noise = torch.randn_like(parameter)
                parameter.grad = (means[name] + noise + noise**5 / 50) * 1e-3
            optimizer.step()
    return out


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("recording"))


@pytest.fixture(scope="module")
def frame(recording: Path) -> pd.DataFrame:
    return qmaps.replay.run(recording, PAIRS, seed=3)


class Slow:
    """One moment under one quantizer, with the values of all steps; None is exact."""

    def __init__(self, start: Tensor, zs: list[Tensor], beta: float, q: Quantizer | None,
                 number: int, previous_steps: int) -> None:  # fmt: skip
        q = None if q is None else q.fit(start)
        self.y: list[Tensor] = []
        self.q: list[Tensor] = []
        self.codes: list[Tensor] = []
        self.gaps: list[tuple[Tensor, Tensor]] = []
        self._take(start, q, number, 0)
        for step, z in enumerate(zs, start=previous_steps + 1):
            self._take(self.q[-1] * beta + z * (1 - beta), q, number, step)

    def _take(self, y: Tensor, q: Quantizer | None, number: int, step: int) -> None:
        self.y.append(y)
        if q is None:
            self.q.append(y)
            return
        key = RoundingKey(seed=3, tensor=0, state=number, step=step) if q.stochastic else None
        t = q.quantize(y, key=key)
        self.q.append(t.dequantize())
        codes = t.codes()
        self.codes.append(codes)
        last = len(q.map.codebook()) - 1
        sides = []
        for side in (-1, 1):
            near = (codes + side).clamp(0, last)
            packed = qmaps.algebra.packing.pack(near, q.map.bits)
            sides.append((replace(t, packed=packed).dequantize() - self.q[-1]).abs())
        self.gaps.append((sides[0], sides[1]))

    def gap(self, step: int, movement: Tensor) -> Tensor:
        return torch.where(movement > 0, self.gaps[step][1], self.gaps[step][0])


def expected(recording: Path, spec: str) -> dict[str, float]:
    """Every measure of parameter ``a`` under a pair, from its definition, in float64."""
    states = qmaps.capture.load(recording)
    grads = [g for _, g in states.gradients("a")]
    steps, betas, pair = len(grads), (0.8, 0.95), Pair.parse(spec)
    assert steps == 12
    results: dict[str, float] = {}
    runs = {}
    checks = sorted({math.ceil(k * steps / 5) for k in range(1, 6)})
    for number, (name, q, label) in enumerate(
        (("exp_avg", pair.first, "first"), ("exp_avg_sq", pair.second, "second"))
    ):
        start, beta = states.tensor("a", name), betas[number]
        zs = grads if number == 0 else [g * g for g in grads]
        exact = Slow(start, zs, beta, None, number, states.step)
        trajectory = runs[label] = Slow(start, zs, beta, q, number, states.step)
        runs[f"exact {label}"] = exact
        measures = {"moved_share": math.nan, "stalled_share": math.nan}
        if q is not None:
            movement = exact.q[-1] - exact.q[0]
            wide = trajectory.gap(0, movement)
            moved = (movement.abs() > wide) & (wide > 0)
            unchanged = torch.stack(
                [trajectory.codes[k] == trajectory.codes[0] for k in checks]
            ).all(0)
            measures["moved_share"] = float(moved.float().mean())
            measures["stalled_share"] = (
                float((moved & unchanged).sum() / moved.sum()) if moved.any() else math.nan
            )
        results |= {f"{key}_{label}": value for key, value in measures.items()}

    def update(label: str, k: int) -> Tensor:
        t = states.step + k
        m, v = (runs[label + moment].y[k].double() for moment in ("first", "second"))
        return m / (1 - 0.8**t) / ((v / (1 - 0.95**t)).sqrt() + EPS)

    kept_descent = descent = exploded = cost = spent = shared = 0.0
    largest = 0.0
    paths = [torch.zeros(48, 128, dtype=torch.float64)] * 2
    for k in range(1, steps):
        following = grads[k].double()
        descent += float((update("exact ", k) * following).sum())
        kept_descent += float((update("", k) * following).sum())
        v = runs["exact second"].y[k].double()
        curvature = (v / (1 - 0.95 ** (states.step + k))).sqrt()
        cost += float((update("exact ", k).square() * curvature).sum())
        spent += float((update("", k).square() * curvature).sum())
        shared += float((update("", k) * update("exact ", k) * curvature).sum())
        paths = [path + update(label, k) for path, label in zip(paths, ("exact ", ""), strict=True)]
        sizes = update("", k).abs()
        exploded += int((sizes > largest_possible((0.8, 0.95), states.step + k)).sum())
        largest = max(largest, float(sizes.max()))
    zeroed = sum(
        int(((runs["second"].q[k] == 0) & (runs["exact second"].q[k] != 0)
             & (runs["first"].q[k] != 0)).sum())
        for k in checks
    )  # fmt: skip
    numel = grads[0].numel()
    noise = max(0.0, spent / cost - (shared / cost) ** 2) ** 0.5
    beyond = max(0.0, math.log10(largest / 10))
    return results | {
        "descent": descent,
        "kept_descent": kept_descent,
        "progress": kept_descent / descent,
        "cost": cost,
        "spent_cost": spent,
        "shared_cost": shared,
        "update_gain": shared / cost,
        "update_noise": noise,
        "step_cost": 0.03 * beyond + noise**2 / 50 - math.log(shared / cost),
        "displacement": (length := float((paths[0].square() * curvature).sum())),
        "displacement_gap": (gap := float(((paths[1] - paths[0]).square() * curvature).sum())),
        "displacement_error": gap / length,
        "explosion_share": exploded / (numel * (steps - 1)),
        "largest_update": largest,
        "zero_point_share": zeroed / (numel * len(checks)),
    }


@pytest.mark.parametrize("spec", PAIRS)
def test_every_measure_against_its_definition(
    spec: str, recording: Path, frame: pd.DataFrame
) -> None:
    (row,) = frame[frame["quantizer"] == spec].to_dict("records")
    wanted = expected(recording, spec)
    for name, value in wanted.items():
        # Counts are of float32 comparisons.
        close = {"rel": 2e-5, "abs": 2e-6, "nan_ok": True}
        if name.endswith("share") or "share_" in name:
            close |= {"abs": 1.5 / 6144}
        if name == "update_noise":  # the root of a difference of float32 sums
            close |= {"abs": 3e-4}
        assert row[name] == pytest.approx(value, **close), name
    assert set(row) == set(wanted) | {
        "step", "parameter", "shape", "numel", "steps", "gradients", "quantizer", "first",
        "second", "bits_per_element", "accumulated_noise_first", "fall_ratio_second",
    }  # fmt: skip


def test_columns_of_a_row(frame: pd.DataFrame) -> None:
    row = frame.iloc[0]
    assert len(frame) == len(PAIRS)  # one parameter is too small
    assert row[["step", "parameter", "shape", "numel", "steps", "gradients"]].tolist() == [
        5, "a", "48x128", 6144, 12, "recorded",
    ]  # fmt: skip
    assert (row["first"], row["second"]) == ("B128/DE@4s", "rank1/linear@4u")
    first, second = 4 + 32 / 128, 4 + 32 * (48 + 128) / 6144
    assert row["bits_per_element"] == pytest.approx((first + second) / 2)


def test_the_measures_tell_quantizers_apart(frame: pd.DataFrame) -> None:
    rows = frame.set_index("quantizer")
    exact = rows.loc["32-bit + 32-bit"]
    assert exact["progress"] == pytest.approx(1, rel=1e-6)  # sums of float32 in another order
    assert exact["displacement_error"] == 0
    assert exact["update_gain"] == pytest.approx(1, rel=1e-6)
    assert exact["update_noise"] < 1e-3
    assert exact["explosion_share"] == exact["zero_point_share"] == 0
    assert rows.loc["B128/DE@4s + B128/DE@4u", "explosion_share"] > 0
    assert rows.loc["B128/DE@4s + B128/DE@4u", "zero_point_share"] > 0
    assert rows.loc["B128/DE@4s + rank1/linear@4u", "zero_point_share"] == 0
    assert rows.loc["32-bit + B256/DE-0@8u", "progress"] == pytest.approx(1, abs=0.02)
    assert 0 < rows["stalled_share_first"].max() < 1


def test_pairs_do_not_depend_on_one_another(recording: Path, frame: pd.DataFrame) -> None:
    alone = qmaps.replay.run(recording, PAIRS[4:5], seed=3)
    row = frame[frame["quantizer"] == PAIRS[4]].reset_index(drop=True)
    pd.testing.assert_frame_equal(alone, row, rtol=1e-5)
    reseeded = qmaps.replay.run(recording, PAIRS[4:5], seed=4)
    assert reseeded["update_noise"].item() != alone["update_noise"].item()


def test_a_sample_is_the_replay_of_its_rows(tmp_path: Path) -> None:
    states = qmaps.capture.load(record(tmp_path / "whole"))
    rows = qmaps.capture.gradients.rows_of((48, 128), 6144 // 2)
    assert rows is not None
    assert len(rows) < 48
    sampled = qmaps.replay.run(states, PAIRS[1:2], share=0.5, steps=6)
    assert sampled[["numel", "steps", "shape"]].iloc[0].tolist() == [len(rows) * 128, 6, "48x128"]
    again = CapturedStates.from_tensors(
        {"a": {s: states.tensor("a", s)[rows] for s in ("exp_avg", "exp_avg_sq")}}, step=5
    )
    again._hyperparameters = {"a": states.hyperparameters("a")}
    again.window = lambda parameter=None: states.window(parameter)  # type: ignore[method-assign]
    again.gradients = lambda name: (  # type: ignore[method-assign]
        (step, g[rows]) for step, g in states.gradients(name)
    )
    exact = qmaps.replay.run(again, PAIRS[1:2], steps=6, min_quantized_size=0)
    measured = list(sampled.columns[sampled.columns.get_loc("descent") :])
    pd.testing.assert_frame_equal(sampled[measured], exact[measured], rtol=1e-6)


def test_recorded_rows_are_replayed(tmp_path: Path) -> None:
    full = qmaps.replay.run(record(tmp_path / "whole"), PAIRS[1:2], share=0.5)
    torch.manual_seed(0)
    options = Gradients(steps=12, max_bytes=12 * 16_000)
    weight = torch.nn.Parameter(torch.zeros(48, 128))
    optimizer = torch.optim.AdamW([weight], betas=(0.8, 0.95))
    with StateRecorder(optimizer, tmp_path / "a", names=[("a", weight)], steps=[5],
                       gradients=options):  # fmt: skip
        for _ in range(17):
            weight.grad = torch.randn_like(weight) + 1
            optimizer.step()
    sampled = qmaps.replay.run(tmp_path / "a", PAIRS[1:2])
    assert 0 < sampled["numel"].item() * 4 <= 16_000
    assert sampled["numel"].item() == full["numel"].item()
    assert sampled["gradients"].item() == "recorded"
    assert sampled["progress"].item() > 0


def test_moments_that_began_anew(tmp_path: Path) -> None:
    """Steps count from the reset on, and gradients from the next reset on are left out."""
    states = {}
    for name, every, steps in (("reset", 9, 25), ("fresh", None, 16)):
        weight = torch.nn.Parameter(torch.zeros(48, 128))
        optimizer = AdamW([weight], betas=(0.8, 0.95), reset_every=every)
        first = 25 - steps
        with StateRecorder(optimizer, tmp_path / name, names=[("a", weight)], steps=[12 - first],
                           gradients=10):  # fmt: skip
            for step in range(first, 25):
                generator = torch.Generator().manual_seed(step)
                weight.grad = torch.randn(48, 128, generator=generator) + 1
                optimizer.step()
        states[name] = qmaps.capture.load(tmp_path / name)
    assert states["reset"].scalars("a")["reset_step"] == 9
    # 3 of 9 steps were taken since the reset before step 10, so 6 gradients are left.
    reset, fresh = (qmaps.replay.run(states[name], PAIRS[:2], steps=n)
                    for name, n in (("reset", None), ("fresh", 6)))  # fmt: skip
    assert reset["steps"].tolist() == [6, 6]
    measured = list(reset.columns[reset.columns.get_loc("descent") :])
    pd.testing.assert_frame_equal(reset[measured], fresh[measured])
    states["reset"].scalars = lambda _: {"step": 17, "reset_step": 9}  # type: ignore[method-assign]
    with pytest.raises(CaptureError) as caught:
        qmaps.replay.run(states["reset"], PAIRS[:1])
    assert str(caught.value) == (
        f"parameter 'a' in {states['reset'].source!r} was reset (reset_every=9) after 1 of the "
        "recorded gradients; a replay needs at least 2"
    )


def test_rounds_are_the_same_gradients_again(recording: Path) -> None:
    twice = qmaps.capture.load(recording)
    window, gradients = twice.window(), list(twice.gradients("a"))
    actual = qmaps.replay.run(recording, PAIRS[:4], steps=4, rounds=3)
    twice.window = lambda parameter=None: window + window  # type: ignore[method-assign]
    twice.gradients = (
        lambda name: iter(  # type: ignore[method-assign]
            gradients[:4] * 3
        )
    )
    wanted = qmaps.replay.run(twice, PAIRS[:4], steps=12)
    pd.testing.assert_frame_equal(actual, wanted)
    assert actual["steps"].tolist() == [12] * 4


def test_a_repeated_error_leads_farther_away_than_a_random_one(recording: Path) -> None:
    pairs = ["B128/linear@3s + 32-bit", "B128/linear@3s+sr + 32-bit"]
    errors = []
    for rounds in (1, 10):
        frame = qmaps.replay.run(recording, pairs, rounds=rounds).set_index("quantizer")
        errors.append(frame["displacement_error"][pairs].tolist())
    (nearest, random), (repeated, averaged) = errors
    assert averaged < 0.2 * random
    assert repeated > 0.7 * nearest


def test_a_run_that_maximizes(tmp_path: Path, frame: pd.DataFrame) -> None:
    actual = qmaps.replay.run(record(tmp_path, maximize=True), PAIRS[-1:])
    # The same gradients; the moment, the update and its factor are all negated.
    wanted = frame[frame["quantizer"] == PAIRS[-1]]
    for name in ("descent", "largest_update"):
        assert actual[name].item() == pytest.approx(wanted[name].item(), rel=1e-5)


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.8, 0.95), (0.0, 0.9), (0.95, 0.9), (0.0, 0.0)])
def test_no_exact_update_is_larger_than_the_largest_possible(betas: tuple[float, float]) -> None:
    beta1, beta2 = betas
    for steps in (1, 2, 30):
        # Gradients that attain the bound: Cauchy-Schwarz with equality.
        ages = np.arange(steps)
        g = (ages == 0).astype(float) if beta2 == 0 else (beta1 / beta2) ** ages
        m = (1 - beta1) * (beta1**ages * g).sum() / (1 - beta1**steps)
        v = (1 - beta2) * (beta2**ages * g * g).sum() / (1 - beta2**steps)
        reached, bound = m / math.sqrt(v), largest_possible(betas, steps)
        if beta2 or not beta1:
            assert reached == pytest.approx(bound)
        random = np.random.default_rng(0).normal(size=(steps, 500))
        m = ((1 - beta1) * beta1**ages) @ random / (1 - beta1**steps)
        v = ((1 - beta2) * beta2**ages) @ random**2 / (1 - beta2**steps)
        assert (np.abs(m) <= bound * np.sqrt(v) * (1 + 1e-12)).all()
    assert largest_possible((0.9, 0.999), 10**5) == pytest.approx(7.27, abs=0.01)


# Bad input


def test_bad_arguments(recording: Path) -> None:
    for options, error, message in (
        ({"steps": 1}, BadValueError, "steps=1 must be 2 to 2**32 - 1"),
        ({"steps": 2.0}, BadTypeError, "steps=2.0 must be an int"),
        ({"rounds": 0}, BadValueError, "rounds=0 must be 1 to 2**32 - 1"),
        ({"rounds": True}, BadTypeError, "rounds=True must be an int"),
        ({"seed": -1}, BadValueError, "seed=-1 must be 0 to 2**32 - 1"),
        ({"share": 0}, BadValueError, "share=0 must be above 0 and at most 1"),
        ({"share": "1%"}, BadTypeError, "share='1%' must be a number"),
        ({"parameters": "x*"}, BadValueError, "parameters='x*' matches no parameter of "
         f"'{recording}/step-00000005.safetensors'; the names are a, b"),
        ({"parameters": "b"}, CaptureError, "no parameter has more than min_quantized_size=4096 "
         "elements, so there is nothing to quantize"),
    ):  # fmt: skip
        with pytest.raises(error) as caught:
            qmaps.replay.run(recording, PAIRS, **options)
        assert str(caught.value) == message
    with pytest.raises(BadValueError) as caught:
        qmaps.replay.run(recording, [])
    assert str(caught.value) == "specs must hold at least one pair of quantizers"
    alone, listed = (qmaps.replay.run(recording, pairs, steps=2) for pairs in (PAIRS[0], PAIRS[:1]))
    pd.testing.assert_frame_equal(alone, listed)
    with pytest.raises(SpecError, match="B8/DE@9s"):
        qmaps.replay.run(recording, ["B8/DE@9s + 32-bit"])


def test_windows_that_are_too_short(tmp_path: Path) -> None:
    with pytest.raises(CaptureError) as caught:
        qmaps.replay.run(record(tmp_path, window=1), PAIRS)
    assert str(caught.value) == (
        f"'{tmp_path}/step-00000005.safetensors' has the gradients of 1 step after it; a replay "
        "needs at least 2"
    )


def test_gradients_of_another_run(tmp_path: Path) -> None:
    record(tmp_path / "one")
    record(tmp_path / "other", lr=0.5, weight_decay=0.3, start=6)
    for path in (tmp_path / "one").glob("gradients-*"):
        path.rename(tmp_path / "other" / path.name)
    with pytest.raises(CaptureError, match="was recorded in another run than the states in"):
        qmaps.replay.run(tmp_path / "other", PAIRS)


def test_rules_that_are_not_adams(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="was trained with amsgrad=True; only Adam and AdamW"):
        qmaps.replay.run(record(tmp_path / "a", amsgrad=True), PAIRS)
    weight = torch.nn.Parameter(torch.ones(65, 64))
    optimizer = torch.optim.Adam([weight], weight_decay=0.1)
    with StateRecorder(optimizer, tmp_path / "b", steps=[1], gradients=2):
        for _ in range(3):
            weight.grad = torch.ones_like(weight)
            optimizer.step()
    with pytest.raises(CaptureError) as caught:
        qmaps.replay.run(tmp_path / "b", PAIRS)
    assert str(caught.value).endswith(
        "was trained by Adam with coupled weight_decay=0.1, which recorded gradients lack; record "
        "a run of AdamW"
    )
    with pytest.raises(CaptureError, match=r"has no Adam states .* its states are momentum_buffer"):
        qmaps.replay.run({"w": {"momentum_buffer": torch.zeros(5000)}}, PAIRS)
    with pytest.raises(CaptureError, match="a second moment cannot be negative"):
        qmaps.replay.run(
            {"w": {"exp_avg": torch.zeros(5000), "exp_avg_sq": -torch.ones(5000)}}, PAIRS
        )


def test_the_step_cost_has_limits() -> None:
    step_cost = qmaps.replay.step_cost
    assert step_cost(1, 5, 10) == 0.5
    assert step_cost(-1, 0, 7) == step_cost(1e-3, 0, 7) == pytest.approx(math.log(1000))
    assert step_cost(1, 0, math.inf) == step_cost(1, 0, 1e9) == pytest.approx(0.24)
    assert step_cost(1.1, 0, 7) < 0
    for index in range(3):
        assert math.isnan(step_cost(*(math.nan if index == k else 1 for k in range(3))))


# Summaries


def test_a_summary_pools_the_parameters(recording: Path) -> None:
    frame = qmaps.replay.run(recording, PAIRS, min_quantized_size=0)
    assert frame["parameter"].unique().tolist() == ["a", "b"]
    summary = qmaps.replay.summarize(frame).set_index("quantizer")
    for spec in PAIRS:
        rows = frame[frame["quantizer"] == spec]
        row = summary.loc[spec]
        assert row["numel"] == 6150
        assert row["progress"] == pytest.approx(rows["kept_descent"].sum() / rows["descent"].sum())
        assert row["largest_update"] == rows["largest_update"].max()
        gain = rows["shared_cost"].sum() / rows["cost"].sum()
        noise = max(0, rows["spent_cost"].sum() / rows["cost"].sum() - gain**2)
        beyond = max(0, math.log10(row["largest_update"] / 10))
        assert row["step_cost"] == pytest.approx(noise / 50 + 0.03 * beyond - math.log(gain))
        gap, length = rows["displacement_gap"].sum(), rows["displacement"].sum()
        assert row["displacement_error"] == pytest.approx(gap / length)
        moved = rows["numel"] * rows["moved_share_first"]
        stalled = (moved * rows["stalled_share_first"]).sum()
        if moved.sum():
            assert row["stalled_share_first"] == pytest.approx(stalled / moved.sum())
        else:
            assert math.isnan(row["stalled_share_first"])
    assert summary["step_cost"].clip(lower=0).is_monotonic_increasing
    frame.loc[0, "gradients"] = "simulated"
    assert (
        qmaps.replay.summarize(frame).set_index("quantizer").loc[PAIRS[0], "gradients"] == "mixed"
    )


def test_a_zero_point_is_under_a_first_moment_that_is_not_zero() -> None:
    m = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    v = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])  # the exact one has a zero, too
    updates = Updates([(1, 1), (2, 1), (1, 0)], (0.9, 0.99), 1e-8, 3)
    updates.add(m, v + 1, torch.ones(3), 1)
    updates.check(m, v)
    shares = [measures["zero_point_share"] for measures in updates.measures()]
    assert shares == [pytest.approx(1 / 3), 0, 0]
