"""Quantiles have the reference's bits, on every instruction set and any number of threads."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from qmaps import maps, quantiles
from qmaps.engines.native import core
from qmaps.errors import NonFiniteError
from qmaps.ops.backends import use_backend
from tests.quantile_data import (
    METHODS,
    any_bits,
    assert_as_reference,
    bits,
    generator,
    normal,
    pick,
)

LARGE = 2**17 + 3
"""Number of elements for counting instead of sorting."""
SETTINGS = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def close(n: int) -> Tensor:
    """All values in one cell of equal leading bits."""
    return 1 + torch.randint(2**14, (n,), generator=generator()) * 2.0**-23


def clusters(n: int) -> Tensor:
    """More cells than ranks, all of them needed, with many elements in each."""
    return pick(normal(300), n) * (1 + torch.randint(64, (n,), generator=generator()) * 2.0**-23)


def subnormals(n: int) -> Tensor:
    words = torch.randint(2**23, (n,), generator=generator(), dtype=torch.int32)
    return words.view(torch.float32) * pick([1.0, -1.0], n)


CASES: dict[str, Callable[[int], Tensor]] = {
    "normal": normal,
    "lognormal": lambda n: (4 * normal(n)).exp(),
    "all equal": lambda n: torch.full((n,), -0.3),
    "all zero": torch.zeros,
    "two values": lambda n: pick([1.5, -2.0], n),
    "signed zeros": lambda n: pick([0.0, -0.0, 1e-45, -1e-45], n),
    "mostly zero": lambda n: normal(n) * pick([0.0, 0.0, 0.0, -0.0, 1.0], n),
    "two hundred values": lambda n: pick(normal(200), n),
    "sorted": lambda n: normal(n).sort().values,
    "reversed": lambda n: normal(n).sort(descending=True).values,
    "close": close,
    "close and negative": lambda n: -close(n),
    "clusters": clusters,
    "subnormals": subnormals,
    "largest": lambda n: pick([3.4028235e38, -3.4028235e38, 3.4028233e38, 1.0], n),
    "any bits": any_bits,
    "outliers": lambda n: torch.where(torch.arange(n) % 1000 == 7, 1e30, normal(n) * 1e-6),
}


@functools.cache
def expected(
    case: str, n: int, dtype: torch.dtype, num: int
) -> tuple[Tensor, tuple[list[int], ...]]:
    x = CASES[case](n).to(dtype)
    x = x[x.isfinite()]
    with use_backend("reference"):
        return x, tuple(bits(method(x, num)) for method in METHODS)


@pytest.mark.parametrize("case", CASES)
def test_every_distribution(case: str, isa: str, threads: int) -> None:
    for n in (1, 2, 31, 33, 4099, LARGE):
        for num in (2, 256):
            x, wanted = expected(case, n, torch.float32, num)
            for method, answer in zip(METHODS, wanted, strict=True):
                assert bits(method(x, num)) == answer, (method.__name__, n, num)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["normal", "two hundred values", "clusters"])
def test_more_threads_than_one_are_used(case: str, isa: str) -> None:
    torch.set_num_threads(2)
    x, wanted = expected(case, 2**20 + 4097, torch.float32, 256)
    assert tuple(bits(method(x)) for method in METHODS) == wanted
    for _ in range(30):  # threads do not always meet
        assert bits(quantiles.exact(x)) == wanted[0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_dtype(dtype: torch.dtype, isa: str, threads: int) -> None:
    for case in ("normal", "signed zeros", "mostly zero", "subnormals", "any bits"):
        for n in (5, 4099, LARGE):
            x, wanted = expected(case, n, dtype, 256)
            if x.numel():
                assert tuple(bits(method(x)) for method in METHODS) == wanted, (case, n)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_half(dtype: torch.dtype, isa: str) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    every = every[every.isfinite()]
    for x in (every, every.repeat(3)):
        assert_as_reference(x, x.numel(), 0.0)


@pytest.mark.parametrize("num", [3, 1000, 70_000])
@pytest.mark.parametrize("offset", [None, 0.0, 0.49])
def test_any_number_of_quantiles(num: int, offset: float | None, isa: str) -> None:
    for x in (normal(LARGE), clusters(LARGE)):
        with use_backend("reference"):
            answer = quantiles.exact(x, num, offset)
        assert bits(quantiles.exact(x, num, offset)) == bits(answer)


@pytest.mark.parametrize("chunk", [1, 7, 33, 4096, 2**17, 2**17 + 1, 2**30])
def test_sram_in_any_chunks(chunk: int, isa: str, threads: int) -> None:
    x = normal(2**18 + 100 if chunk > 1000 else 5000)
    for data in (x, x.bfloat16()):
        with use_backend("reference"):
            answer = quantiles.sram(data, 100, chunk)
        assert bits(quantiles.sram(data, 100, chunk)) == bits(answer)


@SETTINGS
@given(
    values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1),
    large=st.booleans(),
    num=st.integers(2, 300),
    offset=st.none() | st.floats(0, 0.49),
    chunk=st.integers(1, 5000),
)
def test_any_floats(
    values: list[float], large: bool, num: int, offset: float | None, chunk: int, isa: str
) -> None:
    x = torch.tensor(values)
    assert_as_reference(pick(x, LARGE) if large else x, num, offset)
    with use_backend("reference"):
        answer = quantiles.sram(x, num, chunk, offset)
    assert bits(quantiles.sram(x, num, chunk, offset)) == bits(answer)


@SETTINGS
@given(
    prefixes=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=9),
    free=st.integers(0, 24),
    num=st.integers(2, 300),
)
def test_any_floats_that_share_leading_bits(
    prefixes: list[int], free: int, num: int, isa: str
) -> None:
    leading = torch.tensor(prefixes)[torch.randint(len(prefixes), (LARGE,), generator=generator())]
    words = leading ^ torch.randint(2**free, (LARGE,), generator=generator())
    x = words.to(torch.int32).view(torch.float32)
    assert_as_reference(torch.where(x.isfinite(), x, 0.0), num, 0.0)


def test_any_shape_and_stride(isa: str) -> None:
    x = normal(60 * 3000).view(60, 3000)
    for view in (x.t(), x[::2, 3:], x[:, ::7], x[0, 0], x[:1].expand(99, 3000), x.requires_grad_()):
        assert_as_reference(view, 16)


def test_bad_elements_are_counted_alike(isa: str, threads: int) -> None:
    for n in (3, 4099, LARGE):
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
            x = normal(n).to(dtype)
            x[0], x[n // 2], x[-1] = math.nan, -math.inf, math.inf
            for method in METHODS:
                for backend in ("native", "reference"):
                    with use_backend(backend), pytest.raises(NonFiniteError) as caught:
                        method(x)
                    assert str(caught.value) == (
                        "x holds 3 NaN or infinite elements; all elements must be finite"
                    )
            x[0] = -math.nan
            with pytest.raises(NonFiniteError, match="3 NaN"):
                quantiles.exact(x)


def test_the_engine_is_asked(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    for name in ("order_statistics", "add_quantiles"):
        original = getattr(core, name)

        def spy(*args: object, name: str = name, original: Callable = original) -> int:
            called.append(name)
            return original(*args)

        monkeypatch.setattr(core, name, spy)
    for method in METHODS:
        method(normal(4096))
    assert called == ["order_statistics", "add_quantiles"]


def test_fitted_maps_have_the_same_codebook(isa: str) -> None:
    x = normal(LARGE).clamp(-1, 1)
    for midpoints in (False, True):
        fitted = maps.Quantile(bits=8, midpoints=midpoints)
        with use_backend("reference"):
            answer = fitted.fit(x).codebook()
        assert bits(fitted.fit(x).codebook()) == bits(answer)
