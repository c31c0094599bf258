"""Sampled sweeps: the rule, the estimates, and the coverage of the intervals."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import qmaps
from qmaps import sweep
from qmaps.capture import CapturedStates, load
from qmaps.capture.recorder import write
from qmaps.capture.snapshot import Lazy
from qmaps.errors import BadTypeError, BadValueError, CaptureError, SpecError
from qmaps.normalize.base import REGISTRY, Normalizer, Shape
from qmaps.normalize.scale_format import SUFFIXES
from qmaps.ops.fit import fit_normalized
from qmaps.sweep import measure, sample
from qmaps.sweep.sample import (
    LEAST,
    Scaler,
    Slabs,
    Units,
    choose_units,
    count_of,
    quantiles,
    share_of_large,
    unit_of,
)
from tests.sweep.data import digest, same

SPECS = [
    "B128/DE@4s + B128/DE-0@4u", "B128/DE@4s + rank1/linear@4u", "row/DE@4s + B32x8/linear@4u",
    "tensor/DE@8s + logB128/log2@4u", "B128/DE@4s+sr + 32-bit",
    "rank1/linear@4s+qsr + 32-bit",
]  # fmt: skip
KEY = ["parameter", "state", "quantizer"]


def tensors(seeds: range, shape: tuple[int, ...] = (4000, 64)) -> dict[str, dict]:
    """Moments with rows of different sizes; a second moment is a mean of eight squares."""
    states = {}
    for seed in seeds:
        g = torch.Generator().manual_seed(seed)
        size = (0.4 * torch.randn(shape[0], *[1] * (len(shape) - 1), generator=g)).exp()
        v = torch.randn(8, *shape, generator=g).square().mean(0)
        states[f"p{seed}"] = {
            "exp_avg": torch.randn(shape, generator=g) * size * 1e-3,
            "exp_avg_sq": v * size.square() * 1e-6,
        }
    return states


def slabs_of(x: torch.Tensor) -> Slabs:
    return Slabs(tuple(x.shape), Lazy.of(x).opened())


def test_a_name_that_is_no_valid_unicode() -> None:
    with pytest.raises(CaptureError) as error:
        sweep.run({"w\udc80": tensors(range(1))["p0"]}, SPECS[0], sample=0.05)
    assert str(error.value) == (
        "'memory' names a parameter 'w\\udc80', which is no text in Unicode"
    )


@pytest.mark.slow
def test_intervals_cover_the_whole_sweep() -> None:
    states = tensors(range(40))
    full, part = sweep.run(states, SPECS), sweep.run(states, SPECS, sample=0.01)
    merged = part.merge(full, on=KEY, suffixes=("", "_whole"))
    assert len(merged) == len(full)
    assert (merged["bits_per_element"] == merged["bits_per_element_whole"]).all()
    assert merged["mean_square"].equals(merged["mean_square_whole"].rename("mean_square"))
    covered: list[bool] = []
    for metric in ("mean_abs_error", "mse", "mean_rel_error", "zeroed_share"):
        low, high, truth = (merged[f"{metric}{end}"] for end in ("_low", "_high", "_whole"))
        wide = low < high
        inside = ((low <= truth) & (truth <= high))[wide]
        assert inside.mean() > 0.85, metric
        covered += inside.tolist()
        assert ((merged[metric] >= low) & (merged[metric] <= high))[wide].all()
    assert len(covered) > 1000
    assert 0.92 <= np.mean(covered) <= 0.98
    for name in ("median_abs_error", "p99_abs_error", "median_rel_error", "sqnr_db"):
        ratio = (merged[name] / merged[f"{name}_whole"]).dropna()
        assert ratio.between(0.85, 1.15).all(), name


def choose(name: str, x: torch.Tensor, normalizers: list[Normalizer], share: float) -> Units:
    size = unit_of(x.shape, normalizers)
    count = count_of(x.numel(), size, share)
    assert count is not None
    return choose_units(name, x.shape, size, count, [slabs_of(x).surveyed(size)[0]])


def rows_of(chosen: Units, x: torch.Tensor) -> torch.Tensor:
    """The rows of `x` in the chosen units."""
    rows_per_unit = chosen.size // math.prod(x.shape[1:])
    rows = (chosen.chosen[:, None] * rows_per_unit + np.arange(rows_per_unit)).reshape(-1)
    return x[torch.from_numpy(rows[rows < len(x)])]


def test_the_chosen_units_are_whole_rows_and_blocks() -> None:
    x = torch.randn(2000, 96)
    x[700] *= 1e4
    normalizers = [qmaps.quantizer(f"{n}/linear@4s").normalizer for n in ("B128", "rank1x8", "row")]
    chosen = choose("w", x, normalizers, 0.3)
    assert (chosen.size, chosen.count, len(chosen.chosen)) == (384, 500, 150)
    assert chosen.certain.sum() == 37
    assert chosen.certain[np.searchsorted(chosen.chosen, 175)]  # the unit of row 700
    assert chosen.weights.sum() == pytest.approx(500)
    assert slabs_of(x).chosen(chosen.chosen, 384).equal(rows_of(chosen, x))
    again, of_second = (choose(name, x, normalizers, 0.3) for name in ("w", "v"))
    assert (again.chosen == chosen.chosen).all()
    assert not (of_second.chosen == chosen.chosen).all()


def test_a_ragged_end_and_one_dimension() -> None:
    x = torch.randn(300 * 128 + 5)
    normalizers = [qmaps.quantizer("B128/linear@4s").normalizer]
    x[-5:] = 1e6  # the last unit is certain
    chosen = choose("w", x, normalizers, 0.01)
    assert (chosen.count, len(chosen.chosen), len(rows_of(chosen, x))) == (
        301,
        LEAST,
        127 * 128 + 5,
    )
    assert slabs_of(x).chosen(chosen.chosen, 128).equal(rows_of(chosen, x))


WHOLE = "rank1B"
"""Tiles have scales of two blocks; their tensors are measured in full."""


def normalizers() -> list[Normalizer]:
    """Every normalizer with scales, with every format of scales."""
    results = []
    for cls in REGISTRY:
        for suffix in ["", *SUFFIXES]:
            map_ = "bf16@16s" if cls.spec_name == "unscaled" else "DE@4s"
            with suppress(SpecError):  # some combine with nothing
                q = qmaps.quantizer(f"{cls.spec_name.replace('<n>', '8')}{suffix}/{map_}")
                results.append(q.normalizer)
    pairs = [qmaps.quantizer(f"{n}/DE@4s").normalizer for n in ("B16&rank1", "B8x8&colx8")]
    return [normalizer for normalizer in results if not normalizer.spec.startswith(WHOLE)] + pairs


def test_normalizers_are_found() -> None:
    assert {"B8", "B8x8", "tensor", "rowxe4m3", "rank1xf16sq", "unscaled"} <= {
        normalizer.spec for normalizer in normalizers()
    }


@pytest.mark.parametrize("normalizer", normalizers(), ids=str)
@pytest.mark.parametrize("shape", [(40, 30), (1205,), (4, 3, 100), (1, 1200), (1200, 1)])
def test_rows_have_the_scales_of_the_whole(
    normalizer: Normalizer, shape: Shape, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "SLAB", 400)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    state, scaler = slabs_of(x), Scaler(normalizer, len(shape))
    unit = unit_of(shape, [normalizer])
    state.surveyed(unit, [scaler])
    numbers = np.arange(0, -(-x.numel() // unit), 2)
    rows = state.chosen(numbers, unit)
    expanded = normalizer.expand(normalizer.scales(x), shape).expand(shape)
    expected = slabs_of(expanded.contiguous()).chosen(numbers, unit)
    actual = normalizer.expand(scaler.scales(rows), tuple(rows.shape)).expand(rows.shape)
    assert torch.equal(actual, expected)


def test_means_of_tensors_in_full_are_their_own_ends() -> None:
    states = tensors(range(1)) | {"x": tensors(range(1, 2), (90, 64))["p1"]}
    frame = sweep.run(states, SPECS[:1], sample=0.05)
    [row] = sweep.summarize(frame).to_dict("records")
    name, update = "mean_abs_error", frame[frame["state"] == "update"].set_index("parameter")
    weight = update["numel"] / update["numel"].sum()
    low = update[f"{name}_low"].fillna(update[name])
    assert row[f"{name}_low"] == pytest.approx((low * weight).sum())
    assert row[f"{name}_low"] < row[name] < row[f"{name}_high"]


def test_rows_do_not_depend_on_slabs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(CapturedStates.from_tensors(tensors(range(2)), step=1), tmp_path / "states")
    expected = sweep.run(path, SPECS, sample=0.05)
    monkeypatch.setattr(sample, "SLAB", 3000)
    frame = sweep.run(path, SPECS, sample=0.05)
    sums = ["mean_square", "sqnr_db"]
    np.testing.assert_allclose(frame[sums], expected[sums], rtol=1e-12)
    same(frame.drop(columns=sums), expected.drop(columns=sums))


def test_a_large_tensor_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    q = qmaps.quantizer("B128/DE@4s")
    assert share_of_large((4096, 4096), [q]) is None
    assert share_of_large((128256, 4096), [q]) == pytest.approx(0.002, rel=0.01)
    for spec in ("rank1B8x8/DE@4s", "lowrank4(B128/DE@8s)+B128/DE@4s"):  # they need all of it
        assert share_of_large((128256, 4096), [q, qmaps.quantizer(spec)]) is None
    states = tensors(range(1))
    expected = sweep.run(states, SPECS, sample=0.05)
    monkeypatch.setattr("qmaps.sweep.sample.LARGEST", 0)
    monkeypatch.setattr("qmaps.sweep.sample.SAMPLE", 0.05 * 4000 * 64)
    same(sweep.run(states, SPECS), expected)
    same(sweep.run(states, SPECS, sample=0.05), expected)


def test_maps_are_fitted_to_some_units(monkeypatch: pytest.MonkeyPatch) -> None:
    states = tensors(range(1))
    specs = ["B128/lloyd@4s + tensor/quantile@8u", "B32x8/quantile@4s + B128/lloyd@3u"]
    expected = sweep.run(states, specs, sample=0.2)
    monkeypatch.setattr(measure, "FIT", 100_000)
    frame = sweep.run(states, specs, sample=0.2)
    assert not frame["mse"].equals(expected["mse"])
    columns = ["mse", "mean_abs_error", "median_abs_error"]
    np.testing.assert_allclose(frame[columns], expected[columns], rtol=0.3)


def test_lloyd_max_is_fitted_to_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    x = {"w": tensors(range(1))["p0"]["exp_avg"]}
    specs = [qmaps.quantizer(f"B128/{name}") for name in ("lloyd@4s", "quantile@4s")]
    lloyd, quantile = measure.fitted(x, {"w": specs}).values()
    monkeypatch.setattr(measure, "FIT", 64000)
    monkeypatch.setattr(measure, "PIECE", 6400)
    pieces, same_quantile = measure.fitted(x, {"w": specs}).values()
    begins = [n * (256000 - 6400) // 9 for n in range(10)]
    scale = specs[0].normalizer.expand(specs[0].normalizer.scales(x["w"]), (4000, 64))
    n, scale = ((t.reshape(-1)) for t in (x["w"] / scale, scale))
    n, scale = (torch.cat([t[begin : begin + 6400] for begin in begins]) for t in (n, scale))
    [wanted] = fit_normalized(specs[:1], n, scale)
    assert pieces.map.codebook().equal(wanted.map.codebook())
    assert not pieces.map.codebook().equal(lloyd.map.codebook())
    assert same_quantile.map.codebook().equal(quantile.map.codebook())


def test_elements_that_cannot_be_measured() -> None:
    x = torch.ones(700, 128)
    x[40, 3] = x[50, 0] = -1
    states = {"w": {"exp_avg": torch.ones(700, 128), "exp_avg_sq": x}}
    frame = sweep.run(states, ["B128/DE@4u"], sample=0.3)
    assert frame["state"].tolist() == ["exp_avg"]
    with pytest.raises(BadValueError) as caught:
        sweep.run(states, ["B128/DE@4s + B128/DE@4u"], sample=0.3)
    assert str(caught.value) == (
        "exp_avg_sq of 'w' holds negative elements; DE@4u is unsigned; use a signed map"
    )
    x[40, 3] = math.nan
    with pytest.raises(CaptureError) as damaged:
        sweep.run(states, ["B128/DE@4s"], sample=0.3)
    assert str(damaged.value) == (
        "state 'exp_avg_sq' of parameter 'w' in 'memory' holds 1 NaN or infinite elements, the "
        "first at flat index 5123; only finite states can be analyzed"
    )


def test_parts_of_states(tmp_path: Path) -> None:
    moments = tensors(range(1), (300, 201))["p0"]
    expected = moments["exp_avg"].reshape(-1)
    captured = load(write(CapturedStates.from_tensors({"a": moments}), tmp_path / "states"))
    saved = {"state": {0: {"step": 9, **moments}}, "param_groups": [{"params": [0]}]}
    torch.save(saved, tmp_path / "o.pt")
    for states in (captured, load(tmp_path / "o.pt")):
        [name] = states.parameters()
        read = states.opened(name, "exp_avg")
        for begin, end in ((0, 60300), (17, 1234), (60299, 60300), (5, 5)):
            assert torch.equal(read(begin, end), expected[begin:end])


def test_parts_of_a_damaged_snapshot(tmp_path: Path) -> None:
    path = write(
        CapturedStates.from_tensors({"w": {"exp_avg": torch.ones(90, 90)}}), tmp_path / "s"
    )
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(CaptureError, match="is damaged: the checksum of tensor 0 is wrong"):
        load(path).opened("w", "exp_avg")


def test_small_tensors_are_measured_in_full() -> None:
    states = tensors(range(1), (90, 64)) | {"x": {"exp_avg": torch.randn(70, 80)}}
    same(sweep.run(states, SPECS, sample=0.01), sweep.run(states, SPECS))


def test_workers_choose_the_same_sample(tmp_path: Path) -> None:
    states = CapturedStates.from_tensors(tensors(range(2)), step=1)
    path = write(states, tmp_path / "states")
    expected = sweep.run(path, SPECS, sample=0.05)
    with ThreadPoolExecutor(2) as executor:
        same(sweep.run(path, SPECS, sample=0.05, executor=executor), expected)
    digests = [digest(path, SPECS, sample=share) for share in (None, 0.05, 0.1)]
    assert len(set(digests)) == 3


def test_weighted_quantiles() -> None:
    x = torch.arange(300 * 128, dtype=torch.float32)
    chosen = choose("w", x, [qmaps.quantizer("B128/linear@4s").normalizer], 0.5)
    values = rows_of(chosen, x).double()
    actual = quantiles("abs", values, torch.ones_like(values, dtype=torch.bool), chosen)
    assert actual["max_abs_error"] == x.numel() - 1
    assert actual["median_abs_error"] == pytest.approx(x.numel() / 2, rel=0.1)
    nothing = quantiles("rel", values, torch.zeros_like(values, dtype=torch.bool), chosen)
    assert pd.isna(list(nothing.values())).all()


def test_shares_that_cannot_be_sampled() -> None:
    for share in (0.0, 1.5):
        with pytest.raises(BadValueError) as caught:
            sweep.run(tensors(range(1)), SPECS, sample=share)
        assert str(caught.value) == f"sample={share:g} must be above 0 and at most 1"
    with pytest.raises(BadTypeError) as wrong:
        sweep.run(tensors(range(1)), SPECS, sample="5%")  # type: ignore[arg-type]
    assert str(wrong.value) == "sample='5%' must be a number"
