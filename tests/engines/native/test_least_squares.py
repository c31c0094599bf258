"""Lloyd-Max codebooks have the reference's bits."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import qmaps
from qmaps import sweep
from qmaps.engines.native.least_squares import NativeCells
from qmaps.maps.lloyd import Cells, LloydMax
from qmaps.ops.backends import use_backend
from qmaps.ops.fit import fit_each
from tests.engines.native.test_tensors import SETTINGS, wide

pytestmark = pytest.mark.slow


def assert_same_fit(
    bits: int,
    x: Tensor,
    weights: Tensor | None,
    each_isa: Callable[[], Iterable[str]],
) -> None:
    with use_backend("reference"):
        expected = LloydMax(bits=bits).fit(x, weights).codebook()
    for isa in each_isa():
        with use_backend("native"):
            assert torch.equal(LloydMax(bits=bits).fit(x, weights).codebook(), expected), (
                bits, x.shape, isa,
            )  # fmt: skip


@pytest.mark.parametrize("bits", [2, 3, 5, 8])
def test_every_size_and_kind_of_data(bits: int, each_isa) -> None:
    for n in (1, 2, 31, 33, 700, 5000):
        x = wide((n,), n).clamp(-1, 1)
        weights = torch.rand(n, generator=torch.Generator().manual_seed(n)).double()
        assert_same_fit(bits, x, None, each_isa)
        assert_same_fit(bits, x, weights, each_isa)
        # Many equal values, with weights to be added in order; and zeros of both signs.
        assert_same_fit(bits, (x * 4).round() / 4, weights, each_isa)
        assert_same_fit(bits, x, weights * (weights > 0.5), each_isa)
        assert_same_fit(bits, x, weights * 0, each_isa)
        assert_same_fit(
            bits, torch.where(weights > 0.5, 0.0, -0.0).float(), weights * 1e70, each_isa
        )
        assert_same_fit(bits, x * 1e-38, weights * 1e-300, each_isa)


@settings(SETTINGS, max_examples=30)
@given(
    rows=st.lists(
        st.tuples(st.floats(-1, 1, width=32), st.floats(0, 1e76)), min_size=1, max_size=100
    ),
    bits=st.integers(2, 6),
)
def test_any_data(rows: list[tuple[float, float]], bits: int, each_isa) -> None:
    x, weights = (torch.tensor(column, dtype=torch.float64) for column in zip(*rows, strict=True))
    assert_same_fit(bits, x.float(), weights, each_isa)


def test_equal_values_keep_their_order() -> None:
    """Prefix sums then have the same bits; zeros of both signs are equal."""
    g = torch.Generator().manual_seed(0)
    weights = torch.rand(4000, generator=g).double()
    x = (wide((4000,), 0).clamp(-1, 1) * 4).round() / 4
    for values in (x, torch.where(weights > 0.5, x, -x), x * 1e-45, wide((4000,), 3)):
        for given_weights in (None, weights):
            ours, theirs = NativeCells(values, given_weights), Cells(values, given_weights)
            for name in ("x", "w", "wx", "wxx"):
                assert torch.equal(getattr(ours, name), getattr(theirs, name)), name


def test_fits_that_share_work_are_those_made_alone(isa: str) -> None:
    x = wide((60, 70), 1)
    specs = ("B64/lloyd@3s", "B64/quantile@4s", "B64/lloyd@5s", "B64/quantile(midpoints=true)@3s")
    quantizers = [qmaps.quantizer(spec) for spec in specs]
    for together, q in zip(fit_each(quantizers, x), quantizers, strict=True):
        assert together.spec == q.spec
        assert torch.equal(together.map.codebook(), q.fit(x).map.codebook())


def test_a_sweep_sorts_once_for_all_widths(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    sort_data = qmaps.engines.native.least_squares.sort_data

    def counted(values: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        calls.append(values.numel())
        return sort_data(values, weights)

    monkeypatch.setattr("qmaps.engines.native.least_squares.sort_data", counted)
    frame = sweep.run({"a": {"m": wide((90, 60), 1)}}, [f"B64/lloyd@{b}s" for b in (2, 3, 4)])
    assert len(frame) == 3
    assert calls == [5400]
