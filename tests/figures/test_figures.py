"""Figures draw what their frames hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

import qmaps
from qmaps import analyze, figures
from qmaps.errors import BadValueError, OutputError
from tests.analyze.test_analyze import PAIR, states

PAIRS = [PAIR, "tensor/quantile@4s + rank1/linear@4u"]


def frames() -> dict[str, pd.DataFrame]:
    data = states()
    maps = [qmaps.quantizer(f"tensor/{s}").map for s in ("DE@4s", "linear@8u", "tree@8s")]
    sweep = qmaps.sweep.run(data, ["B128/DE@4s", "B128/linear@8s", "B128/lloyd@4s"])
    steps = np.arange(1, 7)
    losses = pd.concat(
        pd.DataFrame(
            {"run": run, "seed": seed, "step": steps, "split": split, "loss": 3 - steps / 10,
             "difference": shift}
        )
        for run, shift in (("32-bit", 0.0), ("4-bit", 0.1))
        for seed in (0, 1)
        for split in ("train", "val")
    )  # fmt: skip
    return {
        "code_pairs": analyze.code_pairs(data, PAIRS),
        "first_code_error": analyze.first_code_error(data, PAIRS),
        "map_curves": analyze.map_curves(maps),
        "histogram": analyze.histogram(data["a"]["exp_avg_sq"], ["B128/DE@4u", "row/linear@4u"]),
        "inverse_sqrt": analyze.inverse_sqrt(data, ["tensor/DE@4u", "tensor/DE-0@4u"]),
        "outliers": analyze.outliers({"m": data["a"]["exp_avg"], "v": data["a"]["exp_avg_sq"]}),
        "pareto": analyze.pareto(sweep),
        "loss_curves": losses,
        "update_error": analyze.update_error(data, PAIRS),
    }


FRAMES = frames()
NAMES = sorted(FRAMES)


def draw(name: str, frame: pd.DataFrame | None = None) -> Figure:
    return getattr(figures, name)(FRAMES[name] if frame is None else frame)


def shown(figure: Figure) -> list:
    return [axis for axis in figure.axes if axis.get_visible()]


def test_every_figure_is_tested() -> None:
    assert set(NAMES) == set(figures.__all__) - {"save"}


@pytest.mark.parametrize("name", NAMES)
def test_axes_are_labelled_and_files_are_deterministic(name: str, tmp_path: Path) -> None:
    figure = draw(name)
    labelled = [a for a in shown(figure) if a.get_xlabel() or a.get_ylabel()]
    assert labelled
    figures.save(figure, tmp_path / "a.png", dpi=50)
    figures.save(draw(name), tmp_path / "b.png", dpi=50)
    figures.save(draw(name), tmp_path / "a.svg")
    figures.save(draw(name), tmp_path / "b.svg")
    for kind in ("png", "svg"):
        first, second = ((tmp_path / f"{x}.{kind}").read_bytes() for x in "ab")
        assert first == second
        assert len(first) > 1000
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize("name", NAMES)
def test_missing_columns_and_rows_are_named(name: str) -> None:
    frame = FRAMES[name]
    with pytest.raises(BadValueError, match=f"frame has no rows; {name} needs at least one"):
        draw(name, frame.iloc[:0])
    needed = frame.columns[0]
    with pytest.raises(BadValueError, match=f"frame lacks {needed}; {name} needs the columns"):
        draw(name, frame.drop(columns=needed))


def test_pyplot_is_left_alone() -> None:
    import matplotlib.pyplot as plt

    assert plt.get_fignums() == []


def test_code_pairs_shows_the_cells() -> None:
    frame = FRAMES["code_pairs"]
    figure = draw("code_pairs")
    mesh = figure.axes[0].collections[0]
    values = mesh.get_array().reshape(16, 16)
    part = frame[frame["quantizer"] == PAIR]
    for row in part.sample(20, random_state=0).itertuples():
        assert values[row.code_second, row.code_first] == row.use
    assert values.mask.sum() == 256 - len(part)
    with pytest.raises(BadValueError) as caught:
        figures.code_pairs(frame, quantities=["use", "x"])
    assert str(caught.value) == "quantities=['use', 'x'] must be some of 'use', 'abs', 'rel'"
    assert len(figures.code_pairs(frame, quantities=["rel"]).axes) == 2 + 1


def test_first_code_error_shows_the_curves() -> None:
    frame = FRAMES["first_code_error"]
    lines = draw("first_code_error").axes[0].lines
    assert len(lines) == 2
    part = frame[frame["quantizer"] == PAIR]
    expected = part["mean_abs_error"].where(part["mean_abs_error"] > 0)
    assert np.array_equal(lines[0].get_ydata(), expected, equal_nan=True)


def test_map_curves_has_a_panel_a_map() -> None:
    figure = draw("map_curves")
    titles = [a.get_title() for a in shown(figure) if a.get_title()]
    assert titles == ["DE@4s", "linear@8u", "tree@8s"]
    assert figure.axes[0].lines[0].get_ydata().size == 16


def test_histogram_writes_the_share_of_zeros() -> None:
    v = states()["a"]["exp_avg_sq"].clone()
    v[:9] = 0
    figure = figures.histogram(analyze.histogram(v, ["B128/DE@4u"]))
    assert [a.get_title("left") for a in figure.axes] == [
        "original", "normalized", "quantized", "dequantized",
    ]  # fmt: skip
    assert figure.axes[0].get_title("right") == "10.0% exactly 0"


def test_inverse_sqrt_marks_the_collapse() -> None:
    notes = [axis.get_title("right") for axis in draw("inverse_sqrt").axes]
    assert notes[0] == notes[2] == ""
    assert notes[1].endswith("of the non-zero values decode to 0 →")


def test_pareto_draws_frontier_and_limit() -> None:
    axis = draw("pareto").axes[0]
    labels = {line.get_label() for line in axis.lines}
    assert labels == {"Pareto frontier", "Lloyd-Max limit (B128)"}
    assert axis.get_yscale() == "log"


def test_loss_curves_draw_each_seed_and_the_difference() -> None:
    train, validation, difference = draw("loss_curves").axes
    assert len(train.lines) == len(validation.lines) == 4
    assert len(difference.lines) == 2 + 1
    assert "nats" in train.get_ylabel()


def test_update_error_has_a_line_a_pair() -> None:
    labels = [t.get_text() for t in draw("update_error").axes[0].get_yticklabels()]
    assert labels == PAIRS


def test_files_that_cannot_be_written(tmp_path: Path) -> None:
    figure = draw("pareto")
    with pytest.raises(BadValueError, match=r"must end in \.png or \.svg"):
        figures.save(figure, tmp_path / "x.jpg")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        figures.save(figure, tmp_path / "file" / "x.png")
