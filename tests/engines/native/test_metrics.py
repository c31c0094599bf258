"""Sums, update errors and grids of code pairs equal the reference's, with any threads."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable

import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import qmaps
from qmaps import analyze, metrics, sweep
from qmaps.analyze.update_error import Exact, OnePass, Reference
from qmaps.engines import native
from qmaps.engines.native import tensors
from qmaps.engines.support import NATIVE
from qmaps.errors import NonFiniteError
from qmaps.maps import Codebook
from qmaps.metrics import Sums
from qmaps.ops import dispatch
from qmaps.ops.backends import use_backend
from tests import helpers
from tests.engines.native.test_tensors import wide
from tests.helpers import about

pytestmark = pytest.mark.slow

RTOL = 1e-12
SETTINGS = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


def sums_of(q: qmaps.Quantizer, x: Tensor) -> Sums:
    """Sums of the native engine."""
    key = qmaps.RoundingKey() if q.stochastic else None
    measured = dispatch.measure(x, q.normalizer, q.map, key, keep=False)
    assert measured is not None, q
    assert measured[1] is None
    return measured[0]


def expected_sums(q: qmaps.Quantizer, x: Tensor) -> Sums:
    """Sums of the reference, by torch in float64."""
    with use_backend("reference"):
        t = q.quantize(x)
        y = t.dequantize().double().reshape(-1)
    x = x.double().reshape(-1)
    error = (x - y).abs()
    nonzero = x != 0
    return Sums(
        x.numel(),
        float(error.sum()),
        float(error.square().sum()),
        float(x.square().sum()),
        float((error[nonzero] / x[nonzero].abs()).sum()),
        float((y - x).sum()),
        float(error.max()),
        int(nonzero.sum()),
        int((nonzero & (y == 0)).sum()),
        torch.bincount(t.codes().reshape(-1), minlength=q.map.codebook().numel()),
    )


def close(a: float, b: float, rtol: float = RTOL) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b)) or abs(a - b) <= rtol * abs(b)


def assert_sums(
    q: qmaps.Quantizer, x: Tensor, each_isa: Callable[[], Iterable[str]] = lambda: [""]
) -> None:
    """Compare sums on the current instruction set, or on each."""
    theirs = expected_sums(q, x)
    for isa in each_isa():
        ours = sums_of(q, x)
        for name in ("numel", "largest", "nonzero", "zeroed"):
            assert close(getattr(ours, name), getattr(theirs, name), 0), (q, isa, name)
        for name in ("absolute", "square", "signal", "relative"):
            assert close(getattr(ours, name), getattr(theirs, name)), (q, isa, name, ours, theirs)
        errors = ours.signed_error, theirs.signed_error  # their terms may cancel
        apart = abs(errors[0] - errors[1])
        assert close(*errors) or apart <= RTOL * theirs.absolute, (q, isa, errors)
        assert torch.equal(ours.codes, theirs.codes), (q, isa)


def bits(sums: Sums) -> tuple[object, ...]:
    *numbers, codes = vars(sums).values()
    return *numbers, *codes.tolist()


NORMALIZERS = list(helpers.normalizers())


@pytest.mark.fuzz
@pytest.mark.parametrize("normalizer", NORMALIZERS, ids=str)
def test_every_normalizer_and_map(normalizer: qmaps.normalize.base.Normalizer, each_isa) -> None:
    """Each pair with a width and a shape in turns; ``make fuzz`` runs all."""
    for width in (4, 8):
        compositions = list(helpers.compositions_of(normalizer, width))
        everything = "QMAPS_FUZZ" in os.environ or len(compositions) < 4
        for number, q in enumerate(compositions, NORMALIZERS.index(normalizer)):
            if number % 2 == (width == 8) and not everything:
                continue
            shapes = ((9,), (37, 66))
            for shape in shapes if everything else shapes[number // 2 % 2 :][:1]:
                x = helpers.sample(shape, q.map.signed)
                frozen = q.fit(x)
                if NATIVE.measures(frozen.normalizer, frozen.map, shape):
                    assert_sums(frozen, x, each_isa)


@pytest.mark.parametrize("spec", ["B64/DE@8s", "B7/DE@4s+sr", "rank1/linear@3s", "B128x8/nf4@4s"])
def test_every_size_and_special_value(spec: str, each_isa, threads: int) -> None:
    q = qmaps.quantizer(spec)
    for numel in (1, 2, 15, 16, 17, 31, 1023, 1024, 1025, 16383, 16385, 50001):
        assert_sums(q, wide((numel,), numel), each_isa)
    for value in (0.0, -0.0, 1e-45, -1e-45, 1.0, 3.4e38, -3.4e38):
        assert_sums(q, torch.full((300,), value), each_isa)
    mixed = torch.tensor([0.0, -0.0, 1e-45, 3e38, -3e38, 1.0, 2.0**-126, -(2.0**-130)])
    assert_sums(q, mixed.repeat(40), each_isa)


def test_values_that_overflow(isa: str) -> None:
    """Values of a user's codebook may exceed float32."""
    q = qmaps.normalize.BlockWise(16) / Codebook([-1e30, -1.0, 0.5, 1e30], label="far")
    x = wide((100,), 0)
    x[3] = 3e38
    x[40] = 1e9
    assert_sums(q, x)
    low = qmaps.normalize.PerTensor() / Codebook([1e30, 2e30], label="high", signed=True)
    assert math.isinf(sums_of(low, x).largest)
    assert_sums(low, x)


@SETTINGS
@given(
    x=st.lists(finite, min_size=1, max_size=300),
    spec=st.sampled_from(
        ["B16/DE@8s", "B3/DE@4s+sr", "tensor/linear0@3s", "B8x8/DE@8s", "rank1/tree@8s"]
    ),
)
def test_any_finite_floats(x: list[float], spec: str, isa: str) -> None:
    assert_sums(qmaps.quantizer(spec), torch.tensor(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_and_views(dtype: torch.dtype, isa: str) -> None:
    x = wide((60, 70), 3).clamp(-6e4, 6e4).to(dtype)
    for view in (x, x.t(), x[::2, 3:], x.expand(2, 60, 70)):
        for spec in ("B64/DE@8s", "rank1/linear@4s"):
            assert_sums(qmaps.quantizer(spec), view)


@pytest.mark.skipif(native.core is None, reason="needs the extension")
def test_sums_have_the_same_bits_for_all_threads_and_instruction_sets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("qmaps.engines.native.tensors.FEW", 1)
    x = wide((137, 611), 2)
    exact = Exact.of(x, x.square(), 1e-8)
    before = torch.get_num_threads()
    results = []
    try:
        for isa in native.isas():
            for threads in (1, 2, 3):
                monkeypatch.setenv("QMAPS_ISA", isa)
                torch.set_num_threads(threads)
                row: list[object] = []
                for spec in ("B64/DE@8s", "B7/DE@4s", "rank1x8/linear@5s", "tensor/nf4@4s+sr"):
                    q = qmaps.quantizer(spec)
                    row += bits(sums_of(q, x))
                    errors = OnePass()
                    errors.add(exact, q.quantize(x), exact.v)
                    row += errors.columns().values()
                first, second = qmaps.quantizer("B64/DE@8s"), qmaps.quantizer("B64/DE@8u")
                grid = torch.zeros(4, 256, 256, dtype=torch.float64)
                native_add = native.metrics.add_update_grid
                native_add(
                    exact.update, first.quantize(x), second.quantize(exact.v), 1e-8, list(grid)
                )
                row += grid.flatten().tolist()
                results.append(row)
    finally:
        torch.set_num_threads(before)
    assert all(row == results[0] for row in results)


def test_bad_elements_are_refused_as_by_the_reference(isa: str, threads: int) -> None:
    cases = (
        *((spec, value) for spec in ("B64/DE@8s", "rank1/DE@4s") for value in (math.nan, math.inf)),
        *(("B64/DE@8u", -1.0), ("logB64/log2@4u", -1.0), ("logB64/log2@4u", math.nan)),
        *(("rank1/linear@4u", -1e-45), ("B64/quantile@4s", math.inf)),
    )
    for spec, value in cases:
        q = qmaps.quantizer(spec)
        x = wide((70, 50), 1).abs()
        x[3, 4] = x[60, 9] = value
        messages = []
        for backend in ("native", "reference"):
            with use_backend(backend), pytest.raises(qmaps.QmapsError) as caught:
                q.error(x)
            messages.append((type(caught.value), str(caught.value)))
        assert messages[0] == messages[1]
        assert (messages[0][0] is NonFiniteError) == (not math.isfinite(value))
        assert "holds 2 " in messages[0][1]


def test_metrics_come_from_the_sums(isa: str) -> None:
    assert metrics.SUMMED.keys() == metrics.METRICS.keys()
    x = wide((90, 60), 4)
    x[:2] = 0
    for spec in (
        "B64/DE@8s",
        "rank1/linear0@4s",
        "B64/lloyd@3s",
        "B64/linear@12s",
        "logB64/log2@4u",
    ):
        q = qmaps.quantizer(spec)
        for tensor in (x, torch.zeros(20), torch.zeros(0), x[0:1].abs()):
            x_of_sign = tensor if q.map.signed else tensor.abs()
            ours = q.error(x_of_sign)
            with use_backend("reference"):
                theirs = q.error(x_of_sign)
            assert list(ours) == list(theirs)
            assert ours == pytest.approx(theirs, rel=RTOL, abs=0, nan_ok=True)


def test_a_metric_without_a_form_for_sums(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def first_error(x: Tensor, decoded: Tensor, codes: Tensor, size: int) -> float:
        return float((x - decoded).reshape(-1)[0])

    x = wide((90, 60), 4)
    q = qmaps.quantizer("B64/DE@4s")
    before = q.error(x)
    monkeypatch.setitem(metrics.METRICS, "first_error", first_error)
    errors = q.error(x)
    assert errors.pop("first_error") == float(x[0, 0] - q.quantize(x).dequantize()[0, 0])
    assert errors == pytest.approx(before, rel=RTOL)


def moments(seed: int, shape: tuple[int, ...] = (90, 60)) -> tuple[Tensor, Tensor]:
    m, v = wide(shape, seed) * 1e-3, wide(shape, seed + 1).square() * 1e-6
    m.view(-1)[: m.numel() // 10] = 0
    v.view(-1)[5 : v.numel() // 15] = 0
    return m, v


def assert_update_errors(
    triples: Iterable[tuple[Tensor, Tensor, float]], pair: qmaps.algebra.pair.Pair
) -> None:
    ours, theirs = OnePass(), Reference()
    ours.add(Exact.of(torch.ones(9), torch.ones(9), 1.0), torch.zeros(9), torch.zeros(9))
    ours.clear()
    for m, v, eps in triples:
        exact = Exact.of(m, v, eps)
        first = m if pair.first is None else pair.first.quantize(m)
        second = v if pair.second is None else pair.second.quantize(v)
        ours.add(exact, first, second)
        theirs.add(exact, first, second)
    actual, expected = ours.columns(), theirs.columns()
    assert list(actual) == list(expected)
    for name, value in expected.items():
        assert close(actual[name], value, RTOL if name.startswith("mean") else 0), (name, pair)


PAIRS = (
    *("B128/DE@4s + B128/DE@4u", "B64/DE@8s + rank1/linear@4u", "32-bit + B128/DE-0@4u"),
    *("B7/DE@3s+sr + logB128/log2@4u", "tensor/DE@5s + 32-bit", "32-bit + 32-bit"),
    *("B128/linear@12s + B32x8/DE@8u", "B128/lloyd@3s + B128/quantile@4u"),
)


@pytest.mark.parametrize("spec", PAIRS)
def test_update_errors(spec: str, isa: str, threads: int) -> None:
    pair = qmaps.algebra.pair.Pair.parse(spec)
    for numel in (1, 7, 16, 1025, 16385):
        assert_update_errors([(*moments(numel, (numel,)), 1e-8)], pair)
    several = [(*moments(0), 1e-8), (*moments(3, (65, 130)), 1e-6), (*moments(5, (40000,)), 0.1)]
    assert_update_errors(several, pair)
    m, v = moments(7, (60, 90))
    assert_update_errors([(m.t(), v.t(), 1e-8)], pair)


def test_update_errors_of_special_values(isa: str) -> None:
    m, v = moments(0)
    pair = qmaps.algebra.pair.Pair.parse("B128/DE@4s + B128/DE@4u")
    # Without eps, 0 / 0 and overflow: NaN is the largest, as in the reference.
    for eps in (0.0, 1e-45, 1e-30, 1e30):
        assert_update_errors([(m, v, eps)], pair)
    zeros = torch.zeros(90, 60)
    for exact in ((zeros, v), (m, zeros), (zeros, zeros), (zeros + 1, zeros + 1)):
        assert_update_errors([(*exact, 1e-8)], pair)
    assert_update_errors([(m * 1e30, v * 1e-30, 1e-30)], pair)
    assert_update_errors([(m * 1e-38, v, 1e-8)], pair)


@SETTINGS
@given(
    rows=st.lists(st.tuples(finite, finite), min_size=1, max_size=200),
    eps=st.sampled_from([0.0, 1e-8, 1e-3]),
    spec=st.sampled_from(PAIRS),
)
def test_update_errors_of_any_moments(
    rows: list[tuple[float, float]], eps: float, spec: str, isa: str
) -> None:
    m, v = torch.tensor(rows).unbind(1)
    assert_update_errors([(m, v.abs(), eps)], qmaps.algebra.pair.Pair.parse(spec))


@pytest.mark.parametrize("shape", [(1,), (90, 60), (1 << 18, 3)])
@pytest.mark.parametrize("spec", ["B128/DE@4s + rank1/linear@4u", "B64/DE@8s + B64x8/DE@7u"])
def test_grids_of_code_pairs(spec: str, shape: tuple[int, ...], isa: str, threads: int) -> None:
    if len(shape) == 2 and shape[0] > 1000 and isa != native.isas()[0]:
        pytest.skip("several segments are the same on every instruction set")
    states = {"a": dict(zip(("exp_avg", "exp_avg_sq"), moments(1, shape), strict=True))}
    states["b"] = dict(zip(("exp_avg", "exp_avg_sq"), moments(3, (5000,)), strict=True))
    frames = []
    for backend in ("native", "reference"):
        with use_backend(backend):
            frames.append(analyze.code_pairs(states, [spec], min_quantized_size=0))
    pd.testing.assert_frame_equal(*frames, check_exact=False, rtol=RTOL, atol=0)


SPECS = ["B128/DE@4s", "B128/linear@4u", "B64/linear@12s", *PAIRS]


def captured() -> dict[str, dict[str, Tensor]]:
    shapes = {"a": (90, 60), "b": (5000,), "c": (3, 40, 50)}
    return {
        name: dict(zip(("exp_avg", "exp_avg_sq"), moments(seed, shape), strict=True))
        for seed, (name, shape) in enumerate(shapes.items())
    }


def test_sweeps_agree(each_isa, threads: int) -> None:
    def frames(backend: str) -> tuple[pd.DataFrame, pd.DataFrame]:
        with use_backend(backend):
            return sweep.run(captured(), SPECS), analyze.update_error(captured(), PAIRS)

    expected = frames("reference")
    for isa in each_isa():
        for ours, theirs in zip(frames("native"), expected, strict=True):
            with about(isa):
                pd.testing.assert_frame_equal(ours, theirs, check_exact=False, rtol=RTOL, atol=0)


def test_a_native_sweep_decodes_nothing(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a tensor was decoded")

    monkeypatch.setattr("qmaps.ops.dispatch.dequantize", refuse)
    sweep.run(captured(), ["B128/DE@4s", *PAIRS[:2]])
    analyze.code_pairs(captured(), PAIRS[:2])
    with pytest.raises(AssertionError, match="a tensor was decoded"):
        sweep.run(captured(), ["B64/linear@12s"])


def test_work_side_by_side_keeps_its_order_and_back_end(threads: int) -> None:
    with use_backend("reference"):
        actual = list(
            tensors.each(lambda i: (i, qmaps.backend(), tensors.threads(1 << 30)), range(9))
        )
    assert [row[:2] for row in actual] == [(i, "reference") for i in range(9)]
    assert {row[2] for row in actual} == {1}
    threads_of_items = list(tensors.each(lambda i: tensors.threads(1 << 30), range(3)))
    assert threads_of_items == [threads] * 3
    assert tensors.threads(1 << 30) == threads

    def fail(i: int) -> int:
        if i == 3:
            raise KeyError(i)
        return i

    results = tensors.each(fail, range(50))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError):
        next(results)
