"""The limit of each case: memory or an arithmetic unit."""

from __future__ import annotations

import pytest
import torch

import qmaps
from benchmarks.bandwidth import MOVED, bandwidth, one_way
from benchmarks.limits import Limits, Needs, arithmetic, decoding, encoding, shares
from qmaps.engines import native

pytestmark = pytest.mark.slow

LIMITS = Limits(10e9, 8e9, 4e9, divisions=2e9, roots=1e9, shuffles=0.5e9)
needs_engine = pytest.mark.skipif(native.core is None, reason="needs the native engine")


@pytest.mark.parametrize(
    ("nbytes", "needs", "seconds", "bound"),
    [
        (20, Needs(written=6, divisions=1, roots=1), 2e-9, "memory"),
        (20, Needs(written=2), 2.25e-9, "reading"),
        (20, Needs(written=16), 4e-9, "writing"),
        (10, Needs(written=4, divisions=2, roots=1), 2e-9, "divider"),
        (10, Needs(written=4, divisions=2, roots=1, shuffles=1.25), 2.5e-9, "shuffles"),
    ],
)
def test_the_slowest_bounds(nbytes: float, needs: Needs, seconds: float, bound: str) -> None:
    assert LIMITS.least(nbytes, needs) == (pytest.approx(seconds), bound)


def test_limits_without_a_measurement_are_ignored() -> None:
    assert Limits(10e9, 8e9, 4e9).least(10, Needs(4, 100, 100, 100)) == (1e-9, "memory")


def test_shares_of_the_bound() -> None:
    row = {
        "bytes_per_element": {"a": 20.0, "b": 10.0},
        "needs_per_element": {
            "a": {"written": 6.0},
            "b": {"written": 4.0, "divisions": 2.0, "roots": 1.0},
        },
        "values": {"a": {"median": 4.0}, "b": {"median": 2.5}},
    }
    bounds = shares(row, LIMITS)
    assert bounds["a"] == {"share": pytest.approx(0.5), "bound": "memory"}
    assert bounds["b"] == {"share": pytest.approx(0.8), "bound": "divider"}


def test_the_fastest_kernel_in_each_direction() -> None:
    kernels = {"copy": 8.0, "triad": 9.0, "update": 15.0, "read": 9.0, "write": 3.0}
    assert one_way(kernels) == (10.0, 5.0)
    assert one_way(kernels | {"read": 12.0, "write": 6.0}) == (12.0, 6.0)


def test_bandwidth_counts_the_bytes_of_each_kernel() -> None:
    rates = bandwidth(1, scale=2**-6, clock=lambda work: work() is None or 0.5)
    assert rates == {name: sum(moved) * 2**20 / 0.5 for name, moved in MOVED.items()}


@needs_engine
def test_rates_count_all_threads_and_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = torch.get_num_threads()
    for isa in native.isas():
        monkeypatch.setenv("QMAPS_ISA", isa)
        times = {"divisions": 0.25, "roots": 0.125}
        # Those of other sets are not looked up by permutes of registers.
        times |= {"shuffles": 0.5} if isa == "avx512" else {}
        seconds = iter([1.0] * (2 * len(times)) + list(times.values()))
        calls = []

        def clock(work, seconds=seconds, calls=calls) -> float:
            calls.append(work())
            return next(seconds)

        rates = arithmetic(1, seconds=512e-9, clock=clock)
        expected = {name: threads * 2 * 256 / results for name, results in times.items()}
        assert rates == {"shuffles": None} | expected
        assert all(len(results) == threads for results in calls)


@needs_engine
@pytest.mark.parametrize(
    ("spec", "decoded", "encoded"),
    [
        # Two permutes for each of four bytes, and one that sorts the codes. Upper halves 2, bucket
        # 1, guess 2, cells 7, signs 1; limits 8 and signs 3; natural order 1.
        ("B256/DE@8s", 9, 25),
        ("B256/DE-0@8u", 9, 24),  # no value has a sign
        ("B128/DE@4s", 8, 15),  # one guess for all cells of a bucket, few limits
        ("B128/DE-0@4u", 8, 14),
        # Also the lower neighbours and those after them, signs, and the order of the random bits.
        ("B256/DE@8s+sr", 9, 25 + 16 + 3 + 4),
        ("B128/DE@4s+sr", 8, 15 + 9 + 3 + 4),
        ("B256/linear@10s", 0, 0),  # codes of two bytes are looked up in memory
    ],
)
def test_shuffles_of_64_elements(
    spec: str, decoded: int, encoded: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    q = qmaps.quantizer(spec)
    for isa in native.isas():
        monkeypatch.setenv("QMAPS_ISA", isa)
        many = (decoded, encoded) if isa == "avx512" else (0, 0)
        assert (64 * decoding(q), 64 * encoding(q)) == many, isa


def test_without_the_engine_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "core", None)
    assert arithmetic(1) == {"divisions": None, "roots": None, "shuffles": None}
    q = qmaps.quantizer("B256/DE@8s")
    assert (decoding(q), encoding(q)) == (0.0, 0.0)
