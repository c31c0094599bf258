"""Emulated kernels give the reference's sums, whatever the launch."""

from __future__ import annotations

import math

import pandas as pd
import pytest
import torch

import qmaps
from qmaps import sweep
from qmaps.cuda import layout
from qmaps.errors import NonFiniteError
from qmaps.maps import Codebook
from qmaps.ops import dispatch
from qmaps.ops.backends import use_backend
from tests.cuda.emulation import EmulatedEngine, emulated
from tests.cuda.test_tensors import sample
from tests.engines.native.test_metrics import RTOL, assert_sums, bits, moments, sums_of

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


def test_no_launch_changes_bits(device: EmulatedEngine, request: pytest.FixtureRequest) -> None:
    folder = request.config.cache.mkdir("cuda-emulation")
    x = sample((60, 500), torch.float32, signed=True)
    assert x.numel() > 3 * layout.SUMS_CHUNK
    specs = ("B256/DE@8s", "rank1x8/linear@2s")
    rows: list[list[object]] = []
    for engine in (EmulatedEngine(folder, blocks) for blocks in (1, 3, 7)):
        row: list[object] = []
        with emulated(engine):
            for spec in specs:
                q = qmaps.quantizer(spec)
                row += bits(sums_of(q, x))
        rows.append(row)
    assert rows[0] == rows[1] == rows[2]


def test_a_sweep_is_the_reference_s(
    on_device: EmulatedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = ["B256/DE@8s", "B128/linear@4u", "B128/lloyd@3s"]
    m, v = moments(0, (90, 60))
    given = {"a": {"exp_avg": m, "exp_avg_sq": v}}
    with use_backend("reference"):
        expected = sweep.run(given, specs)

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a tensor was decoded")

    monkeypatch.setattr("qmaps.ops.dispatch.dequantize", refuse)
    found = sweep.run(given, specs)
    pd.testing.assert_frame_equal(found, expected, check_exact=False, rtol=RTOL, atol=0)
    assert "add_parts<4>" in on_device.launched
