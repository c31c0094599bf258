"""Figures and tables of the 2015 paper from small made-up tables."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from qmaps.papers.context import Context, NotYetError
from qmaps.papers.exhibit import Finding
from qmaps.papers.parallelism_2015 import table_5
from qmaps.papers.published import published
from qmaps.speedup import paper

NAME = "8-bit-parallelism-2015"


def context(folder: Path) -> Context:
    return Context(folder / "runs", reports=folder)


def numbers(found: Finding) -> dict[tuple[str, str], tuple[float, str]]:
    """Ours and the verdict, by what and quantity."""
    assert found.numbers is not None
    return {
        (row["what"], row["quantity"]): (row["ours"], row["verdict"])
        for row in found.numbers.to_dict("records")
    }


def test_table_5_has_passes_sizes_and_times(tmp_path: Path) -> None:
    with pytest.raises(NotYetError) as caught:
        table_5.build(context(tmp_path))
    assert str(caught.value) == (
        f"{tmp_path.name}/speedup/measured/hardware.json is not there yet; "
        f"`{table_5.COMMAND}` makes it"
    )
    link = {"gb_per_s": 1.024, "latency_ms": [[0.0, 0.5]]}
    hardware = {"name": "two", "nodes": 1, "gpus_per_node": 2, "network": link, "local": link}
    file = tmp_path / "speedup" / "measured" / "hardware.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"hardware": hardware}))
    found = table_5.find(table_5.build(context(tmp_path)))
    rows = numbers(found)
    assert rows["activations of 512", "forward passes"] == (12288 / 512, "reproduced")
    assert rows["activations of 512", "size in 32 bits"] == (576, "reproduced")
    # Twice the 72 that are printed, and a scale.
    assert rows["activations of 512", "size in 8 bits"] == (144 + 4 / 1024, "same ordering")
    assert rows["activations of 512", "latency in 32 bits"][0] == pytest.approx(0.5 + 0.576)
    assert [statement.holds for statement in found.statements] == [False]
    assert found.statements[0].detail == (
        "Printed are 0.125 of it, due 0.25; 4 bits would take 0.125."
    )
    assert not any(math.isnan(ours) for ours, _ in rows.values())


def test_table_5_as_published_is_what_the_model_starts_from() -> None:
    rows = published(NAME, "table-5").set_index(["what", "quantity"])["paper"]
    for row in paper.CLUSTER:
        what = f"activations of {row.sub_batch}"
        for bits, size, latency in zip((32, 8), row.size_kb, row.latency_ms, strict=True):
            assert rows[what, f"size in {bits} bits"] == size
            assert rows[what, f"latency in {bits} bits"] == latency
