"""Figures draw the frames of the analyses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

import qmaps
from qmaps import analyze, figures
from tests.analyze.test_analyze import PAIR, states

pytestmark = pytest.mark.slow

PAIRS = [PAIR, "tensor/quantile@4s + rank1/linear@4u"]


def _maps() -> pd.DataFrame:
    specs = ("DE@4s", "linear@8u", "tree@8s")
    return analyze.map_curves(qmaps.quantizer(f"tensor/{spec}").map for spec in specs)


def _outliers() -> pd.DataFrame:
    return analyze.outliers({"m": states()["a"]["exp_avg"], "v": states()["a"]["exp_avg_sq"]})


def _pareto() -> pd.DataFrame:
    specs = ["B128/DE@4s", "B128/linear@8s", "B128/lloyd@4s"]
    return analyze.pareto(qmaps.sweep.run(states(), specs))


ANALYSES: dict[str, Callable[[], pd.DataFrame]] = {
    "code_pairs": lambda: analyze.code_pairs(states(), PAIRS),
    "first_code_error": lambda: analyze.first_code_error(states(), PAIRS),
    "map_curves": _maps,
    "histogram": lambda: analyze.histogram(states()["a"]["exp_avg_sq"], ["B128/DE@4u"]),
    "inverse_sqrt": lambda: analyze.inverse_sqrt(states(), ["tensor/DE@4u", "tensor/DE-0@4u"]),
    "outliers": _outliers,
    "pareto": _pareto,
    "update_error": lambda: analyze.update_error(states(), PAIRS),
}


def test_every_analysis_has_its_figure() -> None:
    assert set(ANALYSES) == set(analyze.__all__) - {"outlier_lines"}  # a table
    assert set(ANALYSES) == set(figures.FIGURES) & set(analyze.__all__)


def test_the_figure_of_replays_takes_a_summary_and_rows() -> None:
    frame = qmaps.replay.run(states(), PAIRS, steps=5)
    for rows in (qmaps.replay.summarize(frame), frame[frame["parameter"] == "a"]):
        figures.replay(rows).draw_without_rendering()


@pytest.mark.parametrize("name", ANALYSES)
def test_a_figure_takes_the_frame_of_its_analysis(name: str) -> None:
    figure = getattr(figures, name)(ANALYSES[name]())
    figure.draw_without_rendering()
    assert any(axis.has_data() for axis in figure.axes)


def test_zeros_of_a_state_are_written_into_its_histogram() -> None:
    v = states()["a"]["exp_avg_sq"].clone()
    v[:9] = 0
    figure = figures.histogram(analyze.histogram(v, ["B128/DE@4u"]))
    assert figure.axes[0].get_title("right") == "10.0% exactly 0"


def test_collapsed_elements_are_the_last_bin_of_the_inverse_square_root() -> None:
    frame = ANALYSES["inverse_sqrt"]()
    part = frame[frame["quantizer"] == "tensor/DE@4u"]
    axis = figures.inverse_sqrt(frame).axes[1]
    bars, spike = (patch.get_data() for patch in axis.patches)
    assert np.array_equal(bars.values, part["share"])
    assert list(spike.values) == [part["zero_share"].iloc[0]]
    assert list(spike.edges) == [part["bin_left"].iloc[-1], part["bin_right"].iloc[-1]]
