"""Emulated kernels give the reference's sums, update errors and grids, whatever the launch."""

from __future__ import annotations

import math

import pandas as pd
import pytest
import torch
from torch import Tensor

import qmaps
from qmaps import analyze, sweep
from qmaps.analyze.code_pairs import _add
from qmaps.analyze.update_error import Exact, OnePass, Reference
from qmaps.cuda import layout, updates
from qmaps.errors import NonFiniteError
from qmaps.maps import Codebook
from qmaps.ops import dispatch
from qmaps.ops.backends import use_backend
from tests.cuda.emulation import EmulatedEngine, emulated
from tests.cuda.test_tensors import sample
from tests.engines.native.test_metrics import RTOL, assert_sums, bits, close, moments, sums_of

KINDS = (
    ("B256/DE@8s", torch.float32), ("B2048/DE-0@8u+sr", torch.bfloat16),
    ("B8/nf4@4s+sr", torch.float16), ("tensor/linear@8u", torch.float32),
    ("rank1/linear@4u+sr", torch.bfloat16), ("B64&rank1/DE@3s", torch.float16),
    ("B32x8/DE@4s", torch.float32), ("rank1x8/linear@2s+sr", torch.float32),
    ("B32xf16sq/sqrt@8u", torch.float32), ("B16xe4m3/e2m1@4s+sr", torch.float32),
    ("B64xe8m0&colxf16/DE@4s", torch.bfloat16),
    ("logB100/log2@4u+sr", torch.float32), ("logB256q0.1/log2-0@4u", torch.float32),
    ("powB64r1000/e4m3@8s", torch.bfloat16), ("powB1024r16/linear@4u+sr", torch.float32),
    ("logB128/log2@8u", torch.float16), ("logB2048/log2@4u+sr", torch.float32),
)  # fmt: skip
SHAPES = ((), (37, 443))  # one element, and two chunks and a few


@pytest.mark.parametrize(("spec", "dtype"), KINDS)
def test_every_kind_of_scale(spec: str, dtype: torch.dtype, on_device: EmulatedEngine) -> None:
    q = qmaps.quantizer(spec)
    for shape in SHAPES:
        x = sample(shape, dtype, signed=q.map.signed)
        assert_sums(q, x)
    assert any(name.startswith("measure<") for name in on_device.launched)
    _, kept = q.measured(x, keep=True)
    assert isinstance(kept, qmaps.QuantizedTensor)
    with use_backend("reference"):
        expected = q.quantize(x)
    assert torch.equal(kept.packed, expected.packed)
    assert all(torch.equal(a, b) for a, b in zip(kept.scales, expected.scales, strict=True))


def test_special_values_and_views(on_device: EmulatedEngine) -> None:
    for spec in ("B256/DE@8s", "rank1/linear@4s"):
        q = qmaps.quantizer(spec)
        for value in (0.0, -0.0, 1e-45, -3.4e38):
            assert_sums(q, torch.full((300,), value))
        x = sample((60, 71), torch.float32, signed=True)
        for view in (x.t(), x[::2, 3:], x.view(-1)[1:], x[:1].expand(2, 3, 71)):
            assert_sums(q, view)


def test_errors_that_overflow(on_device: EmulatedEngine) -> None:
    """A user's codebook may reach beyond float32."""
    x = sample((100,), torch.float32, signed=True)
    x[3], x[40] = 3e38, 1e9
    far = qmaps.normalize.BlockWise(16) / Codebook([-1e30, -1.0, 0.5, 1e30], label="far")
    high = qmaps.normalize.PerTensor() / Codebook([1e30, 2e30], label="high", signed=True)
    for q in (far, high):
        assert_sums(q, x)
    assert math.isinf(sums_of(high, x).largest)


def test_what_cannot_be_quantized_is_refused_as_by_the_reference(
    on_device: EmulatedEngine,
) -> None:
    cases = (
        *((spec, value) for spec in ("B64/DE@8s", "rank1/DE@4s") for value in (math.nan, math.inf)),
        *(("B64/DE@8u", -1.0), ("rank1/linear@4u", -1e-45), ("logB64/log2@4u", math.nan)),
    )
    for spec, value in cases:
        q = qmaps.quantizer(spec)
        x = sample((70, 50), torch.float32, signed=False)
        x[3, 4] = x[60, 9] = value
        with pytest.raises(qmaps.QmapsError, match="holds 2 ") as caught:
            q.error(x)
        assert (caught.type is NonFiniteError) == (not math.isfinite(value))
        found = dispatch.measure(x, q.normalizer, q.map, keep=False)
        assert found is not None
        assert found[3]


PAIRS = (
    *("B128/DE@4s + B128/DE@4u", "B64/DE@8s + rank1/linear@4u", "32-bit + B128/DE-0@4u"),
    *("B8/DE@3s+sr + logB128/log2@5u", "tensor/DE@6s + 32-bit", "B100/DE@7s + logB2048/log2@2u"),
    "B128/linear@12s + B32x8/DE@8u",
    "powB64r1000/e4m3@8s + logB64q0.1/log2@4u",
)


def assert_update_errors(
    engine: EmulatedEngine, given: list[tuple[Tensor, Tensor, float]], spec: str
) -> None:
    pair = qmaps.algebra.pair.Pair.parse(spec)
    ours, theirs = OnePass.cuda(engine), Reference()
    ours.add(Exact.of(torch.ones(9), torch.ones(9), 1.0), torch.zeros(9), torch.zeros(9))
    ours.clear()
    for m, v, eps in given:
        exact = Exact.of(m, v, eps)
        with use_backend("reference"):
            first = m if pair.first is None else pair.first.quantize(m)
            second = v if pair.second is None else pair.second.quantize(v)
        ours.add(exact, first, second)
        theirs.add(exact, first, second)
    found, expected = ours.columns(), theirs.columns()
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert close(found[name], value, RTOL if name.startswith("mean") else 0), (name, spec)


@pytest.mark.parametrize("spec", PAIRS)
def test_update_errors(spec: str, on_device: EmulatedEngine) -> None:
    m, v = moments(5, (60, 90))
    several = [(*moments(0, (93, 90)), 1e-8), (*moments(3, (77,)), 1e-6), (m.t(), v.t(), 0.1)]
    assert_update_errors(on_device, several, spec)
    assert "update_errors" in on_device.launched
    assert_update_errors(on_device, [(*moments(1, (1,)), 1e-8)], spec)


def test_update_errors_of_special_values(on_device: EmulatedEngine) -> None:
    m, v = moments(0)
    # Without eps, 0 / 0 and overflow: NaN is the largest, as in the reference.
    cases = [(m, v, eps) for eps in (0.0, 1e-45, 1e30)]
    zeros = torch.zeros(90, 60)
    cases += [(zeros, v, 1e-8), (m, zeros, 1e-8), (zeros, zeros, 1e-8)]
    cases += [(m * 1e30, v * 1e-30, 1e-30), (m * 1e-38, v, 1e-8)]
    for case in cases:
        assert_update_errors(on_device, [case], PAIRS[0])


def states(shape: tuple[int, ...]) -> dict[str, dict[str, Tensor]]:
    found = {}
    for seed, (name, of_shape) in enumerate({"a": shape, "b": (5000,)}.items()):
        m, v = moments(seed, of_shape)
        m.view(-1)[: m.numel() // 2] = 0  # one cell holds more than a piece
        v.view(-1)[: m.numel() // 2] = 0
        found[name] = {"exp_avg": m, "exp_avg_sq": v}
    return found


@pytest.mark.parametrize("spec", ["B128/DE@4s + rank1/linear@4u", "B64/DE@8s + B64x8/DE@7u"])
def test_grids_of_code_pairs(
    spec: str, on_device: EmulatedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = states((90, 190))
    assert given["a"]["exp_avg"].numel() // 2 > 2 * layout.PIECE
    ours = [analyze.code_pairs(given, [spec], min_quantized_size=0)]
    monkeypatch.setattr(updates, "SEGMENT", 3 * layout.TILE)
    ours.append(analyze.code_pairs(given, [spec], min_quantized_size=0))
    assert "sum_cells" in on_device.launched
    with use_backend("reference"):
        theirs = analyze.code_pairs(given, [spec], min_quantized_size=0)
    for frame in ours:
        pd.testing.assert_frame_equal(frame, theirs, check_exact=False, rtol=RTOL, atol=0)


def test_grids_of_updates_that_are_not_numbers(on_device: EmulatedEngine) -> None:
    m, v = moments(0)
    grids = [torch.zeros(4, 16, 15, dtype=torch.float64) for _ in range(2)]
    with use_backend("reference"):
        exact = Exact.of(m, v, 0.0)
        first = qmaps.quantizer("B128/DE@4s").quantize(m)
        second = qmaps.quantizer("B128/DE-0@4u").quantize(v)
        _add(grids[0], exact, first, second)
    _add(grids[1], exact, first, second)
    assert "sum_cells" in on_device.launched
    assert grids[0].isnan().any()
    assert torch.allclose(*grids, rtol=RTOL, atol=0, equal_nan=True)


def test_no_launch_changes_bits(device: EmulatedEngine, request: pytest.FixtureRequest) -> None:
    folder = request.config.cache.mkdir("cuda-emulation")
    x = sample((60, 500), torch.float32, signed=True)
    assert x.numel() > 3 * layout.SUMS_CHUNK
    exact = Exact.of(x, x.square(), 1e-8)
    specs = ("B256/DE@8s", "rank1x8/linear@2s")
    rows: list[list[object]] = []
    for engine in (EmulatedEngine(folder, blocks) for blocks in (1, 3, 7)):
        row: list[object] = []
        with emulated(engine):
            for spec in specs:
                q = qmaps.quantizer(spec)
                row += bits(sums_of(q, x))
                errors = OnePass.cuda(engine)
                errors.add(exact, q.quantize(x), exact.v)
                row += errors.columns().values()
            first, second = qmaps.quantizer("B256/DE@4s"), qmaps.quantizer("B256/DE@8u")
            grid = torch.zeros(4, 16, 256, dtype=torch.float64)
            _add(grid, exact, first.quantize(x), second.quantize(exact.v))
            row += grid.flatten().tolist()
        rows.append(row)
    assert rows[0] == rows[1] == rows[2]


def test_a_sweep_is_the_reference_s(
    on_device: EmulatedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = ["B256/DE@8s", "B128/linear@4u", "B128/lloyd@3s", *PAIRS[:3]]
    given = states((90, 60))
    with use_backend("reference"):
        expected = sweep.run(given, specs), analyze.update_error(given, PAIRS[:2])

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a tensor was decoded")

    monkeypatch.setattr("qmaps.ops.dispatch.dequantize", refuse)
    found = sweep.run(given, specs), analyze.update_error(given, PAIRS[:2])
    for ours, theirs in zip(found, expected, strict=True):
        pd.testing.assert_frame_equal(ours, theirs, check_exact=False, rtol=RTOL, atol=0)
    assert {"update_errors", "add_parts<4>"} <= set(on_device.launched)
