"""The tables of ``qmaps sweep``: grouped by width, with presets."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from qmaps import sweep
from qmaps.cli.output import by_width
from qmaps.cli.sweep import _summary
from qmaps.optim.presets import PRESETS, pair_of
from qmaps.storage import units

SPECS = [
    "B128/DE-sym@4s+sr + B128/DE-0@4u", "B128/DE@4s + B128/linear@4u", "B64/DE@4s + B64/linear@4u",
    "B256/DE-sym@8s + B256/geometric@8u+qsr", "B128/lloyd@8s + B128/lloyd@8u",
    "tensor/linear@8s + 32-bit",
]  # fmt: skip
OPTIONS = " ".join(f"--spec '{spec}'" for spec in SPECS)


def test_the_tables(place: Path) -> None:
    summary = _summary(sweep.run(place / "states", SPECS), "update")
    tables = list(by_width(summary, before="update, ", top=1))
    assert [title for title, _ in tables] == [
        "update, up to 4.3 bits per state element, 1 of 2",
        "update, up to 6.3 bits per state element, 1 of 1",
        "update, up to 8.3 bits per state element, 1 of 1",
        "update, more than 8.3 bits per state element, 1 of 2",
    ]
    rows = [row for _, rows in tables for row in rows]
    table = sweep.summarize(sweep.run(place / "states", SPECS)).set_index("quantizer")
    for row in rows:
        expected = table.loc[row["quantizer"]]
        for name in ("bits_per_element", "mean_abs_error"):
            assert row[name] == expected[name]
    assert "B256/DE-sym@8s + B256/geometric@8u+qsr (8bit)" in [row["label"] for row in rows]


def test_the_top_rows() -> None:
    frame = pd.DataFrame(
        {
            "quantizer": list("abcde"),
            "bits_per_element": [4.25, 4.2, 4.1, 4.0, 9.0],
        }
    )
    first, wide = by_width(frame, top=2)
    assert first[0] == "up to 4.3 bits per state element, 2 of 4"
    assert [row["label"] for row in first[1]] == ["a", "b"]
    assert wide[0] == "more than 8.3 bits per state element, 1 of 1"
    assert len(next(by_width(frame))[1]) == 4


def test_one_table_of_the_presets(call, place: Path, tmp_path: Path) -> None:
    presets = [name for name in PRESETS if name not in ("32bit", "paper-8bit", "paper-4bit")]
    specs = " ".join(f"--spec {name}" for name in presets)
    code, out, _ = call(f"sweep states {specs} --out {tmp_path}")
    assert code == 0
    header, _, *lines = out.splitlines()[1:]
    assert header.split() == ["quantizer", "bits", "exp_avg", "exp_avg_sq", "update", "largest"]
    table = sweep.summarize(sweep.run(place / "states", presets)).set_index("quantizer")
    for name in presets:
        pair = str(pair_of(name))
        (line,) = [line for line in lines if line.startswith(f"{pair} ({name})")]
        expected = table.loc[pair]
        bits, *_, update, largest = line.split()[-5:]
        assert bits == units.bits(expected["bits_per_element"])
        assert (update, largest) == (
            f"{expected['mean_abs_error']:.3g}",
            f"{expected['max_abs_error']:.3g}",
        )
    widths = [float(line.split()[-5]) for line in lines[: len(presets)]]
    assert widths == sorted(widths)
    code, every, _ = call(f"sweep states {specs} --out {tmp_path} --all")
    assert every.startswith(out.partition("rows: ")[0])
    assert "update, up to 4.3 bits per state element, 1 of 1" in every


def test_quantizers_and_moments_without_a_pair_are_rows_too(call, tmp_path: Path) -> None:
    specs = "--spec B64/nf4@4s --spec '32-bit + B128/DE@4u'"
    lines = call(f"sweep states {specs} --out {tmp_path}/two")[1].splitlines()
    (alone,) = [line.split() for line in lines if line.startswith("B64/nf4@4s")]
    assert alone[-2:] == ["-", "-"]
    (second,) = [line.split() for line in lines if line.startswith("32-bit + B128/DE@4u")]
    assert second[4] == "-"  # the first moment is exact
    out = call(f"sweep states --spec B64/nf4@4s --out {tmp_path}/one")[1]
    assert out.splitlines()[1].split() == ["quantizer", "bits", "exp_avg", "exp_avg_sq"]
    assert "learning rates" not in out


@pytest.mark.slow
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
    frame = sweep.run("states", SPECS, sample=0.5, out=tmp_path / "sweep")  # the same sweep goes on
    assert len(frame) == len(json.loads(out))
