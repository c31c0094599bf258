"""Figures and tables of the 2015 paper from small made-up tables."""

from __future__ import annotations

import json
import math
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from reproduction import run
from reproduction.context import Context, NotYetError
from reproduction.exhibit import Finding, explain
from reproduction.parallelism_2015 import figure_1, figure_2, table_5

pytestmark = pytest.mark.slow

NAME = "8-bit-parallelism-2015"


def context(folder: Path) -> Context:
    return Context(folder / "runs", reports=folder)


def numbers(finding: Finding) -> dict[tuple[str, str], tuple[float, str]]:
    """Our number and the verdict, by row and quantity."""
    assert finding.numbers is not None
    return {
        (row["what"], row["quantity"]): (row["ours"], row["verdict"])
        for row in finding.numbers.to_dict("records")
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
    finding = table_5.find(table_5.build(context(tmp_path)))
    rows = numbers(finding)
    assert rows["activations of 512", "forward passes"] == (12288 / 512, "reproduced")
    assert rows["activations of 512", "size in 32 bits"] == (576, "reproduced")
    # Twice the 72 that are printed, and a scale.
    assert rows["activations of 512", "size in 8 bits"] == (144 + 4 / 1024, "paper in doubt")
    assert rows["activations of 512", "latency in 32 bits"][0] == pytest.approx(0.5 + 0.576)
    assert [statement.holds for statement in finding.statements] == [False]
    assert finding.statements[0].detail == (
        "Printed are 0.125 of it, due 0.25; 4 bits would take 0.125."
    )
    assert not any(math.isnan(ours) for ours, _ in rows.values())


def test_table_5_is_whole() -> None:
    rows = table_5.printed()
    assert rows["quantity"].value_counts().to_dict() == {
        "forward passes": 6, "size in 32 bits": 9, "size in 8 bits": 9, "latency in 32 bits": 9,
        "latency in 8 bits": 9,
    }  # fmt: skip
    paper = rows.set_index(["what", "quantity"])["paper"]
    assert paper["activations of 2048", "size in 32 bits"] == 2312
    assert paper["activations of 256", "latency in 8 bits"] == 0.01
    assert paper["gradient of conv 384-256", "size in 8 bits"] == 13.5
    sizes = rows[rows["quantity"] == "size in 8 bits"]["paper"]
    assert sizes.tolist() == [13.5, 18, 36, 72, 144, 289, 1734, 3, 6]


TYPES = ("32-bit", "dynamic tree", "linear", "mantissa", "static tree")


def training(folder: Path, **worse: float) -> Finding:
    """Figure 2 of made-up errors: 2 % with noise, and `worse` errors for some types or training."""
    random = np.random.default_rng(0)
    errors, curves = [], []
    for parallel, kind in product(("data", "model"), TYPES):
        run = {"net": "small", "parallel": parallel, "type": kind}
        more = worse.get(kind.replace(" ", "_"), 0.0) if parallel == "data" else 0.0
        errors += [
            {**run, "seed": seed, "steps": 100, "error": 0.02 + more + random.normal(0, 1e-3)}
            for seed in range(6)
        ]
        late = worse.get("train", 0.0) if (parallel, kind) == ("model", "dynamic tree") else 0.0
        curves += [
            {**run, "step": step, "train": 1 / step + late, "test": 2 / step + more * (step > 50)}
            for step in (50, 100)
        ]
    pd.DataFrame(errors).to_csv(folder / "parallel-training.csv", index=False)
    pd.DataFrame(curves).to_csv(folder / "parallel-training-curves.csv", index=False)
    return figure_2.find(figure_2.build(context(folder)))


def broken(finding: Finding) -> list[str]:
    return [statement.text for statement in finding.statements if statement.holds is False]


def test_runs_of_one_question_are_one_test(tmp_path: Path) -> None:
    def verdicts(*more: float) -> list[str]:
        """The statement for these errors of dynamic trees, in units of 0.001, give or take 3."""
        rows = [
            {"net": "small", "parallel": parallel, "type": kind, "seed": seed, "steps": 1,
             "error": 0.02 + (kind == "dynamic tree") * (error + (-1) ** seed * 3) / 1000}
            for parallel, error in zip(("data", "model"), more, strict=True)
            for kind, seed in product(TYPES, range(8))
        ]  # fmt: skip
        training(tmp_path)
        pd.DataFrame(rows).to_csv(tmp_path / "parallel-training.csv", index=False)
        finding = explain(figure_2.find(figure_2.build(context(tmp_path))))
        (statement,) = [s for s in finding.statements if "increase the test error" in s.text]
        return [statement.text, statement.verdict.value]

    text = "The dynamic tree does not increase the test error (2 runs together)."
    assert verdicts(1.8, 1.8) == [text, "contradicts"]  # p is 0.07 for each, 0.02 for both
    assert verdicts(1.8, 0.0) == [text, "cannot tell"]


def test_figure_2_of_types_that_do_no_harm(tmp_path: Path) -> None:
    with pytest.raises(NotYetError) as caught:
        figure_2.build(context(tmp_path))
    assert str(caught.value) == (
        f"{tmp_path.name}/parallel-training-curves.csv is not there yet; "
        "`python -m benchmarks.parallel_training` at commit `65a89a2e` makes it"
    )
    finding = training(tmp_path)
    assert [statement.holds for statement in finding.statements] == [True, True, (), ()]
    assert {verdict for _, verdict in numbers(finding).values()} == {"reproduced"}
    assert finding.numbers is not None
    assert finding.numbers["paper"].tolist() == [18.65 / 18.55] * 2
    frames = figure_2.build(context(tmp_path))
    assert list(figure_2.drawn(frames["curves"])["run"].unique()) == [
        "32-bit", "dynamic tree, data parallel", "dynamic tree, model parallel",
    ]  # fmt: skip
    assert len(figure_2.EXHIBIT.draw(frames)["figure-2"].axes) == 2


def test_figure_2_names_the_types_that_got_worse(tmp_path: Path) -> None:
    harmful = training(tmp_path, dynamic_tree=0.01)
    joint = "No significant difference between 32 bits and the four types (2 runs together)."
    more = "The dynamic tree does not increase the test error (2 runs together)."
    assert broken(harmful) == [more, joint]
    ratio, verdict = numbers(harmful)["small, data parallel", figure_2.QUANTITY]
    assert ratio == pytest.approx(1.5, abs=0.1)
    assert verdict == "differs"
    assert broken(training(tmp_path, mantissa=0.01)) == [joint]
    assert broken(training(tmp_path, train=0.0004)) == [
        "The dynamic tree does not increase the training error (small, model parallel).",
    ]
    assert broken(training(tmp_path, train=0.0002)) == []
    assert broken(training(tmp_path, dynamic_tree=-0.01)) == [joint]


def test_commands_and_labels_are_written_for_readers(tmp_path: Path) -> None:
    page = run([NAME], out=tmp_path / "out", runs=tmp_path / "runs", reports=tmp_path)
    folder = page.parent / NAME
    text = (folder / "index.html").read_text()
    assert (
        f"{tmp_path.name}/parallel-training-curves.csv is not there yet; "
        "<code>python -m benchmarks.parallel_training</code> at commit <code>65a89a2e</code> makes "
        "it"
    ) in text
    assert "`" not in text
    assert "\n## Table 1, Tables 3 and 4, Tables 6 and 7: " in (folder / "README.md").read_text()
    # No figure or table of this paper is left out as a whole.
    assert (
        "| 8-bit approximations for parallelism in deep learning | 2 | 2 | 4 | 0 |"
        in (page.parent / "papers.md").read_text()
    )


def test_figure_1_has_the_papers_examples(tmp_path: Path) -> None:
    frames = figure_1.build(context(tmp_path))
    finding = figure_1.find(frames)
    rows = numbers(finding)
    compared = [key for key, (_, verdict) in rows.items() if verdict == "reproduced"]
    assert compared == [
        ("x = 0.2345678", "dynamic tree"),
        ("x = 0.2345678", "static tree"),
        ("x = 0.2345678", "mantissa"),
        ("x = 0.0000234", "dynamic tree"),
    ]
    assert len(rows) == 8
    assert rows["x = 0.0000234", "linear quantization"] == (0.0, "not compared")
    assert broken(finding) == []
    assert finding.statements[0].detail == "Of the tree: 6 bits of 0.2345678, 2 of 0.0000234."


def test_figure_1_marks_false_statements(tmp_path: Path) -> None:
    bits = figure_1.build(context(tmp_path))["bits"]
    # The dynamic tree's bits under the name of the static tree, and the other way round.
    swapped = {"dynamic tree": "static tree", "static tree": "dynamic tree"}
    finding = figure_1.find({"bits": bits.assign(map=bits["map"].replace(swapped))})
    assert [statement.holds for statement in finding.statements] == [False, False, True]
    assert numbers(finding)["x = 0.2345678", "dynamic tree"] == (
        pytest.approx(0.23125),
        "same ordering",
    )
