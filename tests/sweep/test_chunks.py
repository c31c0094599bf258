"""Large tensors are measured in chunks: the same rows as of whole tensors, but for rounding."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import qmaps
from qmaps import sweep
from qmaps.analyze._states import as_states
from qmaps.capture import CapturedStates, load
from qmaps.capture.saved import write
from qmaps.engines import dispatch, reference
from qmaps.engines.backends import use_backend
from qmaps.errors import BadValueError, CaptureError, SpecError
from qmaps.metrics import METRICS, SUMMED, measure_sums, register
from qmaps.normalize.base import REGISTRY, Normalizer, Scales, Shape
from qmaps.normalize.scale_format import SUFFIXES
from qmaps.sweep import chunks, divide
from qmaps.sweep.order import OUT, Ranks
from qmaps.sweep.spanning import Elementwise, boxes, scaler_of, supports
from qmaps.sweep.state import State
from tests.sweep.data import on_disk, same, tensors

SPECS = [
    "B128/DE@4s", "B100/DE@4s", "tensor/linear@4s", "rank1/DE@8s", "row/DE@4s", "colx8/DE@4s",
    "B32x8/DE@4s", "B96&rank1/DE@4s", "B16xe4m3/e2m1@4s", "B16xf16/DE@4s", "rank1xe8m0/DE@4s",
    "unscaled/bf16@16s", "rank1/linear@12s", "B128/DE@4s+sr", "rank1/DE@4s+sr",
    "B100/DE@4s+ef4", "B100/linear@4s+dither", "rank1/linear@4s+dither + B32/linear@4u+dither",
    "B2048/quantile@8s", "rank1/lloyd@4s",
    "B128/DE@4s + rank1/linear@4u", "B100/DE@4s + logB128/log2@4u", "B32x8/DE@4s + 32-bit",
    "tensor/quantile@8s + B96&rank1/DE-0@4u", "B128/lloyd@4s + B32x8/linear@4u",
    "32-bit + B2048/DE-0@8u",
]  # fmt: skip
FEW = [
    "B100/DE@4s", "rank1/lloyd@4s", "B128/DE@4s + rank1/linear@4u", "B128/DE@4s + 32-bit",
    "B100/DE@4s + B32x8/linear@4u",
]  # fmt: skip
SUMS = ("mean_square", "mean_abs_error", "mean_rel_error", "mse", "sqnr_db")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tensor is large, and has several chunks."""
    monkeypatch.setattr(chunks, "LARGEST", 0)
    monkeypatch.setattr(chunks, "LARGEST_SLOW", 0)
    monkeypatch.setattr(chunks, "CHUNK", 2000)


def alike(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    """Assert equal bits everywhere but in sums, which may be added in another order."""
    rest = [name for name in expected if name not in SUMS]
    same(found[rest], expected[rest])
    for name in SUMS:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-12, atol=0)


def states(*shapes: tuple[int, ...]) -> dict[str, dict[str, torch.Tensor]]:
    """Moments of these shapes, with zeros, outliers and a block of zeros."""
    g = torch.Generator().manual_seed(1)
    made = {}
    for shape in shapes:
        m = torch.randn(shape, generator=g) * 1e-3
        v = (torch.randn(shape, generator=g) * torch.exp(torch.randn(shape, generator=g))) ** 2
        m.view(-1)[:300] = 0
        v.view(-1)[[5, -5]] *= 1e6
        made["x".join(map(str, shape))] = {"exp_avg": m, "exp_avg_sq": v * 1e-6}
    return made


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("engine", ["native", "reference"])
def test_chunks_give_the_rows_of_whole_tensors(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = states((90, 61), (5003,), (7, 11, 73), (3, 2000), (5000, 1))
    with use_backend(engine):
        found = sweep.run(given, SPECS)
        monkeypatch.setattr(chunks, "LARGEST", 10**9)
        monkeypatch.setattr(chunks, "LARGEST_SLOW", 10**9)
        expected = sweep.run(given, SPECS)
    alike(found, expected)
    assert not found["mean_abs_error"].equals(expected["mean_abs_error"])  # there were chunks


@pytest.mark.usefixtures("small")
def test_a_tensor_of_one_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    given = tensors()
    monkeypatch.setattr(chunks, "CHUNK", 10**6)
    found = sweep.run(given, SPECS)
    monkeypatch.setattr(chunks, "LARGEST", 10**9)
    monkeypatch.setattr(chunks, "LARGEST_SLOW", 10**9)
    alike(found, sweep.run(given, SPECS))


WHOLE = "rank1B"
"""Tiles have scales of two blocks; tensors of theirs are measured as a whole."""


def normalizers() -> list[Normalizer]:
    """Every one that divides by scales, with every format of scales."""
    found = []
    for cls in REGISTRY:
        for suffix in ["", *SUFFIXES]:
            map_ = "bf16@16s" if cls.spec_name == "unscaled" else "DE@4s"
            with suppress(SpecError):  # some combine with nothing
                q = qmaps.quantizer(f"{cls.spec_name.replace('<n>', '8')}{suffix}/{map_}")
                found.append(q.normalizer)
    return [each for each in found if not each.spec.startswith(WHOLE)]


@pytest.mark.parametrize("spec", ["rank1B8x8", "rank1B8x8xf16", "rank1B8x8&B128"])
def test_tiles_are_no_chunks(spec: str) -> None:
    assert not supports(qmaps.quantizer(f"{spec}/DE@4s").normalizer, 2)


def test_normalizers_are_found() -> None:
    assert {"B8", "B8x8", "tensor", "rowxe4m3", "rank1xf16sq", "unscaled"} <= {
        normalizer.spec for normalizer in normalizers()
    }


@pytest.mark.parametrize("normalizer", normalizers(), ids=str)
@pytest.mark.parametrize("shape", [(40, 30), (1200,), (4, 3, 100), (1, 1200), (1200, 1)])
def test_scales_of_every_normalizer(normalizer: Normalizer, shape: Shape) -> None:
    assert supports(normalizer, len(shape))
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    scaler = scaler_of(normalizer, shape)
    flat = x.reshape(-1)
    size = 8 if any(extent.block == 8 for extent in normalizer.extents(len(shape)) or ()) else 7
    size = 128 if any(e.block == 128 for e in normalizer.extents(len(shape)) or ()) else 8 * size
    for begin in range(0, flat.numel(), size):
        scaler.look(flat[begin : begin + size], begin)
    scaler.finish()
    found = torch.cat(
        [scaler.expanded(flat[begin : begin + size], begin).expand(min(size, 1200 - begin))
         for begin in range(0, flat.numel(), size)]
    )  # fmt: skip
    expected: Scales = normalizer.scales(x)
    assert torch.equal(found.view(shape), normalizer.expand(expected, shape).expand(shape))


@pytest.mark.parametrize("shape", [(4, 3), (7,), (2, 3, 5), (1, 4, 1, 3), (5, 1)])
def test_boxes_cover_a_range_once_and_in_order(shape: Shape) -> None:
    numbers = torch.arange(math.prod(shape)).view(shape)
    for begin in range(numbers.numel() + 1):
        for end in range(begin, numbers.numel() + 1):
            found = list(boxes(shape, begin, end))
            parts = [numbers[tuple(slice(*side) for side in box)].reshape(-1) for _, box in found]
            assert torch.cat([torch.arange(0), *parts]).tolist() == list(range(begin, end))
            for (at, _), part in zip(found, parts, strict=True):
                assert at == int(part[0]) - begin
            assert len(found) <= 2 * len(shape)


def test_quantiles_are_those_of_numpy() -> None:
    g = np.random.default_rng(0)
    values = (g.standard_normal(30_000).astype(np.float32) ** 2) * np.float32(1e-3)
    values[:10_000] = values[0]  # many with the same upper half
    values[10_000:11_000] = 0
    levels = [0.001, 0.05, 0.3, 0.5, 0.99, 0.999, 1.0]
    bits = values.view(np.uint32)
    out = np.full(7, OUT, np.uint32)
    ranks = Ranks()
    for part in np.split(bits, [1, 500, 20_000]):
        ranks.add(np.concatenate([part, out]), float(part.view(np.float32).sum(dtype=np.float64)))
    assert ranks.count == values.size
    ranks.turn(levels)
    for part in np.split(bits, [1, 500, 20_000]):
        ranks.add_again(np.concatenate([out, part]))
    ordered = np.sort(values)
    assert ranks.values(len(levels)) == [
        ordered[math.ceil(level * values.size) - 1] for level in levels
    ]
    empty = Ranks()
    empty.add(out, 0.0)
    empty.turn(levels)
    empty.add_again(out)
    assert all(math.isnan(value) for value in empty.values(len(levels)))


@pytest.mark.parametrize(
    "spec",
    ["tensor/DE@8s", "rank1/DE@4s", "colx8/DE@4s", "B96&rank1/DE@3s", "row/linear@4s+sr",
     "unscaled/e4m3@8s"],
)  # fmt: skip
@pytest.mark.parametrize("begin", [0, 6000])
def test_the_native_engine_takes_scales_that_span_a_tensor(
    spec: str, begin: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = states((70, 90))
    given["70x90"]["exp_avg"][:, 7] = 0
    q = qmaps.quantizer(spec)
    state = State.of(as_states(given), "70x90", "exp_avg", [q])
    x = state.read(begin, min(begin + 2016, state.numel))
    with use_backend("reference"):
        expected, values = state.encoded(q, x, begin)
    with monkeypatch.context() as patch:
        patch.setattr(reference, "quantize", None)  # it cannot be called
        sums, decoded = state.encoded(q, x, begin)
    assert isinstance(values, torch.Tensor)
    assert isinstance(decoded, qmaps.QuantizedTensor)
    assert decoded.dequantize().view(torch.int32).equal(values.view(torch.int32))
    for name, found in vars(sums).items():
        known = getattr(expected, name)
        if name in ("absolute", "square", "signal", "relative"):
            assert found == pytest.approx(known, rel=1e-13)
        else:
            assert torch.as_tensor(found).equal(torch.as_tensor(known)), name
    assert sums.absolute > 0


def test_boundaries_follow_from_the_spec_alone() -> None:
    def step(*specs: str) -> int:
        return chunks.step_of([qmaps.quantizer(spec) for spec in specs], 2)

    assert step("B128/DE@4s") == step("rank1/DE@4s") == step("B2048x8/DE@4s") == chunks.CHUNK
    assert step("B100/DE@4s") == chunks.CHUNK // 100 * 100
    assert step("B96&rank1/DE@4s", "B100/DE@4s") == chunks.CHUNK // 2400 * 2400
    assert step(f"B{2**23}/DE@4s") == 2**23
    assert list(chunks.ranges(10, 4)) == [(0, 4), (4, 8), (8, 10)]


@pytest.mark.usefixtures("small")
def test_rows_do_not_depend_on_memory_workers_or_other_specs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = on_disk(tmp_path)
    whole = sweep.run(path, FEW)
    same(sweep.run(path, FEW, memory=None), whole)
    monkeypatch.setattr(divide, "FIT", 0)
    little = 3 * divide.COUNTERS
    items = sweep.plan(path, FEW, memory=little)
    assert len(items) > 5
    same(sweep.run(path, FEW, memory=little), whole)
    with ThreadPoolExecutor(2) as executor:
        same(sweep.run(path, FEW, memory=little, executor=executor), whole)
    for spec in FEW:
        own = whole[(whole["quantizer"] == spec) & (whole["state"].isin(["exp_avg", "update"]))]
        alone = sweep.run(path, [spec])
        alone = alone[(alone["quantizer"] == spec) & (alone["state"].isin(["exp_avg", "update"]))]
        alone = alone.dropna(axis=1, how="all")
        # Others columns are empty, or of another dtype without a pair.
        shared = [name for name in alone if name not in ("first", "second")]
        same(alone[shared].reset_index(drop=True), own[shared].reset_index(drop=True))


def test_a_parameter_with_whole_and_divided_specs(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = sweep.run(tensors(), SPECS)
    monkeypatch.setattr(chunks, "LARGEST_SLOW", 0)
    monkeypatch.setattr(chunks, "CHUNK", 1000)
    found = sweep.run(tensors(), SPECS)
    alike(found, expected)
    fitted = found["quantizer"].str.contains("lloyd|@12s|@16s")
    same(found[~fitted].reset_index(drop=True), expected[~fitted].reset_index(drop=True))
    assert not found[fitted].equals(expected[fitted])


@pytest.mark.usefixtures("small")
def test_sums_are_added_in_the_order_of_the_tensor() -> None:
    x = tensors()["c"]["exp_avg"]
    q = qmaps.quantizer("B100/DE@4s")
    parts = []
    for begin in range(0, x.numel(), 2000):
        found = dispatch.measure(
            x.view(-1)[begin : begin + 2000], q.normalizer, q.map, None, keep=False
        )
        assert found is not None
        parts.append(found[0])
    row = sweep.run({"c": {"exp_avg": x}}, q).iloc[0]
    expected = measure_sums(reduce(add, parts))
    assert {name: row[name] for name in expected} == expected
    assert measure_sums(reduce(add, parts[::-1])) != expected


@pytest.mark.usefixtures("small")
def test_a_pair_that_needs_whole_tensors_and_its_quantizers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Elementwise does not say what its scales span.
    second = Elementwise() / qmaps.quantizer("B128/linear@4u").map
    assert not supports(second.normalizer, 2)
    pair = (qmaps.quantizer("B128/DE@4s"), second)
    found = sweep.run(tensors(), [pair])
    chunked = sweep.run(tensors(), ["B128/DE@4s"])
    monkeypatch.setattr(chunks, "LARGEST", 10**9)
    expected = sweep.run(tensors(), [pair])
    alike(found, expected)
    whole, rows = (each["state"].isin(["update", "exp_avg_sq"]) for each in (found, expected))
    same(found[whole].reset_index(drop=True), expected[rows].reset_index(drop=True))
    first = chunked[(chunked["state"] == "exp_avg") & (chunked["parameter"] != "first")]
    alone = found[found["state"] == "exp_avg"]
    assert alone["mse"].tolist() == first["mse"].tolist()


def test_maps_are_fitted_to_spread_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "FIT", 1000)
    monkeypatch.setattr(chunks, "PIECE", 100)
    assert list(chunks.pieces(900, 64)) == [
        *((64 * n, 64 * (n + 1)) for n in range(14)),
        (896, 900),
    ]
    found = list(chunks.pieces(10_000, 64))
    assert len(found) == 15
    assert found[0] == (0, 64)
    assert found[-1] == (9920, 9984)
    assert all(begin % 64 == 0 and end - begin == 64 for begin, end in found)
    gaps = np.diff([begin for begin, _ in found])
    assert gaps.max() - gaps.min() <= 64


@pytest.mark.usefixtures("small")
def test_a_map_fitted_to_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "FIT", 20_000)
    monkeypatch.setattr(chunks, "PIECE", 256)
    x = tensors()["c"]["exp_avg"]
    row = sweep.run({"c": {"exp_avg": x}}, ["B128/lloyd@4s"]).iloc[0]
    flat = x.reshape(-1)
    sample = torch.cat([flat[a:b] for a, b in chunks.pieces(x.numel(), 128)])
    assert sample.numel() == 78 * 256
    fitted = qmaps.quantizer("B128/lloyd@4s").fit(sample)
    assert row["mse"] == pytest.approx(fitted.error(x)["mse"], rel=1e-12)
    assert row["mse"] != pytest.approx(qmaps.quantizer("B128/lloyd@4s").error(x)["mse"], rel=1e-6)


@pytest.mark.usefixtures("small")
def test_negative_elements_under_unsigned_maps() -> None:
    x = torch.ones(70, 70)
    x[40, 3] = x[50, 0] = -1
    given = {"w": {"exp_avg": torch.ones(70, 70), "exp_avg_sq": x}}
    found = sweep.run(given, ["B128/DE@4u"])
    assert found["state"].tolist() == ["exp_avg"]
    with pytest.raises(BadValueError) as caught:
        sweep.run(given, ["B128/DE@4s + B128/DE@4u"])
    assert str(caught.value) == (
        "x holds 2 negative elements, the first at flat index 2803; DE@4u is unsigned; use a "
        "signed map"
    )


@pytest.mark.usefixtures("small")
def test_elements_that_are_not_finite() -> None:
    x = torch.ones(70, 70)
    x[40, 3] = math.nan
    with pytest.raises(CaptureError) as caught:
        sweep.run({"w": {"exp_avg": x}}, ["B128/DE@4s"])
    assert str(caught.value) == (
        "state 'exp_avg' of parameter 'w' in 'memory' holds 1 NaN or infinite elements among 2000 "
        "from index 2000 on, the first at flat index 2803; only finite states can be analyzed"
    )


@pytest.mark.usefixtures("small")
def test_metrics_without_sums_are_of_whole_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qmaps.metrics.METRICS", dict(METRICS))
    monkeypatch.setattr("qmaps.metrics.SUMMED", dict(SUMMED))
    register("least", lambda x, decoded, codes, size: float((x - decoded).min()))
    q = qmaps.quantizer("B128/DE@4s")
    assert not chunks.in_chunks(q, 10**9, 2)
    assert "least" in sweep.run(tensors(), [q])


def test_ordinary_tensors_are_measured_whole() -> None:
    for spec in ("B128/DE@4s", "rank1/quantile@8s"):
        assert not chunks.in_chunks(qmaps.quantizer(spec), 50257 * 768, 2)
        assert chunks.in_chunks(qmaps.quantizer(spec), 128256 * 4096, 2)
    assert chunks.in_chunks(qmaps.quantizer("B128/lloyd@4s"), 50257 * 768, 2)


def test_parts_of_states(tmp_path: Path) -> None:
    expected = tensors()["a"]["exp_avg"].reshape(-1)
    captured = load(on_disk(tmp_path))
    torch.save(
        {"state": {0: tensors()["a"]}, "param_groups": [{"params": [0]}]}, tmp_path / "optimizer.pt"
    )
    for states in (captured, load(tmp_path / "optimizer.pt")):
        [name] = [n for n in states.parameters() if states.shape(n, "exp_avg") == (300, 201)]
        assert states.in_parts(name, "exp_avg")
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
