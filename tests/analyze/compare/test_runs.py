"""Two runs side by side: magnitudes, outliers and errors, per tensor and in all."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from qmaps.analyze import outlier_lines, update_error
from qmaps.analyze.compare import RunsCompared, runs
from qmaps.errors import CaptureError, SpecError

PAIRS = ["B128/DE@4s + B128/DE-0@4u", "B128/DE@4s + B128/DE@4u"]


def tensors(scale: float, *names: str) -> dict[str, dict[str, torch.Tensor]]:
    draw = torch.Generator().manual_seed(0)
    found = {}
    for number, name in enumerate(names, start=1):
        m = torch.randn(64, 96 + number, generator=draw)
        m[3] *= 100
        v = m.square() * scale
        v[:, :10] = 0
        found[name] = {"exp_avg": m, "exp_avg_sq": v}
    return found


A, B = tensors(1e-4, "a", "b", "gone"), tensors(1e-2, "a", "b", "new")
A["small"] = {"exp_avg": torch.ones(5), "exp_avg_sq": torch.ones(5)}
B["flat"] = {"exp_avg": torch.ones(5000), "exp_avg_sq": torch.ones(5000)}


@pytest.fixture(scope="module")
def found() -> RunsCompared:
    return runs(A, B, pairs=PAIRS)


def test_parameters_are_matched_by_name(found: RunsCompared) -> None:
    assert found.shared == ["a", "b"]
    assert found.only == {"A": ["gone"], "B": ["new", "flat"]}
    names = found.moments.groupby("run")["parameter"].unique().map(list).to_dict()
    assert names == {"A": ["a", "b", "gone", ""], "B": ["a", "b", "new", "flat", ""]}


def test_magnitudes_are_quantiles_in_decades(found: RunsCompared) -> None:
    rows = found.moments.set_index(["run", "parameter", "state"])
    for run, states in (("A", A), ("B", B)):
        for state in ("exp_avg", "exp_avg_sq"):
            whole = torch.cat([states[name][state].reshape(-1) for name in ("a", "b")])
            for name, x in (("a", states["a"][state].reshape(-1)), ("", whole)):
                row = rows.loc[run, name, state]
                logs = x[x != 0].abs().double().log10().numpy()
                expected = np.quantile(logs, [0.01, 0.5, 0.99])
                assert row[["low", "median", "high"]].tolist() == pytest.approx(expected, abs=0.04)
                assert row["spread"] == row["high"] - row["low"]
                assert row["zeros"] == pytest.approx(float((x == 0).float().mean()))
                assert row["numel"] == x.numel()
    one, other = (rows.loc[run, "", "exp_avg_sq"]["median"] for run in "AB")
    assert other - one == pytest.approx(2, abs=0.06)
    lines = outlier_lines({"a": A["a"]["exp_avg"]}).iloc[0]
    assert rows.loc[("A", "a", "exp_avg"), ["in_rows", "in_cols"]].tolist() == [
        lines["in_rows"], lines["in_cols"],
    ]  # fmt: skip
    both = [rows.loc["A", name, "exp_avg"] for name in ("a", "b")]
    mean = sum(row["in_cols"] * row["numel"] for row in both) / sum(r["numel"] for r in both)
    assert rows.loc["A", "", "exp_avg"]["in_cols"] == pytest.approx(mean)
    assert math.isnan(rows.loc["B", "flat", "exp_avg"]["in_rows"])
    assert rows.loc["B", "flat", "exp_avg"]["spread"] == 0


def test_errors_are_those_of_the_update(found: RunsCompared) -> None:
    rows = found.errors.set_index(["run", "parameter", "quantizer"])
    for run, states in (("A", A), ("B", B)):
        shared = {name: states[name] for name in ("a", "b")}
        for name, of in (("a", {"a": states["a"]}), ("", shared)):
            expected = update_error(of, PAIRS).set_index("quantizer")
            for pair in PAIRS:
                for column in ("mean_abs_error", "max_abs_error", "zeroed_share", "numel",
                               "bits_per_element"):  # fmt: skip
                    assert rows.loc[run, name, pair][column] == pytest.approx(
                        expected.loc[pair, column]
                    )
    assert rows.loc["A", "", PAIRS[1]]["zeroed_share"] > 0


def test_bad_input() -> None:
    with pytest.raises(CaptureError) as caught:
        runs({"x": A["a"]}, B, pairs=PAIRS)
    assert str(caught.value) == (
        "'memory' and 'memory' have no parameter in common (such as x and a)"
    )
    with pytest.raises(CaptureError, match="no parameter has more than min_quantized_size=4096"):
        runs({"small": A["small"]}, B, pairs=PAIRS)
    with pytest.raises(SpecError):
        runs(A, B, pairs=["B128/none@4s"])
