"""Optimizers that are compared with each other: each trains in every width."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.families import FAMILIES, WIDTHS, pair
from benchmarks.tuned import run
from qmaps.errors import BadValueError
from qmaps.lab import workloads

pytestmark = pytest.mark.slow

DIGITS = workloads.get("digits", steps=2)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_optimizer_trains_in_every_width(name: str, tmp_path: Path) -> None:
    rows = {width: run(DIGITS, name, width, 0, tmp_path) for width in WIDTHS}
    assert all(row["loss"] > 0 and row["steps"] == 2 for row in rows.values())
    # States get smaller with their width, but for those that presets leave in 32 bits.
    sizes = {width: row["state_mib"] for width, row in rows.items()}
    assert sizes["8bit"] <= sizes["32bit"]
    if name not in ("Adafactor", "SM3"):
        assert max(sizes["4bit"], sizes["paper-4bit"]) < 0.6 * sizes["32bit"]


def test_a_pair_sets_each_moment(tmp_path: Path) -> None:
    specs = ("4bit", "B128/DE@4s+sr + 32bit", "32bit + B128/DE-0@4u", "32bit")
    sizes = [run(DIGITS, "AdamW", each, 0, tmp_path)["state_mib"] for each in specs]
    assert sizes[0] < sizes[1] < sizes[3]
    assert sizes[0] < sizes[2] < sizes[3]


def test_a_pair_is_two_specs() -> None:
    assert pair("B128/DE@4s + 32bit") == {"exp_avg": "B128/DE@4s", "exp_avg_sq": None}
    with pytest.raises(BadValueError) as caught:
        pair("B128/DE@4s")
    assert str(caught.value) == "pair='B128/DE@4s' must be two specs with ' + ' between them"
