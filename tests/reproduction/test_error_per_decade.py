"""Errors by decade against plain numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import qmaps
from qmaps.errors import BadValueError
from qmaps.normalize import BlockWise, PerTensor
from reproduction import analyses

pytestmark = pytest.mark.slow

EPS = 1e-6
SPECS = ("logB64/log2@8u", "B64/linear0@8u", "B64/DE@4u")


def tensors() -> dict[str, torch.Tensor]:
    """Second moments over some twelve decades, with exact zeros and a ragged last block."""
    generator = torch.Generator().manual_seed(0)
    states = {
        name: torch.exp(6 * torch.randn(shape, generator=generator))
        for name, shape in {"a": (31, 17), "b": (200,)}.items()
    }
    states["a"][3] = 0
    return states | {"never met": torch.zeros(70)}


def by_hand(spec: str, size: int | None, decades: int) -> list[dict[str, float]]:
    exact, decoded, largest = [], [], []
    for tensor in tensors().values():
        x = tensor.numpy().ravel().astype(np.float64)
        exact.append(x)
        decoded.append(qmaps.quantizer(spec).quantize(tensor).dequantize().numpy().ravel())
        step = size or x.size
        blocks = [x[start : start + step] for start in range(0, x.size, step)]
        largest += [np.full(block.size, block.max()) for block in blocks]
    v, w, top = (np.concatenate(parts) for parts in (exact, decoded, largest))
    v, w, top = (part[v > 0] for part in (v, w.astype(np.float64), top))
    rows = []
    for decade in range(decades):
        low = 0 if decade == decades - 1 else 10.0 ** -(decade + 1)
        inside = (v / top > low) & (v / top <= 10.0**-decade)
        relative = np.abs(w[inside] - v[inside]) / v[inside]
        h, g = (1 / (np.sqrt(part[inside]) + EPS) for part in (v, w))
        rows.append(
            {
                "elements": int(inside.sum()),
                "share": inside.mean(),
                "mean_rel_error": relative.mean(),
                "median_rel_error": np.median(relative),
                "max_rel_error": relative.max(),
                "mean_update_error": (np.abs(g - h) / h).mean(),
                "zeros": (w[inside] == 0).mean(),
            }
        )
    return rows


@pytest.mark.parametrize("size", [64, 16, None])
def test_every_number_by_hand(size: int | None) -> None:
    normalizer = PerTensor() if size is None else BlockWise(size)
    frame = analyses.error_per_decade(tensors(), SPECS, normalizer=normalizer, decades=6, eps=EPS)
    assert frame["quantizer"].tolist() == [spec for spec in SPECS for _ in range(6)]
    assert frame["decade"].tolist() == 3 * list(range(6))
    for spec, rows in frame.groupby("quantizer"):
        for row, expected in zip(rows.to_dict("records"), by_hand(spec, size, 6), strict=True):
            for name, value in expected.items():
                assert row[name] == pytest.approx(value, rel=1e-9), (spec, row["decade"], name)
    assert frame["zeros"].max() > 0.9


def test_a_decade_without_elements_has_no_error() -> None:
    frame = analyses.error_per_decade({"v": torch.tensor([1.0, 5e-4])}, ["B256/DE@8u"], decades=5)
    assert frame["elements"].tolist() == [1, 0, 0, 1, 0]
    assert frame["share"].tolist() == [0.5, 0, 0, 0.5, 0]
    assert frame["mean_rel_error"].isna().tolist() == [False, True, True, False, True]


def test_bad_input() -> None:
    v = {"v": torch.ones(4)}
    for (values, options), message in (
        (
            ({"v": torch.tensor([1.0, -2.0])}, {}),
            ("tensors['v'] has 1 negative values; no value may be negative"),
        ),
        (({"v": torch.zeros(3)}, {}), "tensors must hold at least one value above 0"),
        (({}, {}), "tensors must hold at least one value above 0"),
        ((v, {"decades": 0}), "decades=0 must be at least 1"),
        (
            (v, {"normalizer": qmaps.quantizer("logB256/log2@8u").normalizer}),
            "normalizer=logB256 works on logarithms and has no scales; use one that divides",
        ),
    ):
        with pytest.raises(BadValueError) as caught:
            analyses.error_per_decade(values, SPECS, **options)
        assert str(caught.value) == message
