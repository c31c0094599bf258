"""Simulated moving averages: second moments after a fall, accumulated noise of first moments."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import Tensor

import qmaps
from qmaps.algebra.philox import RoundingKey
from qmaps.analyze.recommend.verdict import FOLLOWS
from qmaps.analyze.replay.averages import accumulated_noise, fall_ratios, sample
from qmaps.optim import RMSprop

KEY = RoundingKey(seed=0)


def spread(rows: int, cols: int, deviation: float = 1.0) -> Tensor:
    return (deviation * torch.randn(rows, cols, generator=torch.Generator().manual_seed(0))).exp()


def ratios(specs: list[str], v: Tensor, beta: float = 0.99) -> dict[str, float]:
    actual = fall_ratios(v, [qmaps.quantizer(spec) for spec in specs], beta, KEY)
    return dict(zip(specs, actual, strict=True))


def test_second_moments_that_do_not_fall_in_an_optimizer_either() -> None:
    v, beta, spec = spread(4, 256), 0.99, "B128/DE-0@4u"
    p = torch.nn.Parameter(torch.zeros(4, 256))
    specs = {"square_avg": spec}
    optimizer = RMSprop([p], lr=0.0, alpha=beta, state_quantizers=specs, min_quantized_size=0)
    p.grad = torch.zeros_like(p)
    optimizer.step()
    optimizer.state[p]["square_avg"] = qmaps.quantizer(spec).quantize(v)
    falls = (torch.arange(4)[:, None] + torch.arange(256)) % 2 == 0
    runs = v.view(4, 16, 16)
    falls &= (runs < runs.amax(dim=2, keepdim=True)).view(4, 256)
    deviations = torch.where(falls, v * 0.01, v).sqrt()
    draw, exact = torch.Generator().manual_seed(1), v.clone()
    for _ in range(300):  # 3 / (1 - beta)
        p.grad = torch.randn(4, 256, generator=draw) * deviations
        exact = beta * exact + (1 - beta) * p.grad.square()
        optimizer.step()
    stored = optimizer.state[p]["square_avg"].dequantize()
    theirs = float((stored / exact)[falls].log().mean().exp())
    assert ratios([spec], v)[spec] == pytest.approx(theirs, rel=0.15)
    assert theirs > 5


def test_roundings_that_follow_and_those_that_do_not() -> None:
    exact, nearest, fine = "B256/linear@16u+sr", "B256/DE-0@8u", "B256/geometric@8u+qsr"
    actual = ratios([exact, nearest, fine, "B256/DE@4u"], spread(8, 256), 0.998)
    assert actual[exact] == pytest.approx(1, abs=0.05)
    assert actual[fine] == pytest.approx(1, abs=0.05)
    assert actual[nearest] > 5
    # A step of 0.05 moves the codes of 8 bits: they follow.
    assert ratios([nearest], spread(8, 256), 0.95)[nearest] < 1.3


def test_scales_are_independent_of_blocks_and_leave_out_zeros() -> None:
    for spec in ("tensor/e5m2@8u", "rank1/DE-0@8u", "B16/DE-0@4u", "B2048/linear0@8u"):
        assert ratios([spec], spread(16, 256), 0.998)[spec] > 8
    (zeros,) = ratios(["tensor/linear0@2u"], spread(1, 64) * 1e-3 + torch.eye(1, 64)).values()
    assert math.isnan(zeros)
    assert all(math.isnan(x) for x in ratios(["B64/DE-0@8u"], torch.zeros(2, 64)).values())
    zeros = accumulated_noise(torch.zeros(2, 64), [qmaps.quantizer("B64/DE@8s")], 0.9, KEY)
    assert math.isnan(zeros[0])


def test_accumulated_noise_against_a_recursion() -> None:
    deviations, beta, spec = spread(8, 128, 0.7), 0.9, "B128/DE-sym@4s"
    q, draw = qmaps.quantizer(spec), torch.Generator().manual_seed(5)
    m, stored, noise, power = torch.zeros(8, 128), torch.zeros(8, 128), 0.0, 0.0
    for step in range(200):
        g = torch.randn(8, 128, generator=draw) * deviations
        m, used = beta * m + (1 - beta) * g, beta * stored + (1 - beta) * g
        stored = q.quantize(used).dequantize()
        if step >= 50:
            noise += float(((used - m) / deviations).square().sum())
            power += float((m / deviations).square().sum())
    specs = (spec, "B128/DE-sym@4s+sr", "B256/DE-sym@8s")
    quantizers = [qmaps.quantizer(text) for text in specs]
    four, stochastic, eight = accumulated_noise(deviations, quantizers, beta, KEY)
    assert four == pytest.approx(noise / power, rel=0.2)
    assert stochastic > 1.5 * four > 30 * eight > 0


def test_samples_are_small_for_any_shape() -> None:
    for shape in ((50, 3000), (3, 5, 7), (10**5,), (2, 10**6), (7,)):
        x = torch.arange(math.prod(shape)).view(shape)
        small = sample(x)
        assert small.dim() == 2
        assert small.numel() <= 4096 + 2048
        assert len(small.unique()) == small.numel()


def states(tmp_path: Path, frozen: int | None = None) -> Path:
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.zeros(64, 80)), torch.nn.Parameter(torch.zeros(64, 96))]
    optimizer = torch.optim.AdamW(weights, betas=(0.9, 0.998))
    with qmaps.capture.StateRecorder(optimizer, tmp_path, steps=[60], gradients=12):
        for step in range(72):
            for number, weight in enumerate(weights):
                lost = number == frozen and step >= 60
                weight.grad = None if lost else 1e-3 * torch.randn_like(weight)
            optimizer.step()
    return tmp_path


def test_rows_and_verdicts_have_them(tmp_path: Path) -> None:
    specs = ["B256/DE-sym@8s + B256/DE-0@8u", "B256/DE-sym@8s + B256/DE-0@8u+sr"]
    folder = states(tmp_path)
    frame = qmaps.replay.run(folder, [*specs, "32-bit + 32-bit"])
    measured = frame.dropna(subset=["accumulated_noise_first", "fall_ratio_second"])
    assert measured["quantizer"].tolist() == specs  # of the larger parameter
    assert {*measured["numel"]} == {64 * 96}
    summary = qmaps.replay.summarize(frame).set_index("quantizer")
    for name in ("accumulated_noise_first", "fall_ratio_second"):
        pd.testing.assert_series_equal(
            summary.loc[specs, name], measured.set_index("quantizer")[name]
        )
    nearest, stochastic = summary.loc[specs, "fall_ratio_second"]
    assert nearest > FOLLOWS[1] > stochastic > FOLLOWS[0]
    recommendation = qmaps.recommend(folder, bits=9, candidates=specs, steps=12)
    verdicts = recommendation.pairs.set_index("quantizer")
    assert verdicts["step_cost"].max() <= 0.0005
    assert verdicts.loc[specs, "verdict"].tolist() == ["unproven", "clean"]
    assert verdicts.loc[specs[0], "reason"] == (
        f"second moments end at {nearest:.2g} times the exact ones where gradients fall"
    )
    note = "Second moments end at {:.2g} times the exact ones where gradients fall beside others; "
    for number, spec in enumerate(specs):
        notes = qmaps.recommend(folder, bits=9, candidates=[spec], steps=12).notes
        expected = note.format(nearest) + "B256/geometric@8u+qsr follows, for example."
        assert (expected in notes) == (number == 0)


def test_the_largest_parameter_with_gradients(tmp_path: Path) -> None:
    frame = qmaps.replay.run(states(tmp_path, frozen=1), ["B256/DE@8s + B256/DE-0@8u+sr"])
    (row,) = frame.to_dict("records")  # the larger one has no gradients in the window
    assert row["numel"] == 64 * 80
    assert row["fall_ratio_second"] > 0 < row["accumulated_noise_first"]
