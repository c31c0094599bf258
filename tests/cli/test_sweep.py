"""The tables of ``qmaps sweep``: grouped by width, with presets and the Pareto front."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from qmaps import sweep
from qmaps.cli import output
from qmaps.cli.output import by_width

SPECS = [
    "B128/DE@4s+sr + B128/DE-0@4u", "B128/DE@4s + B128/linear@4u", "B64/DE@4s + B64/linear@4u",
    "B256/DE@8s + B256/DE-0@8u", "B128/lloyd@8s + B128/lloyd@8u", "tensor/linear@8s + 32-bit",
]  # fmt: skip
OPTIONS = " ".join(f"--spec '{spec}'" for spec in SPECS)


def test_a_page_of_the_tables(call, place: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("sys.argv", ["qmaps", "sweep", "states"])
    page = tmp_path / "new" / "t.md"
    code, out, _ = call(f"sweep states {OPTIONS} --out {tmp_path} --markdown {page} --top 1")
    assert code == 0
    assert out.endswith(f"markdown: {page}\n")
    text = page.read_text()
    assert re.match(
        r"# Quantizers on captured states\n\n`qmaps sweep states`\n\nstates of "
        r"states/step-00000002\.safetensors; step 2; 2 parameters; qmaps \S+; torch \S+; "
        r"python \S+\.\n\nAll tensors together, least mean absolute error first\. \*: ",
        text,
    )
    sections = dict(part.split("\n", 1) for part in text.split("\n## ")[1:])
    updates = {title: body for title, body in sections.items() if title.startswith("update, ")}
    assert list(updates) == [
        "update, up to 4.3 bits per element, 1 of 2",
        "update, up to 6.3 bits per element, 1 of 1",
        "update, up to 8.3 bits per element, 1 of 1",
        "update, more than 8.3 bits per element, 1 of 2",
    ]
    rows = [line for body in updates.values() for line in body.splitlines()[3:] if line]
    table = sweep.summarize(sweep.run(place / "states", SPECS)).set_index("quantizer")
    for row in rows:
        spec, front, bits, error = (cell.strip() for cell in row.split("|")[1:5])
        known = table.loc[spec.split(" (")[0]]
        assert bits == f"{known['bits_per_element']:.2f}"
        assert error == f"{known['mean_abs_error']:.3g}"
        others = table[~table.index.str.contains("lloyd")]
        beaten = (others["bits_per_element"] <= known["bits_per_element"]) & (
            others["mean_abs_error"] < known["mean_abs_error"]
        )
        assert (front == "*") == (not beaten.any() and "lloyd" not in spec)
    assert "| B256/DE@8s + B256/DE-0@8u (8bit) | * | 8.13 |" in text
    assert "| B128/lloyd@8s |  |" in text  # the least error of all, but fitted to the states


def test_the_top_rows_and_all_of_the_front() -> None:
    frame = pd.DataFrame(
        {
            "quantizer": list("abcde"),
            "bits_per_element": [4.25, 4.2, 4.1, 4.0, 9.0],
            "on_front": [True, False, False, True, False],
        }
    )
    first, wide = by_width(frame, {"q": "{quantizer}"}, top=2)
    assert (first.title, first.rows) == (
        "up to 4.3 bits per element, 3 of 4", [["a"], ["b"], ["d"]],
    )  # fmt: skip
    assert wide.title == "more than 8.3 bits per element, 1 of 1"
    assert len(by_width(frame, {"q": "{quantizer}"})[0].rows) == 4


def test_the_terminal_has_the_same_tables(call, tmp_path: Path) -> None:
    code, out, _ = call(f"sweep states {OPTIONS} --out {tmp_path}")
    assert code == 0
    assert "update, up to 4.3 bits per element, 2 of 2" in out
    assert re.search(r"B256/DE@8s \+ B256/DE-0@8u \(8bit\) +│ +\* │ 8.13 │", out)
    assert call(f"sweep states --out {tmp_path}/new --markdown {tmp_path}") == (
        2,
        "",
        f"error: markdown={str(tmp_path)!r} cannot be written (Is a directory); give a writable "
        "file\n",
    )


def test_workers_and_every_digit(call, place: Path, tmp_path: Path) -> None:
    expected = sweep.run(place / "states", SPECS)
    code, out, err = call(f"sweep states {OPTIONS} --out {tmp_path}/one --workers 2 --json")
    assert (code, err) == (0, "")
    columns = [name for name in expected if expected[name].dtype == "float64"]
    rows = json.loads(out)
    for name in columns:
        assert [row[name] for row in rows] == expected[name].replace(np.nan, None).tolist()


def test_lines_of_progress_without_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "EVERY", 0.05)
    with output.progress(quiet=False) as advance:
        advance("sweep quantizers", 3, 9, "a.weight (1.5M elements/s, 4 s left)")
        time.sleep(0.3)
    line = "sweep quantizers: 3 of 9, a.weight (1.5M elements/s, 4 s left)\n"
    assert capsys.readouterr().err.count(line) >= 2
    with output.progress(quiet=True) as advance:
        advance("sweep quantizers", 3, 9, "a.weight")
        time.sleep(0.2)
    assert capsys.readouterr().err == ""


def test_a_share_of_each_tensor(call, tmp_path: Path) -> None:
    code, out, _ = call(f"sweep states {OPTIONS} --out {tmp_path} --sample 0.5 --json")
    assert code == 0
    assert call(f"sweep states --out {tmp_path} --sample 50") == (
        2, "", "error: sample=50 must be above 0 and at most 1\n"
    )  # fmt: skip
    kept = sweep.run("states", SPECS, sample=0.5, out=tmp_path / "sweep")  # the same sweep goes on
    assert len(kept) == len(json.loads(out))
