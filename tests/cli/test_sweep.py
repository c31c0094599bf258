"""The tables of ``qmaps sweep``: grouped by width, with presets."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd

from qmaps import sweep
from qmaps.cli.output import by_width
from qmaps.cli.sweep import _summary

SPECS = [
    "B128/DE-sym@4s+sr + B128/DE-0@4u", "B128/DE@4s + B128/linear@4u", "B64/DE@4s + B64/linear@4u",
    "B256/DE-sym@8s + B256/DE-0@8u", "B128/lloyd@8s + B128/lloyd@8u", "tensor/linear@8s + 32-bit",
]  # fmt: skip
OPTIONS = " ".join(f"--spec '{spec}'" for spec in SPECS)


def test_the_tables(place: Path) -> None:
    summary = _summary(sweep.run(place / "states", SPECS), "update")
    tables = list(by_width(summary, before="update, ", top=1))
    assert [title for title, _ in tables] == [
        "update, up to 4.3 bits per element, 1 of 2",
        "update, up to 6.3 bits per element, 1 of 1",
        "update, up to 8.3 bits per element, 1 of 1",
        "update, more than 8.3 bits per element, 1 of 2",
    ]
    rows = [row for _, rows in tables for row in rows]
    table = sweep.summarize(sweep.run(place / "states", SPECS)).set_index("quantizer")
    for row in rows:
        known = table.loc[row["quantizer"]]
        for name in ("bits_per_element", "mean_abs_error"):
            assert row[name] == known[name]
    assert "B256/DE-sym@8s + B256/DE-0@8u (8bit)" in [row["label"] for row in rows]


def test_the_top_rows() -> None:
    frame = pd.DataFrame(
        {
            "quantizer": list("abcde"),
            "bits_per_element": [4.25, 4.2, 4.1, 4.0, 9.0],
        }
    )
    first, wide = by_width(frame, top=2)
    assert first[0] == "up to 4.3 bits per element, 2 of 4"
    assert [row["label"] for row in first[1]] == ["a", "b"]
    assert wide[0] == "more than 8.3 bits per element, 1 of 1"
    assert len(next(by_width(frame))[1]) == 4


def test_the_terminal_has_the_same_tables(call, tmp_path: Path) -> None:
    code, out, _ = call(f"sweep states {OPTIONS} --out {tmp_path}")
    assert code == 0
    assert "update, up to 4.3 bits per element, 2 of 2" in out
    assert re.search(r"B256/DE-sym@8s \+ B256/DE-0@8u \(8bit\) +│ 8.13 │", out)


def test_workers_and_every_digit(call, place: Path, tmp_path: Path) -> None:
    expected = sweep.run(place / "states", SPECS)
    code, out, err = call(f"sweep states {OPTIONS} --out {tmp_path}/one --workers 2 --json")
    assert (code, err) == (0, "")
    columns = [name for name in expected if expected[name].dtype == "float64"]
    rows = json.loads(out)
    for name in columns:
        assert [row[name] for row in rows] == expected[name].replace(np.nan, None).tolist()


def test_a_share_of_each_tensor(call, tmp_path: Path) -> None:
    code, out, _ = call(f"sweep states {OPTIONS} --out {tmp_path} --sample 0.5 --json")
    assert code == 0
    assert call(f"sweep states --out {tmp_path} --sample 50") == (
        2, "", "error: sample=50 must be above 0 and at most 1\n"
    )  # fmt: skip
    kept = sweep.run("states", SPECS, sample=0.5, out=tmp_path / "sweep")  # the same sweep goes on
    assert len(kept) == len(json.loads(out))
