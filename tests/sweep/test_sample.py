"""Sampled sweeps: the rule, the estimates, and how often the intervals cover the truth."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import qmaps
from qmaps import sweep
from qmaps.capture import CapturedStates
from qmaps.capture.saved import write
from qmaps.errors import BadValueError
from qmaps.sweep.sample import quantiles
from qmaps.sweep.units import LEAST, units
from tests.sweep.data import same

SPECS = [
    "B128/DE@4s + B128/DE-0@4u", "B128/DE@4s + rank1/linear@4u", "row/DE@4s + B32x8/linear@4u",
    "tensor/DE@8s + logB128/log2@4u", "B128/DE@4s+sr + 32-bit",
    "rank1/linear@4s+dither + 32-bit", "B128/DE@4s+ef4 + B128/DE-0@4u+ef8",
]  # fmt: skip
KEY = ["parameter", "state", "quantizer"]


def tensors(seeds: range, shape: tuple[int, ...] = (4000, 64)) -> dict[str, dict]:
    """Moments with rows of different sizes; a second moment is a mean of eight squares."""
    made = {}
    for seed in seeds:
        g = torch.Generator().manual_seed(seed)
        size = (0.4 * torch.randn(shape[0], *[1] * (len(shape) - 1), generator=g)).exp()
        v = torch.randn(8, *shape, generator=g).square().mean(0)
        made[f"p{seed}"] = {
            "exp_avg": torch.randn(shape, generator=g) * size * 1e-3,
            "exp_avg_sq": v * size.square() * 1e-6,
        }
    return made


def test_intervals_cover_the_whole_sweep() -> None:
    states = tensors(range(40))
    whole, part = sweep.run(states, SPECS), sweep.run(states, SPECS, sample=0.01)
    both = part.merge(whole, on=KEY, suffixes=("", "_whole"))
    assert len(both) == len(whole)
    assert (both["bits_per_element"] == both["bits_per_element_whole"]).all()
    assert both["mean_square"].equals(both["mean_square_whole"].rename("mean_square"))
    covered: list[bool] = []
    for metric in ("mean_abs_error", "mse", "mean_rel_error", "zeroed_share"):
        low, high, truth = (both[f"{metric}{end}"] for end in ("_low", "_high", "_whole"))
        wide = low < high
        inside = ((low <= truth) & (truth <= high))[wide]
        assert inside.mean() > 0.85, metric
        covered += inside.tolist()
        assert ((both[metric] >= low) & (both[metric] <= high))[wide].all()
    assert len(covered) > 1000
    assert 0.92 <= np.mean(covered) <= 0.98
    for name in ("median_abs_error", "p99_abs_error", "median_rel_error", "sqnr_db"):
        ratio = (both[name] / both[f"{name}_whole"]).dropna()
        assert ratio.between(0.85, 1.15).all(), name


def test_the_chosen_units_are_whole_rows_and_blocks() -> None:
    x = torch.randn(2000, 96)
    x[700] *= 1e4
    normalizers = [qmaps.quantizer(f"{n}/linear@4s").normalizer for n in ("B128", "rank1x8", "row")]
    chosen = units("w", [x], normalizers, 0.3)
    assert chosen is not None
    assert (chosen.size, chosen.count, len(chosen.chosen)) == (384, 500, 150)
    assert chosen.certain.sum() == 37
    assert chosen.certain[np.searchsorted(chosen.chosen, 175)]  # the unit of row 700
    assert chosen.weights.sum() == pytest.approx(500)
    again = units("w", [x], normalizers, 0.3)
    other = units("v", [x], normalizers, 0.3)
    assert again is not None
    assert other is not None
    assert (again.chosen == chosen.chosen).all()
    assert not (other.chosen == chosen.chosen).all()
    for normalizer in normalizers:  # what is sampled has the scales of the whole
        scales = normalizer.scales(x)
        part = normalizer.expand(
            chosen.restricted(scales, normalizer, 2), tuple(chosen.of(x).shape)
        )
        whole = normalizer.expand(scales, tuple(x.shape)).expand(x.shape)
        assert torch.equal(part.expand(chosen.of(x).shape), chosen.of(whole))


def test_a_ragged_end_and_one_dimension() -> None:
    x = torch.randn(300 * 128 + 5)
    normalizers = [qmaps.quantizer("B128/linear@4s").normalizer]
    x[-5:] = 1e6  # the last unit is certain
    chosen = units("w", [x], normalizers, 0.01)
    assert chosen is not None
    assert (chosen.count, len(chosen.chosen), len(chosen.rows)) == (301, LEAST, 127 * 128 + 5)
    scales = chosen.restricted(normalizers[0].scales(x), normalizers[0], 1)
    assert torch.equal(scales[0], normalizers[0].scales(chosen.of(x))[0])


def test_small_tensors_are_measured_in_full() -> None:
    states = tensors(range(1), (90, 64)) | {"x": {"exp_avg": torch.randn(70, 80)}}
    same(sweep.run(states, SPECS, sample=0.01), sweep.run(states, SPECS))


def test_workers_choose_the_same_sample(tmp_path: Path) -> None:
    states = CapturedStates.from_tensors(tensors(range(2)), step=1)
    path = write(states, tmp_path / "states")
    expected = sweep.run(path, SPECS, sample=0.05)
    with ThreadPoolExecutor(2) as executor:
        same(sweep.run(path, SPECS, sample=0.05, executor=executor), expected)
    digests = [{i.digest for i in sweep.plan(path, SPECS, sample=s)} for s in (None, 0.05, 0.1)]
    assert len(set.union(*digests)) == 6


def test_weighted_quantiles() -> None:
    x = torch.arange(300 * 128, dtype=torch.float32)
    chosen = units("w", [x], [qmaps.quantizer("B128/linear@4s").normalizer], 0.5)
    assert chosen is not None
    values = chosen.of(x).double()
    found = quantiles("abs", values, torch.ones_like(values, dtype=torch.bool), chosen)
    assert found["max_abs_error"] == x.numel() - 1
    assert found["median_abs_error"] == pytest.approx(x.numel() / 2, rel=0.1)
    nothing = quantiles("rel", values, torch.zeros_like(values, dtype=torch.bool), chosen)
    assert pd.isna(list(nothing.values())).all()


def test_shares_that_cannot_be_sampled() -> None:
    for share in (0.0, 1.5):
        with pytest.raises(BadValueError) as caught:
            sweep.run(tensors(range(1)), SPECS, sample=share)
        assert str(caught.value) == f"sample={share:g} must be above 0 and at most 1"
