"""The bounds of theory, worked out by hand and set beside measured runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import qmaps
from benchmarks.lpmm.bound import Descent, Noise, four_bit_bound, lpmm_bound
from benchmarks.lpmm.quadratic import Case, Quadratic, beside_bound, rounding_variance
from qmaps.errors import BadValueError
from reproduction import figures

pytestmark = pytest.mark.slow

RUN = Descent(lr=0.1, momentum=0.5, smoothness=1.0, distance=2.0, micro_batches=2)
NONE = Noise()


@pytest.mark.parametrize(
    ("noise", "expected"),
    [
        (NONE, 0.7),  # (1 * 0.5 / 0.5 + 0.5 / 0.2) * 4 / 20
        (Noise(batch=1.0), 0.9),  # 0.1 / 0.5 more
        (Noise(accumulator=2.0), 1.1),  # 0.2 / 0.5
        (Noise(momentum=4.0), 0.9),  # 0.4 / (2 * 2 * 0.5)
        (Noise(parameter=0.01), 0.775),  # 1.5 * 0.01 / (2 * 0.1 * 2 * 0.5)
    ],
)
def test_each_term_of_lpmms_theorem(noise: Noise, expected: float) -> None:
    assert lpmm_bound([10], RUN, noise).tolist() == pytest.approx([expected])


def test_the_start_fades_and_the_noise_stays() -> None:
    noise = Noise(1.0, 2.0, 4.0, 0.01)
    at = lpmm_bound([10, 20, 10**12], RUN, noise)
    assert at.tolist() == pytest.approx([1.575, 1.225, 0.875])
    one = replace(RUN, micro_batches=1)
    at = four_bit_bound([10, 10**12], one, Noise(batch=1.0, momentum=4.0))
    assert at.tolist() == pytest.approx([2.2, 1.0])


@pytest.mark.parametrize(
    ("bound", "run", "noise", "message"),
    [
        (lpmm_bound, replace(RUN, lr=0.126), NONE,
         "lr=0.126 must be above 0 and at most 0.125 for this theorem to hold"),
        (lpmm_bound, replace(RUN, lr=0.0), NONE,
         "lr=0.0 must be above 0 and at most 0.125 for this theorem to hold"),
        (four_bit_bound, replace(RUN, micro_batches=1, lr=0.51), NONE,
         "lr=0.51 must be above 0 and at most 0.5 for this theorem to hold"),
        (four_bit_bound, RUN, NONE, "micro_batches=2 must be 1; this theorem has no micro-batches"),
        (four_bit_bound, replace(RUN, micro_batches=1), Noise(parameter=1.0),
         "Noise(batch=0.0, accumulator=0.0, momentum=0.0, parameter=1.0) has noise of "
         "gradients or parameters, which this theorem does not cover"),
    ],
)  # fmt: skip
def test_what_a_theorem_does_not_cover_is_refused(
    bound: Any, run: Descent, noise: Noise, message: str
) -> None:
    with pytest.raises(BadValueError) as caught:
        bound([1], run, noise)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"momentum": 1.0}, "momentum=1.0 must be at least 0 and below 1"),
        ({"smoothness": 0.0}, "smoothness=0.0 must be above 0"),
        ({"micro_batches": 0}, "micro_batches=0 must be at least 1"),
    ],
)
def test_a_run_outside_all_theory_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(BadValueError) as caught:
        replace(RUN, **changed)
    assert str(caught.value) == message


@pytest.mark.parametrize("spec", ["B4/linear0@4s+sr", "tensor/power2@4s+sr"])
def test_rounding_varies_no_more_than_its_bound(spec: str) -> None:
    """Over 400 draws; and under a linear map not much less, for values between codes."""
    q = qmaps.quantizer(spec)
    x = torch.tensor([7.0, 0.5, -1.5, 2.5, 14.0, 1.0, -3.0, 5.0])
    drawn = [q.quantize(x, key=qmaps.RoundingKey(step=step)) for step in range(400)]
    variance = torch.stack([t.dequantize() - x for t in drawn]).square().sum(1).mean()
    bound = max(rounding_variance(t) for t in drawn)
    assert 0 < variance < bound
    if spec.startswith("B4"):
        # Gaps of 1 four times and of 2 four times; the largest of each four is a code itself.
        assert bound == pytest.approx((4 * 1 + 4 * 4) / 4)
        assert variance == pytest.approx(3 / 4 + 3 * 1.0, rel=0.1)


def test_the_quadratic_has_the_gradient_that_it_says() -> None:
    problem = Quadratic(8, seed=3)
    noise = torch.arange(8.0)
    problem(noise).backward()
    expected = -problem.curvature * problem.minimum + noise
    assert problem.weight.grad is not None
    assert torch.allclose(problem.weight.grad, expected)
    assert problem.gap(problem.minimum) == 0
    assert problem.gap(torch.zeros(8)) == pytest.approx(
        float((problem.curvature * problem.minimum**2).sum() / 2)
    )


@pytest.mark.parametrize(
    "case",
    [
        Case("B2048/linear0@8s+sr", "B2048/linear0@8s+sr", "B2048/DE@8s+sr"),
        Case("B2048/linear0@6s+sr", "B2048/linear0@8s+sr", "B2048/DE@8s+sr", 3),
        Case(None, "", "B128/DE@4s+sr"),
    ],
    ids=lambda case: case.label,
)
def test_measured_runs_stay_under_the_bound(case: Case) -> None:
    frame = beside_bound(case, steps=60, seeds=2, dimension=16)
    assert frame.columns.tolist() == ["setting", "seed", "step", "gap", "bound"]
    assert len(frame) == 120
    mean = frame.groupby("step")[["gap", "bound"]].mean()
    assert (mean["gap"] < mean["bound"]).all()
    # It converges, and the bound is no empty one: it falls below where the runs start.
    assert mean["gap"].iloc[-1] < mean["gap"].iloc[0] / 2
    assert np.all(mean["bound"].diff().iloc[1:] < 0)


def test_a_figure_takes_runs_beside_their_bound() -> None:
    case = Case(None, "", "tensor/DE@4s+sr")
    figure = figures.convergence_bound(beside_bound(case, steps=3, seeds=2, dimension=8))
    assert [len(axis.lines) for axis in figure.axes] == [4]
