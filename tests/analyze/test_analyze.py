"""Analyses against plain numpy on small states."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch

import qmaps
from qmaps import analyze
from qmaps.analyze.states import adam_pairs
from qmaps.errors import BadValueError, CaptureError, SpecError

EPS = 1e-8
PAIR = "B128/DE@4s + B128/DE@4u"
SPREAD = "B128/linear@4s+qsr + B128/linear@4u+qsr"


def states() -> dict[str, dict[str, torch.Tensor]]:
    g = torch.Generator().manual_seed(0)
    tensors = {}
    for name, shape in {"a": (90, 60), "b": (5000,), "small": (20, 20)}.items():
        m = torch.randn(shape, generator=g) * 1e-3
        v = (torch.randn(shape, generator=g) * torch.exp(torch.randn(shape, generator=g))) ** 2
        m.view(-1)[:5] = 0
        tensors[name] = {"exp_avg": m, "exp_avg_sq": v * 1e-6}
    return tensors


def updates(pair: str) -> tuple[np.ndarray, np.ndarray]:
    """Exact and quantized updates of all large parameters together, in float64 by numpy."""
    first, second = pair.split(" + ")
    exact, approximate = [], []
    for name in ("a", "b"):
        m, v = states()[name]["exp_avg"], states()[name]["exp_avg_sq"]
        mq = qmaps.quantizer(first).quantize(m).dequantize()
        vq = qmaps.quantizer(second).quantize(v).dequantize()
        for target, (p, q) in ((exact, (m, v)), (approximate, (mq, vq))):
            u = p.numpy() / (np.sqrt(q.numpy()) + np.float32(EPS))
            target.append(u.ravel().astype(np.float64))
    return np.concatenate(exact), np.concatenate(approximate)


@pytest.mark.parametrize("pair", [PAIR, SPREAD])
def test_update_error_by_hand(pair: str) -> None:
    row = analyze.update_error(states(), [pair]).iloc[0]
    exact, approximate = updates(pair)
    absolute = np.abs(exact - approximate)
    relative = absolute[exact != 0] / np.abs(exact[exact != 0])
    for kind, values in (("abs", absolute), ("rel", relative)):
        assert row[f"mean_{kind}_error"] == pytest.approx(values.mean(), rel=1e-6)
        assert row[f"max_{kind}_error"] == pytest.approx(values.max(), rel=1e-6)
        for name, level in (("median", 0.5), ("p99", 0.99), ("p999", 0.999)):
            expected = np.quantile(values, level, method="inverted_cdf")
            assert row[f"{name}_{kind}_error"] == pytest.approx(expected, rel=1e-6)
    assert row["numel"] == 90 * 60 + 5000
    assert row["bits_per_element"] == pytest.approx(4.25, abs=0.01)


def test_the_zero_point_is_counted() -> None:
    m, v = torch.full((100, 50), 1e-3), torch.full((100, 50), 1e-6)
    v[:, 0] = 1.0
    v[3, 7] = 1e-12
    m[5] = 0
    data = {"w": {"exp_avg": m, "exp_avg_sq": v}}
    frame = analyze.update_error(
        data, [f"tensor/DE@8s + tensor/{name}@4u" for name in ("DE", "DE-0", "linear")]
    )
    # Every v but those of column 0 decodes to 0 under DE; row 5 has no first moment.
    assert frame["zeroed_share"].tolist() == [99 * 49 / 5000, 0.0, 0.0]
    assert frame["max_abs_error"][0] > 1e4 > frame["max_abs_error"][1]


@pytest.mark.parametrize("pair", [PAIR, SPREAD])
def test_code_pairs_by_hand(pair: str) -> None:
    frame = analyze.code_pairs(states(), [pair])
    assert frame["count"].sum() == 90 * 60 + 5000
    assert frame["use"].sum() == pytest.approx(1)
    exact, approximate = updates(pair)
    codes = []
    for state, spec in zip(("exp_avg", "exp_avg_sq"), pair.split(" + "), strict=True):
        q = qmaps.quantizer(spec)
        codes.append(
            np.concatenate([q.quantize(states()[n][state]).codes().ravel() for n in ("a", "b")])
        )
    for row in frame.sample(25, random_state=0).itertuples():
        chosen = (codes[0] == row.code_first) & (codes[1] == row.code_second)
        error = np.abs(exact - approximate)[chosen]
        assert row.count == chosen.sum()
        assert row.mean_abs_error == pytest.approx(error.mean(), rel=1e-9)
        nonzero = exact[chosen] != 0
        if nonzero.any():
            expected = (error[nonzero] / np.abs(exact[chosen][nonzero])).mean()
            assert row.mean_rel_error == pytest.approx(expected, rel=1e-9)
        else:
            assert np.isnan(row.mean_rel_error)
    codebook = qmaps.quantizer(pair.split(" + ")[0]).map.codebook().numpy()
    assert np.allclose(frame["value_first"], codebook[frame["code_first"]])
    assert set(frame["size_first"]) == {16}


def test_first_code_error_sums_the_grid() -> None:
    grid = analyze.code_pairs(states(), [PAIR])
    curve = analyze.first_code_error(states(), [PAIR])
    assert len(curve) == 16
    assert curve["position"].iloc[[0, -1]].tolist() == [-1, 1]
    by_code = (grid["mean_abs_error"] * grid["count"]).groupby(grid["code_first"]).sum()
    counts = grid.groupby("code_first")["count"].sum()
    used = curve.set_index("code").loc[counts.index]
    assert np.array_equal(used["count"], counts)
    assert np.allclose(used["mean_abs_error"], by_code / counts)
    assert curve["mean_abs_error"][curve["count"] == 0].isna().all()


def test_first_code_error_of_the_first_moment_alone() -> None:
    single = {"a": states()["a"]}
    ((_, m, v, eps),) = adam_pairs(single, 4096)
    first = qmaps.quantizer("B128/DE@4s").quantize(m)
    exact = v.double().sqrt() + eps
    error = ((first.dequantize().double() - m.double()) / exact).abs().reshape(-1)
    curve = analyze.first_code_error(single, ["B128/DE@4s + 32-bit"])
    for code in curve[curve["count"] > 0]["code"]:
        of_code = error[first.codes().reshape(-1) == code]
        row = curve.loc[code]
        assert row["count"] == of_code.numel()
        assert row["mean_abs_error"] == pytest.approx(float(of_code.mean()), rel=1e-3)


def test_a_moment_in_32_bits_has_no_codes() -> None:
    assert analyze.update_error(states(), ["32-bit + 32-bit"])["max_abs_error"][0] == 0
    with pytest.raises(SpecError) as caught:
        analyze.code_pairs(states(), ["B128/DE@4s + 32-bit"])
    assert str(caught.value) == (
        "pair='B128/DE@4s + 32-bit' leaves a moment in 32 bits; both moments must be quantized here"
    )


def test_map_curves() -> None:
    maps = [qmaps.quantizer(f"tensor/{s}").map for s in ("DE@4s", "linear@3u")]
    frame = analyze.map_curves(maps)
    assert frame["map"].value_counts().to_dict() == {"DE@4s": 16, "linear@3u": 8}
    assert frame["value"][frame["map"] == "DE@4s"].tolist() == maps[0].codebook().tolist()
    assert frame["position"].between(0, 1).all()


@pytest.mark.parametrize(
    "spec", ["B128/DE@4u", "rank1/linear@4u", "logB128/log2@4u", "B32x8/DE@8u"]
)
def test_histogram_counts_every_element(spec: str) -> None:
    v = states()["a"]["exp_avg_sq"].clone()
    v[0] = 0
    frame = analyze.histogram(v, [spec], bins=40)
    assert list(frame["panel"].unique()) == ["original", "dequantized", "normalized", "quantized"]
    for _, part in frame.groupby("panel"):
        assert part["count"].sum() + part["zeros"].iloc[0] == v.numel()
    original = frame[frame["panel"] == "original"]
    assert original["zeros"].iloc[0] == 60
    assert original["bin_left"].iloc[0] == pytest.approx(float(v[v > 0].min().log10()), abs=0.4)


def test_histogram_of_a_rest_beside_a_low_rank_part() -> None:
    """Normalized values are those of the codes, at most 1 in magnitude."""
    x = torch.outer(torch.linspace(1, 9, 60), torch.linspace(1, 9, 40))
    frame = analyze.histogram(x, ["lowrank2(B64/DE@8s)+B64/DE@4s"])
    largest = frame[frame["count"] > 0].groupby("panel")["bin_right"].max()
    assert largest["original"] == pytest.approx(math.log10(81))
    assert largest["normalized"] <= 1e-6


def test_histogram_of_zeros() -> None:
    frame = analyze.histogram(torch.zeros(10), ["B4/DE@4s"])
    assert (frame["zeros"] == 10).all()
    assert frame["count"].sum() == 0


def test_inverse_sqrt_shows_the_collapse() -> None:
    data = states()
    data["a"]["exp_avg_sq"][0] = 0
    frame = analyze.inverse_sqrt(data, ["tensor/DE@4u", "tensor/DE-0@4u"])
    assert list(frame["quantizer"].unique()) == ["32-bit", "tensor/DE@4u", "tensor/DE-0@4u"]
    shares = frame.groupby("quantizer", sort=False)["share"].sum()
    assert np.allclose(shares, 1)
    zero = frame.groupby("quantizer", sort=False)["zero_share"].first()
    assert zero["32-bit"] == zero["tensor/DE-0@4u"] == 0
    last = frame[frame["quantizer"] == "tensor/DE@4u"].iloc[-1]
    assert last["share"] == pytest.approx(zero["tensor/DE@4u"]) != 0
    assert (frame.groupby("quantizer")["count"].sum() == 90 * 60 + 5000 - 60).all()


def test_outliers_pool_by_maximum() -> None:
    x = torch.ones(6, 10)
    x[4, 9] = -50
    frame = analyze.outliers({"w": x}, cells=4)
    assert len(frame) == 3 * 4
    top = frame.loc[frame["magnitude"].idxmax()]
    assert (top["row"], top["col"], top["magnitude"]) == (4, 9, 50)
    assert set(frame["rows"]) == {6}
    with pytest.raises(BadValueError, match=r"matrices\['v'\] has shape \(3,\)"):
        analyze.outliers({"v": torch.ones(3)})


def test_pareto_frontier_and_limit() -> None:
    specs = ["tensor/DE@4s", "B128/DE@4s", "B128/linear@8s", "B128/lloyd@4s", "tensor/linear0@8s"]
    sweep = qmaps.sweep.run(states(), specs)
    frame = analyze.pareto(sweep).set_index("quantizer")
    assert frame["is_limit"].tolist() == [False, False, False, True, False]
    assert not frame.loc["B128/lloyd@4s", "on_frontier"]
    frontier = frame[frame["on_frontier"]]
    for spec, row in frame[~frame["is_limit"]].iterrows():
        beaten = (frontier["bits_per_element"] <= row["bits_per_element"]) & (
            frontier["error"] <= row["error"]
        )
        assert bool(beaten.any()), spec
    m = torch.cat([states()[n]["exp_avg"].view(-1) for n in ("a", "b")]).double()
    noise = sum(
        float((states()[n]["exp_avg"].double() - qmaps.quantizer("B128/DE@4s").quantize(
            states()[n]["exp_avg"]).dequantize().double()).square().sum())
        for n in ("a", "b")
    )  # fmt: skip
    assert frame.loc["B128/DE@4s", "error"] == pytest.approx(noise / float(m.square().sum()))
    assert frame.loc["B128/DE@4s", ["normalizer", "map"]].tolist() == ["B128", "DE"]
    with pytest.raises(BadValueError) as caught:
        analyze.pareto(sweep, state="x")
    assert str(caught.value) == (
        "state='x' is not in the sweep; allowed are 'exp_avg', 'exp_avg_sq'"
    )


def test_nothing_large_enough() -> None:
    with pytest.raises(CaptureError) as caught:
        analyze.update_error({"s": states()["small"]}, [PAIR])
    assert str(caught.value) == (
        "no parameter has more than min_quantized_size=4096 elements, so there is nothing "
        "to quantize"
    )
    assert isinstance(
        analyze.update_error({"s": states()["small"]}, [PAIR], min_quantized_size=0), pd.DataFrame
    )
