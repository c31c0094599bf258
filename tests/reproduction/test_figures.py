"""Figures of the papers draw all of their frames."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure

import qmaps
from reproduction import analyses, figures
from tests.figures import checks
from tests.figures.checks import legend, shown
from tests.reproduction.synthetic import FRAMES, SUBJECTS

pytestmark = pytest.mark.slow


def draw(name: str, frame: pd.DataFrame | None = None) -> Figure:
    return getattr(figures, name)(FRAMES[name] if frame is None else frame)


def test_every_figure_is_tested() -> None:
    assert sorted(FRAMES) == sorted(figures.__all__)


@pytest.mark.parametrize("name", sorted(FRAMES))
def test_checks_of_every_figure(name: str, tmp_path: Path) -> None:
    figure, subject = getattr(figures, name), SUBJECTS[name]
    checks.columns_are_enough(figure, subject)
    checks.missing_columns_are_named(name, figure, subject)
    checks.a_frame_without_rows_is_refused(name, figure, subject)
    checks.the_frame_is_left_alone(figure, subject)
    checks.text_is_legible_and_inside(draw(name))
    checks.equal_figures_give_equal_bytes(figure, subject, tmp_path)
    checks.names_are_literal_text(name, figure, subject, tmp_path)


def test_speedup_draws_both_panels() -> None:
    frame = FRAMES["speedup"]
    figure = draw("speedup")
    for axis, panel, across in zip(
        figure.axes, ["GPUs", "sub-batch"], ["gpus", "sub_batch"], strict=True
    ):
        part = frame[frame["panel"] == panel]
        for line, (_, rows) in zip(axis.lines, part.groupby("quantizer", sort=False), strict=False):
            assert np.array_equal(line.get_xdata(), rows[across])
            assert np.array_equal(line.get_ydata(), rows["speedup"])
    assert [len(axis.lines) for axis in figure.axes] == [4, 3]
    assert list(figure.axes[0].lines[3].get_ydata()) == [1, 8]
    assert legend(figure) == [*frame["quantizer"].unique(), "as many times as devices"]
    assert figure.axes[1].get_xlabel() == "sub-batch (samples), 8 devices"


def test_bin_changes_have_a_panel_per_parameter_and_width() -> None:
    frame = FRAMES["bin_changes"]
    figure = draw("bin_changes")
    keys = frame[["parameter", "width"]].drop_duplicates().itertuples(index=False)
    for axis, (parameter, width) in zip(figure.axes, keys, strict=True):
        part = frame[(frame["parameter"] == parameter) & (frame["width"] == width)]
        for line, (_, rows) in zip(axis.lines, part.groupby("setting", sort=False), strict=True):
            assert np.array_equal(line.get_xdata(), rows["step"])
            assert np.array_equal(line.get_ydata(), rows["bin_change"])
    assert [axis.get_title("left") for axis in figure.axes[:3]] == ["12 bits", "10 bits", "8 bits"]
    assert figure.axes[3].get_ylabel() == "3.bias"
    assert legend(figure) == ["nearest", "stochastic"]
    assert figure.axes[0].get_yscale() == "symlog"  # no change at all is shown too
    assert figure.axes[0].get_ylim()[0] == 0


def test_bit_fields_write_each_bit_under_its_field() -> None:
    frame = FRAMES["bit_fields"]
    figure = draw("bit_fields")
    for axis, value in zip(figure.axes, (0.5, 0.01), strict=True):
        assert axis.get_title("left") == f"{value:g}"
        texts = [(text.get_text(), text.get_position()) for text in axis.texts]
        for place, name in enumerate(("moving", "fixed")):
            part = frame[(frame["map"] == name) & (frame["value"] == value)]
            row = [(text, x) for text, (x, y) in texts if round(y) == place]
            expected = [
                (str(digit), bit) for digit, bit in zip(part["set"], part["bit"], strict=True)
            ]
            middles = part.groupby("field", sort=False)["bit"].mean()
            expected += list(zip(middles.index, middles, strict=True))
            assert row[:-1] == expected
            assert row[-1][0] == f"= {1.1 * value:g}"
    small = draw("bit_fields", frame.replace({"value": {0.01: 0.0000234}}))
    assert small.axes[1].get_title("left") == "0.0000234"
    smaller = draw("bit_fields", frame.replace({"value": {0.01: 1.25e-12}}))
    assert smaller.axes[1].get_title("left") == "1.25e-12"
    faces = {}
    for cell, field in zip(figure.axes[0].patches[:4], frame["field"][:4], strict=True):
        faces[field] = cell.get_facecolor()
    assert len(set(faces.values())) == len(faces) == 3


def test_convergence_bound_draws_runs_their_mean_and_the_bound() -> None:
    frame = FRAMES["convergence_bound"]
    figure = draw("convergence_bound")
    for axis, (name, part) in zip(shown(figure), frame.groupby("setting", sort=False), strict=True):
        assert axis.get_title("left") == name
        first, second = (rows["gap"].to_numpy() for _, rows in part.groupby("seed"))
        runs = [line.get_ydata() for line in axis.lines]
        assert np.array_equal(runs[0], first)
        assert np.array_equal(runs[1], second)
        assert np.allclose(runs[2], (first + second) / 2)
        assert np.allclose(runs[3], part["bound"][:100])
        assert axis.get_xscale() == axis.get_yscale() == "log"
        loose = runs[3][-1] / runs[2][-1]
        assert axis.texts[0].get_text() == f"at the end the bound is\n{loose:,.0f} times the mean"
    assert legend(figure) == ["runs", "mean", "bound"]


def test_error_curves_draw_both_errors_of_each_net_in_per_cent() -> None:
    frame = FRAMES["error_curves"]
    figure = draw("error_curves")
    keys = [(panel, split) for panel in ("large", "small") for split in ("train", "test")]
    for axis, (panel, split) in zip(figure.axes, keys, strict=True):
        for line, run in zip(axis.lines, ("32-bit", "8-bit"), strict=True):
            curve = frame[(frame["panel"] == panel) & (frame["run"] == run)].sort_values("step")
            assert np.array_equal(line.get_xdata(), curve["step"])
            assert np.array_equal(line.get_ydata(), 100 * curve[split])
        assert axis.get_ylim()[0] == 0
        assert len({line.get_linestyle() for line in axis.lines}) == 2
    assert [axis.get_title("left") for axis in figure.axes[:2]] == [
        "large: training data", "large: test data",
    ]  # fmt: skip
    assert legend(figure) == ["32-bit", "8-bit"]


def test_error_curves_have_a_band_of_a_standard_deviation() -> None:
    frame = FRAMES["error_curves"].assign(train_std=0.01, test_std=0.02)
    figure = figures.error_curves(frame)
    for axis, std in zip(figure.axes, (0.01, 0.02) * 2, strict=True):
        for line, band in zip(axis.lines, axis.collections, strict=True):
            corners = {tuple(corner) for corner in band.get_paths()[0].vertices.round(6)}
            for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True):
                assert {(x, round(y - 100 * std, 6)), (x, round(y + 100 * std, 6))} <= corners


def test_error_per_decade_breaks_where_nothing_is_and_shows_how_much_is() -> None:
    frame = FRAMES["error_per_decade"]
    figure = draw("error_per_decade")
    for axis, name in zip(
        figure.axes, ["mean_rel_error", "mean_update_error", "zeros"], strict=True
    ):
        assert axis.get_yscale() == ("linear" if name == "zeros" else "log")
        assert axis.get_xlim() == (-0.6, 4.6)  # no element lies in decade 5
        for line, (_, rows) in zip(axis.lines, frame.groupby("quantizer", sort=False), strict=True):
            expected = 100 * rows[name] if name == "zeros" else rows[name].where(rows[name] > 0)
            assert list(line.get_xdata()) == list(range(6))
            assert np.array_equal(line.get_ydata(), expected.astype(float), equal_nan=True)
    assert np.isnan(figure.axes[0].lines[0].get_ydata()[[0, 5]]).all()
    heights = [bar.get_height() for bar in figure.axes[2].patches]
    assert np.allclose(heights, [30, 30, 20, 10, 10, 0])
    assert legend(figure) == [
        "logB256/log2@8u", "B256/linear0@8u", "elements of the decade (%)",
    ]  # fmt: skip


def test_sensitivity_joins_means_and_marks_seeds() -> None:
    left, right = draw("sensitivity").axes
    assert (left.get_xlabel(), right.get_xlabel()) == ("lr", "eps")
    assert (left.get_xscale(), right.get_xscale()) == ("linear", "log")
    mean, seeds, second_mean, _ = left.lines
    assert list(mean.get_xdata()) == [1e-3, 2e-3, 4e-3]
    assert np.allclose(mean.get_ydata(), [2.005, 2.105, 2.205])
    assert np.allclose(second_mean.get_ydata(), mean.get_ydata() + 0.02)
    assert np.allclose(sorted(seeds.get_ydata()), [2, 2.01, 2.1, 2.11, 2.2, 2.21])
    assert legend(draw("sensitivity")) == ["32-bit", "8-bit"]


def test_update_histogram_draws_shares_and_their_sum() -> None:
    frame = FRAMES["update_histogram"]
    figure = draw("update_histogram")
    keys = frame[["parameter", "setting"]].drop_duplicates().itertuples(index=False)
    for axis, (parameter, setting) in zip(figure.axes, keys, strict=True):
        part = frame[(frame["parameter"] == parameter) & (frame["setting"] == setting)]
        bars = axis.patches[0].get_data()
        assert np.array_equal(bars.values, part["share"])
        assert bars.edges[0] == 2.0**-9  # where updates of 0 are
        assert bars.edges[-1] == axis.get_xlim()[1] == 2.0**5
        assert np.array_equal(axis.lines[0].get_ydata(), part["cumulative"][:-1])
        below = [
            part.loc[part["bin_right"] == place, "cumulative"].item() for place in (1 / 8, 0.5)
        ]
        assert [text.get_text() for text in axis.texts] == [
            f"{below[0]:.0%} < $\\delta/8$",
            f"{below[1]:.0%} < $\\delta/2$",
        ]
    assert [axis.get_title("left") for axis in figure.axes[:2]] == ["N = 1", "N = 8"]


def test_update_histogram_leaves_a_panel_without_data_empty() -> None:
    frame = FRAMES["update_histogram"]
    gone = (frame["parameter"] == "3.bias") & (frame["setting"] == "N = 8")
    assert not draw("update_histogram", frame[~gone]).axes[3].has_data()


def test_figures_take_the_frames_of_the_analyses() -> None:
    frame = analyses.bit_fields([qmaps.quantizer("tensor/tree@8s").map], [0.25])
    figures.bit_fields(frame).draw_without_rendering()
    v = torch.rand(31, 17).square()
    frame = analyses.error_per_decade({"v": v}, ["B256/DE@8u", "logB256/log2@8u"])
    figures.error_per_decade(frame).draw_without_rendering()
