"""What bounds a case."""

from __future__ import annotations

import pytest
import torch

from benchmarks.limits import Limits, arithmetic, shares
from qmaps.engines import native


def test_the_slower_of_memory_and_divider_bounds() -> None:
    limits = Limits(10e9, 2e9, 1e9)
    assert limits.least(20, 1, 1) == (2e-9, "memory")
    assert limits.least(10, 2, 1) == (2e-9, "divider")
    assert Limits(10e9).least(10, 100, 100) == (1e-9, "memory")


def test_shares_of_what_bounds() -> None:
    row = {
        "bytes_per_element": {"a": 20.0, "b": 10.0},
        "divider_per_element": {"b": (2.0, 1.0)},
        "values": {"a": {"median": 4.0}, "b": {"median": 2.5}},
    }
    found = shares(row, Limits(10e9, 2e9, 1e9))
    assert found["a"] == {"share": pytest.approx(0.5), "bound": "memory"}
    assert found["b"] == {"share": pytest.approx(0.8), "bound": "divider"}


@pytest.mark.skipif(native.core is None, reason="needs the native engine")
def test_rates_count_all_threads_and_numbers() -> None:
    threads = torch.get_num_threads()
    seconds = iter([1.0, 1.0, 0.5, 0.5, 0.25, 0.125])
    calls = []

    def clock(work) -> float:
        calls.append(work())
        return next(seconds)

    found = arithmetic(1, seconds=512e-9, clock=clock)
    assert found == {"divisions": threads * 2 * 256 / 0.25, "roots": threads * 2 * 256 / 0.125}
    assert all(len(each) == threads for each in calls)


def test_without_the_engine_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "core", None)
    assert arithmetic(1) == {"divisions": None, "roots": None}
