"""Figures draw all of their frames, and errors name missing columns."""

from __future__ import annotations

import functools
import importlib
import itertools
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import LogNorm, to_hex
from matplotlib.figure import Figure
from matplotlib.text import Annotation

from qmaps import figures
from qmaps.analyze.recommend.verdict import CLEAN, LEVELS, UNPROVEN, UNSAFE
from qmaps.capture import Thresholds
from qmaps.errors import BadValueError, OutputError
from qmaps.figures.style import as_text, log_ticks
from tests.figures import checks, synthetic
from tests.figures.checks import legend, shown
from tests.figures.synthetic import FRAMES, OTHER, PAIR, SUBJECTS

pytestmark = pytest.mark.slow

NAMES = sorted(FRAMES)
# The package's attributes of these names are functions.
replay_figure, monitor_figure = (
    importlib.import_module(f"qmaps.figures.{name}") for name in ("replay", "monitor")
)


def fresh(name: str, frame: pd.DataFrame | None = None) -> Figure:
    return getattr(figures, name)(FRAMES[name] if frame is None else frame)


once = functools.cache(fresh)


def draw(name: str, frame: pd.DataFrame | None = None) -> Figure:
    """Draw a figure, for tests that only look at it."""
    return once(name) if frame is None else fresh(name, frame)


def test_every_figure_is_tested() -> None:
    assert set(NAMES) == set(figures.FIGURES)
    assert set(figures.__all__) >= {"save", *NAMES}


# What holds for all


@pytest.mark.parametrize("name", NAMES)
def test_these_columns_are_enough(name: str) -> None:
    checks.columns_are_enough(getattr(figures, name), SUBJECTS[name])


@pytest.mark.parametrize("name", NAMES)
def test_each_missing_column_is_named(name: str) -> None:
    checks.missing_columns_are_named(name, getattr(figures, name), SUBJECTS[name])


@pytest.mark.parametrize("name", NAMES)
def test_a_frame_without_rows_is_refused(name: str) -> None:
    checks.a_frame_without_rows_is_refused(name, getattr(figures, name), SUBJECTS[name])


@pytest.mark.parametrize("name", NAMES)
def test_the_frame_is_left_alone(name: str) -> None:
    checks.the_frame_is_left_alone(getattr(figures, name), SUBJECTS[name])


@pytest.mark.parametrize("name", NAMES)
def test_text_is_there_legible_and_inside(name: str) -> None:
    checks.text_is_legible_and_inside(draw(name))


@pytest.mark.parametrize("name", NAMES)
def test_equal_figures_give_equal_bytes_under_any_settings(name: str, tmp_path: Path) -> None:
    # What makes SVG differ from run to run lies in `save`; two figures show it, one with an image.
    kinds = {"outliers": ("png", "svg"), "pareto": ("png", "svg", "pdf")}.get(name, ("png",))
    checks.equal_figures_give_equal_bytes(getattr(figures, name), SUBJECTS[name], tmp_path, kinds)


def test_a_figure_gives_the_same_file_twice(tmp_path: Path) -> None:
    figure = fresh("first_code_error")
    for file in ("a.png", "b.PNG"):
        figures.save(figure, tmp_path / file, dpi=50)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.PNG").read_bytes()


def test_pyplot_is_neither_imported_nor_used() -> None:
    code = (
        "import sys\n"
        "from qmaps import figures\n"
        "from tests.figures.synthetic import FRAMES\n"
        "figures.code_pairs(FRAMES['code_pairs'])\n"
        "figures.pareto(FRAMES['pareto'])\n"
        "print('matplotlib.pyplot' in sys.modules)\n"
        "import matplotlib.pyplot as plt\n"
        "figures.map_curves(FRAMES['map_curves'])\n"
        "print(plt.get_fignums())\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("False\n[]\n", 0), done.stderr


def test_threads_draw_at_once(tmp_path: Path) -> None:
    names = ["map_curves", "update_error"] * 2
    paths = [tmp_path / f"{number}.png" for number in range(len(names))]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda job: checks.save_as_drawn(fresh(job[0]), job[1]),
                      zip(names, paths, strict=True)))  # fmt: skip
    for alone, threaded in zip(paths[:2], paths[2:], strict=True):
        assert alone.read_bytes() == threaded.read_bytes()


# save


def test_save_leaves_the_old_file_if_drawing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "x.png"
    target.write_bytes(b"old")

    def fails(self: Figure, path: Path, **options: object) -> None:
        assert Path(path) != target
        Path(path).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(Figure, "savefig", fails)
    with pytest.raises(KeyboardInterrupt):
        figures.save(Figure(), target)
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("x.png", b"old")]


def test_errors_of_save(tmp_path: Path) -> None:
    with pytest.raises(BadValueError) as caught:
        figures.save(Figure(), tmp_path / "x.jpg")
    assert str(caught.value) == f"path='{tmp_path}/x.jpg' must end in .png, .svg, .pdf"
    with pytest.raises(BadValueError) as caught:
        figures.save(Figure(), tmp_path / "x.png", dpi=0)
    assert str(caught.value) == "dpi=0 must be positive"
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError) as caught:
        figures.save(Figure(), tmp_path / "file" / "x.png")
    assert str(caught.value) == f"'{tmp_path}/file/x.png' cannot be written (Not a directory)"


def test_dpi_is_that_of_the_file(tmp_path: Path) -> None:
    figures.save(Figure(figsize=(2, 1)), tmp_path / "x.png", dpi=70)
    header = (tmp_path / "x.png").read_bytes()[16:24]
    assert (int.from_bytes(header[:4]), int.from_bytes(header[4:])) == (140, 70)


# code_pairs


def test_code_pairs_shows_every_cell() -> None:
    frame = FRAMES["code_pairs"]
    figure = draw("code_pairs")
    for row, (quantizer, size) in enumerate([(PAIR, 16), (OTHER, 8)]):
        part = frame[frame["quantizer"] == quantizer]
        for column, name in enumerate(["use", "mean_abs_error", "mean_rel_error"]):
            mesh = figure.axes[3 * row + column].collections[0]
            expected = np.full((size, size), np.nan)
            for cell in part.to_dict("records"):
                expected[cell["code_second"], cell["code_first"]] = cell[name]
            values = np.ma.filled(mesh.get_array(), np.nan).reshape(size, size)
            assert np.array_equal(values, expected, equal_nan=True)
            assert np.isnan(expected).any()
            assert to_hex(mesh.cmap.get_bad()) == "#eeeeee"


def test_code_pairs_shares_logarithmic_colours_in_a_column() -> None:
    meshes = [axis.collections[0] for axis in draw("code_pairs").axes[:6]]
    for column in range(3):
        upper, lower = meshes[column], meshes[3 + column]
        assert isinstance(upper.norm, LogNorm)
        assert (upper.norm.vmin, upper.norm.vmax) == (lower.norm.vmin, lower.norm.vmax)
    frame = FRAMES["code_pairs"]
    assert meshes[0].norm.vmin == frame["use"].min()
    by_quantizer = frame[frame["mean_abs_error"] > 0].groupby("quantizer")["mean_abs_error"]
    assert meshes[1].norm.vmin == pytest.approx(by_quantizer.quantile(0.01).min())
    assert meshes[1].norm.vmax == pytest.approx(by_quantizer.quantile(0.995).max())


def test_code_pairs_ticks_give_the_values_of_their_codes() -> None:
    frame = FRAMES["code_pairs"]
    axis = draw("code_pairs").axes[0]
    part = frame[frame["quantizer"] == PAIR]
    for which, ticks, labels in (
        ("first", axis.get_xticks(), axis.get_xticklabels()),
        ("second", axis.get_yticks(), axis.get_yticklabels()),
    ):
        values = part.set_index(f"code_{which}")[f"value_{which}"].groupby(level=0).first()
        assert len(ticks) >= 3
        assert {values.index.min(), values.index.max()} <= {int(tick) for tick in ticks}
        assert np.diff(ticks).min() >= 0.17 * 16
        for tick, label in zip(ticks, labels, strict=True):
            assert float(label.get_text()) == pytest.approx(values[int(tick)], rel=0.1)
    assert axis.get_xlabel() == "first moment, tensor/DE@4s"
    assert axis.get_ylabel() == "second moment, tensor/linear@4u"


def test_code_pairs_without_any_error_are_drawn() -> None:
    frame = FRAMES["code_pairs"].assign(mean_abs_error=0.0, mean_rel_error=np.nan)
    draw("code_pairs", frame).draw_without_rendering()


# first_code_error


def test_first_code_error_shows_the_curves() -> None:
    frame = FRAMES["first_code_error"]
    figure = draw("first_code_error")
    panels = [
        (name, part)
        for name in ("mean_abs_error", "mean_rel_error", "use")
        for _, part in frame.groupby("quantizer", sort=False)
    ]
    for axis, (name, part) in zip(figure.axes, panels, strict=True):
        assert axis.get_yscale() == "log"
        (line,) = axis.lines
        expected = part[name].where(part[name] > 0)
        assert np.array_equal(line.get_xdata(), part["position"])
        assert np.array_equal(line.get_ydata(), expected, equal_nan=True)
    titles = [axis.get_title().replace("\n", " ") for axis in figure.axes[:2]]
    assert titles == [PAIR, OTHER]
    first, second = (axis.lines[0] for axis in figure.axes[:2])
    assert first.get_color() != second.get_color()
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()


def test_first_code_error_dots_a_code_that_no_line_reaches() -> None:
    frame = pd.DataFrame({"quantizer": "q", "position": np.linspace(-1, 1, 256), "use": 0.1})
    frame["mean_abs_error"] = frame["mean_rel_error"] = np.nan
    frame.loc[[0, 7, 20, 21, 255], "mean_abs_error"] = 1.0
    assert draw("first_code_error", frame).axes[0].lines[0].get_markevery() == [0, 7, 255]


# map_curves


def test_map_curves_share_two_panels() -> None:
    frame = FRAMES["map_curves"]
    figure = draw("map_curves")
    linear, log = figure.axes
    assert (linear.get_yscale(), log.get_yscale()) == ("linear", "log")
    assert legend(figure) == ["map0@4s", "map1@8s", "map2@6s"]
    for number, (_, part) in enumerate(frame.groupby("map", sort=False)):
        assert np.array_equal(linear.lines[number].get_ydata(), part["value"])
        assert np.array_equal(log.lines[number].get_xdata(), part["position"])
        magnitude = part["value"].abs().replace(0, np.nan)
        assert np.array_equal(log.lines[number].get_ydata(), magnitude, equal_nan=True)
    assert [line.get_drawstyle() for line in linear.lines] == ["steps-mid", "default", "default"]


def test_many_map_curves_get_a_panel_each() -> None:
    frame = synthetic.map_curves(7)
    figure = draw("map_curves", frame)
    titled = [axis for axis in shown(figure) if axis.get_title()]
    assert [axis.get_title() for axis in titled] == list(frame["map"].unique())
    assert len(shown(figure)) == 2 * 7
    for axis in titled:
        assert np.array_equal(
            axis.lines[0].get_ydata(), frame.loc[frame["map"] == axis.get_title(), "value"]
        )


# histogram


def test_histogram_shows_the_counts_of_each_panel() -> None:
    frame = FRAMES["histogram"]
    figure = draw("histogram")
    names = ["original", "normalized", "quantized", "dequantized"]
    assert [axis.get_title("left") for axis in figure.axes] == [*names, *[""] * 4]
    for number, axis in enumerate(figure.axes):
        quantizer = frame["quantizer"].unique()[number // 4]
        part = frame[(frame["quantizer"] == quantizer) & (frame["panel"] == names[number % 4])]
        counts, edges, _ = axis.patches[0].get_data()
        assert np.array_equal(counts, part["count"])
        assert np.array_equal(edges, [*part["bin_left"], part["bin_right"].iloc[-1]])
        assert axis.get_yscale() == "symlog"
        assert axis.get_ylim()[1] > frame["count"].max()
    assert figure.axes[4].get_ylabel() == "rank1/linear@4u\nelements per bin"
    assert figure.axes[7].get_xlabel() == "log10 |decoded x|"


@pytest.mark.parametrize(
    ("zeros", "note"),
    [(0, ""), (600, "20.0% exactly 0"), (1, "< 0.1% exactly 0"), (10**7, "> 99.9% exactly 0")],
)
def test_histogram_writes_the_share_of_zeros(zeros: int, note: str) -> None:
    axis = draw("histogram", FRAMES["histogram"].assign(zeros=zeros)).axes[0]
    assert axis.get_title("right") == note


def test_histogram_of_nothing_but_zeros_is_drawn() -> None:
    frame = FRAMES["histogram"].assign(count=0, zeros=5)
    figure = draw("histogram", frame[frame["panel"] != "quantized"])
    figure.draw_without_rendering()
    assert figure.axes[0].get_title("right") == "100.0% exactly 0"
    assert not figure.axes[2].patches


# inverse_sqrt


def test_inverse_sqrt_marks_the_collapse() -> None:
    frame = FRAMES["inverse_sqrt"]
    figure = draw("inverse_sqrt")
    for axis, (name, part) in zip(figure.axes, frame.groupby("quantizer", sort=False), strict=True):
        assert axis.get_title("left") == name
        assert axis.get_yscale() == "log"
        assert np.array_equal(axis.patches[0].get_data().values, part["share"])
    without, collapsed, also_without = ([t.get_text() for t in a.texts] for a in figure.axes)
    assert without == also_without == []
    assert collapsed == ["30% of the non-zero values\ndecode to 0: h = $10^6$"]
    spike = figure.axes[1].patches[1].get_data()
    assert list(spike.values) == [0.3]
    assert spike.edges[0] < 6 <= spike.edges[1]
    assert [len(axis.patches) for axis in figure.axes] == [1, 2, 1]


def test_inverse_sqrt_does_not_round_a_small_collapse_away() -> None:
    frame = FRAMES["inverse_sqrt"].assign(zero_share=3e-5)
    axis = draw("inverse_sqrt", frame).axes[1]
    assert axis.texts[0].get_text().startswith("0.003% of")
    assert list(axis.patches[1].get_data().values) == [3e-5]  # not the full bin


# outliers


def test_outliers_shows_every_cell_where_it_lies() -> None:
    frame = FRAMES["outliers"]
    figure = draw("outliers")
    panels = [axis for axis in figure.axes if axis.images]
    for axis, (name, part) in zip(panels, frame.groupby("tensor", sort=False), strict=True):
        assert axis.get_title() == name
        image = axis.images[0]
        for cell in part.itertuples():
            assert image.get_array()[cell.row // 2, cell.col // 3] == cell.magnitude
        assert image.get_extent() == [0, 59, 24, 0]
        assert isinstance(image.norm, LogNorm)
        assert image.norm.vmin == 1
    bars = [axis.get_ylabel() for axis in figure.axes if not axis.images]
    assert bars == ["", "|x| / median |x|"]


def test_outliers_that_are_compared_have_the_same_colours() -> None:
    frame = FRAMES["outliers"]
    far = frame["tensor"] == frame["tensor"].iloc[-1]
    frame = frame.assign(magnitude=frame["magnitude"].where(~far, 1e6))
    for one_scale, tops in ((False, 2), (True, 1)):
        figure = figures.outliers(frame, one_scale=one_scale)
        ends = [axis.images[0].norm.vmax for axis in figure.axes if axis.images]
        assert (len(set(ends)), max(ends)) == (tops, 1e6)
    figure = figures.outliers(frame.assign(magnitude=frame["magnitude"].where(~far, np.inf)))
    assert [axis.images[0].norm.vmax for axis in figure.axes if axis.images][-1] == 10


def test_outliers_keep_the_whole_of_a_long_name() -> None:
    long = "model.decoder.layers.11.self_attn.q_proj.weight: exp_avg_sq"
    title = draw("outliers", FRAMES["outliers"].assign(tensor=long).drop_duplicates(
        ["row", "col"])).axes[0].get_title()  # fmt: skip
    assert title.replace("\n", "").replace(" ", "") == long.replace(" ", "")
    assert max(map(len, title.split("\n"))) <= 36


def test_eight_outliers_fit() -> None:
    figure = draw("outliers", synthetic.outliers(8))
    assert len([axis for axis in shown(figure) if axis.images]) == 8


# pareto


def test_pareto_draws_points_frontier_and_limits() -> None:
    frame = FRAMES["pareto"]
    axis = draw("pareto").axes[0]
    assert axis.get_yscale() == "log"
    assert axis.get_ylabel() == "relative squared error"
    points = {c.get_label(): c.get_offsets() for c in axis.collections}
    assert list(points) == ["DE", "linear", "tree"]
    for name, offsets in points.items():
        part = frame.loc[frame["map"] == name, ["bits_per_element", "error"]]
        assert np.array_equal(offsets, part)
    lines = {line.get_label(): line for line in axis.lines}
    assert list(lines) == [
        "Pareto frontier", "Lloyd-Max limit (tensor)", "Lloyd-Max limit (B128)",
    ]  # fmt: skip
    frontier = frame[frame["on_frontier"]].sort_values("bits_per_element")
    assert np.array_equal(lines["Pareto frontier"].get_ydata(), frontier["error"])
    assert lines["Pareto frontier"].get_drawstyle() == "steps-post"
    limit = frame[frame["is_limit"] & (frame["normalizer"] == "B128")]
    assert np.array_equal(lines["Lloyd-Max limit (B128)"].get_xdata(), limit["bits_per_element"])
    assert np.array_equal(lines["Lloyd-Max limit (B128)"].get_ydata(), limit["error"])


def test_pareto_names_the_frontier() -> None:
    frame = FRAMES["pareto"]
    figure = draw("pareto")
    frontier = frame[frame["on_frontier"]].sort_values("bits_per_element")
    notes = [text for text in figure.axes[0].texts if isinstance(text, Annotation)]
    assert [note.get_text() for note in notes] == [str(n + 1) for n in range(len(frontier))]
    assert [note.xy for note in notes] == list(
        zip(frontier["bits_per_element"], frontier["error"], strict=True)
    )
    names = [text.get_text() for text in figure.legends[-1].get_texts()]
    assert names == [f"{n}  {name}" for n, name in enumerate(frontier["quantizer"], 1)]


def test_pareto_without_frontier_or_limit_is_drawn() -> None:
    frame = FRAMES["pareto"]
    bare = frame[~frame["is_limit"]].assign(on_frontier=False)
    assert not draw("pareto", bare).axes[0].lines
    exact = frame.assign(error=frame["error"].where(frame["map"] != "DE", 0.0))
    draw("pareto", exact).draw_without_rendering()


# loss_curves


def test_loss_curves_draw_each_seed() -> None:
    frame = FRAMES["loss_curves"]
    figure = draw("loss_curves")
    assert len(figure.axes) == 2
    runs = list(frame["run"].unique())
    assert legend(figure) == runs
    for axis, split in zip(figure.axes, ["train", "val"], strict=True):
        keys = [(run, seed) for run in runs for seed in (0, 1)]
        for line, (run, seed) in zip(axis.lines, keys, strict=True):
            chosen = (frame["run"] == run) & (frame["seed"] == seed) & (frame["split"] == split)
            part = frame[chosen]
            assert np.array_equal(line.get_xdata(), part["step"])
            assert np.array_equal(line.get_ydata(), part["loss"])
    styles = {(line.get_color(), line.get_linestyle()) for line in figure.axes[0].lines}
    assert len(styles) == 3


def test_loss_curves_draw_the_difference_to_the_first_run() -> None:
    frame = FRAMES["loss_curves"].copy()
    frame["difference"] = frame["loss"] - 1
    figure = draw("loss_curves", frame)
    assert len(figure.axes) == 3
    *lines, zero = figure.axes[2].lines
    assert list(zero.get_ydata()) == [0, 0]
    assert len(lines) == 4
    part = frame.query("run == '8-bit AdamW' and seed == 0 and split == 'val'")
    assert np.array_equal(lines[0].get_ydata(), part["difference"])
    label = "validation loss minus that of\n32-bit AdamW (nats)"
    assert figure.axes[2].get_ylabel() == label


def test_loss_curves_draw_the_smoothed_loss_over_the_raw_loss() -> None:
    frame = FRAMES["loss_curves"].copy()
    frame["smoothed"] = frame["loss"] + 0.5
    raw, smoothed, *_ = draw("loss_curves", frame).axes[0].lines
    assert np.array_equal(smoothed.get_ydata(), raw.get_ydata() + 0.5)
    assert raw.get_alpha() < 0.5
    assert smoothed.get_alpha() is None


def test_loss_curves_of_three_seeds_are_a_mean_in_a_band() -> None:
    frame = FRAMES["loss_curves"]
    more = frame[frame["seed"] == 0].assign(seed=2, loss=lambda rows: rows["loss"] + 0.1)
    figure = draw("loss_curves", pd.concat([frame, more], ignore_index=True))
    for axis, split in zip(figure.axes, ["train", "val"], strict=True):
        assert len(axis.lines) == len(axis.collections) == 3
        part = frame[(frame["run"] == "32-bit AdamW") & (frame["split"] == split)]
        lowest = part[part["seed"] == 0]["loss"].to_numpy()
        assert np.allclose(axis.lines[0].get_ydata(), lowest + (0.02 + 0.1) / 3)
        band = axis.collections[0].get_paths()[0].vertices[:, 1]
        assert np.isclose(band.min(), lowest.min())
        assert np.isclose(band.max(), lowest.max() + 0.1)


def test_a_band_is_of_the_smoothed_curve() -> None:
    frame = FRAMES["loss_curves"]
    more = frame[frame["seed"] == 0].assign(seed=2)
    frames = pd.concat([frame, more], ignore_index=True)
    plain = draw("loss_curves", frames).axes[0].lines
    lines = draw("loss_curves", frames.assign(smoothed=frames["loss"] + 0.5)).axes[0].lines
    assert np.allclose(lines[0].get_ydata(), plain[0].get_ydata() + 0.5)
    assert len(lines) == len(plain)


def test_loss_curves_name_the_unit() -> None:
    frame = FRAMES["loss_curves"]
    assert draw("loss_curves").axes[0].get_ylabel() == "training loss (nats)"
    with_unit = frame.assign(unit="nats per byte")
    assert draw("loss_curves", with_unit).axes[1].get_ylabel() == "validation loss (nats per byte)"


def test_loss_curves_refuse_other_splits() -> None:
    with pytest.raises(BadValueError) as caught:
        draw("loss_curves", FRAMES["loss_curves"].replace("val", "test"))
    assert str(caught.value) == "frame has split='test'; a split must be 'train' or 'val'"


# update_error


def test_update_error_has_a_line_a_pair_in_the_frames_order() -> None:
    frame = FRAMES["update_error"]
    figure = draw("update_error")
    left, right = figure.axes
    assert [t.get_text() for t in left.get_yticklabels()] == list(frame["quantizer"])
    assert list(left.get_yticks()) == [2, 1, 0]
    assert legend(figure) == ["median", "mean", "99th percentile", "largest"]
    assert [list(line.get_xdata()) for line in left.lines] == [list(frame["mean_abs_error"])]
    for line, name in zip(right.lines, ["median", "mean", "p99", "max"], strict=True):
        assert np.array_equal(line.get_xdata(), frame[f"{name}_rel_error"])
        assert list(line.get_ydata()) == [2, 1, 0]
    assert left.get_xscale() == right.get_xscale() == "log"
    spans = [collection.get_segments() for collection in right.collections]
    assert spans[0][2][:, 0].tolist() == [250.0, 4000.0]
    assert spans[1][2][:, 0].tolist() == [4000.0, 35000.0]


def test_update_error_draws_the_available_absolute_errors() -> None:
    frame = FRAMES["update_error"]
    more = frame.assign(median_abs_error=1.0, p99_abs_error=2.0, max_abs_error=3.0)
    left = draw("update_error", more).axes[0]
    assert [line.get_xdata()[0] for line in left.lines] == [1.0, 2e-3, 2.0, 3.0]


# replay


REPLAYED = {
    "replay": (
        (["step_cost"], 1),
        (["update_gain"], 1),
        (["update_noise"], 1),
        (["largest_update"], 1),
        (["stalled_share_first", "stalled_share_second"], 100),
    ),
}
"""Columns of each panel of the figures of replays, and their factors."""
EDGES = {
    "step_cost": (-1e-4, 10),
    "update_gain": (0, 1.5),
}
"""Limits of a measure in the figure; values beyond are drawn at the edge."""


@pytest.mark.parametrize("name", REPLAYED)
def test_replays_show_each_pair_on_its_line(name: str) -> None:
    frame = FRAMES[name]
    panels = draw(name).axes
    labels = [label.get_text() for label in panels[0].get_yticklabels()]
    assert labels == frame["quantizer"].tolist()
    assert panels[0].get_ylim()[0] > panels[0].get_ylim()[1]  # the first at the top
    frame = frame.replace(np.inf, np.nan)
    for column, (low, high) in EDGES.items():
        if column in frame:
            frame[column] = frame[column].clip(low, high)
    for axis, (columns, unit) in zip(panels, REPLAYED[name], strict=True):
        drawn = [line for line in axis.lines if len(line.get_xdata()) == len(frame)]
        assert len(drawn) == len(columns)
        for line, column in zip(drawn, columns, strict=True):
            np.testing.assert_allclose(line.get_xdata(), unit * frame[column])
            np.testing.assert_array_equal(line.get_ydata(), range(len(frame)))
            low, high = axis.get_xlim()
            assert ((frame[column].dropna() * unit).between(low, high)).all()
        assert len(drawn) == 1 or legend(draw(name)) == ["first moment", "second moment"]


# Names of any kind


@pytest.mark.parametrize("name", NAMES)
def test_names_are_literal_text(name: str, tmp_path: Path) -> None:
    checks.names_are_literal_text(name, getattr(figures, name), SUBJECTS[name], tmp_path)


def test_long_names_that_differ_in_their_middle_stay_apart() -> None:
    frame = pd.DataFrame({"run": ["a" * 200 + "b" + "a" * 200, "a" * 200 + "c" + "a" * 200]})
    first, second = as_text(frame)["run"]
    assert (first, second) == ("a" * 58 + "..." + "a" * 58, "a" * 58 + "..." + "a" * 58 + " (2)")


# Narrow screens, ticks, names


@pytest.mark.parametrize(
    "name", sorted({draw.__name__ for picture, draw in figures.pictures() if picture.stacks})
)
def test_panels_stack(name: str) -> None:
    stacked = getattr(figures, name)(FRAMES[name], stacked=True)
    assert {axis.get_subplotspec().colspan.start for axis in stacked.axes[:2]} == {0}
    assert stacked.get_figwidth() < 5
    checks.text_is_legible_and_inside(stacked)


@pytest.mark.parametrize(
    "span", [(1, 10), (1, 56), (0.2, 0.9), (3, 3.9), (1e-9, 1e6), (4e-7, 5e-6), (0.5, 2)]
)
def test_ticks_of_colour_bars_do_not_overlap(span: tuple[float, float]) -> None:
    low, high = span
    frame = FRAMES["code_pairs"].copy()
    steps = np.geomspace(low, high, len(frame))
    figure = fresh("code_pairs", frame.assign(use=steps, mean_abs_error=steps))
    figure.draw_without_rendering()
    for bar in figure.axes[6:8]:
        ticks = [tick.label1 for tick in bar.xaxis.get_major_ticks()]
        boxes = sorted((t.get_window_extent().x0, t.get_window_extent().x1) for t in ticks)
        assert len(boxes) >= 2
        assert all(end < begin for (_, end), (begin, _) in itertools.pairwise(boxes))
        assert not [t for t in bar.xaxis.get_minor_ticks() if t.label1.get_text()]


def test_a_histogram_names_its_tensor() -> None:
    frame = FRAMES["histogram"].assign(parameter="tokens.weight", state="exp_avg_sq")
    assert draw("histogram", frame).get_suptitle() == "tokens.weight: exp_avg_sq"


def test_update_errors_name_presets() -> None:
    frame = FRAMES["update_error"].assign(preset=["paper-4bit", "", ""])
    labels = [label.get_text() for label in draw("update_error", frame).axes[0].get_yticklabels()]
    assert labels[:2] == [f"{PAIR} (paper-4bit)", OTHER]


def test_the_figure_of_replays_has_the_bounds_of_verdicts() -> None:
    assert replay_figure.LIMITS == (CLEAN, UNPROVEN, UNSAFE)
    cost = draw("replay").axes[0]
    assert [text.get_text() for text in cost.texts] == list(LEVELS)
    assert cost.get_xlim()[0] < CLEAN / 10


def test_the_figure_of_a_monitor_has_its_limits() -> None:
    assert asdict(Thresholds()) == monitor_figure.LIMITS
    panels = draw("monitor").axes
    frame = FRAMES["monitor"]
    line = panels[0].lines[0]
    rows = frame[frame["state"] == "exp_avg"].groupby("step")["sqnr_db"].median()
    np.testing.assert_allclose(line.get_ydata(), rows)
    assert panels[0].get_title(loc="left") == "worst at the end: layers.0.weight, 0.3"
    assert panels[1].get_title(loc="left") == "worst at the end: layers.2.weight, 0.5"
    with pytest.raises(BadValueError, match="frame has text in the column sqnr_db"):
        figures.monitor(frame.assign(sqnr_db="x"))


def test_ticks_of_a_narrow_range_are_its_ends() -> None:
    assert log_ticks(1.23, 1.24) == [1.23, 1.24]


def test_texts_at_any_depth_are_literal() -> None:
    assert as_text({"$a": ["$b", ("c", 1)]}) == {r"\$a": [r"\$b", ("c", 1)]}
    column = pd.Series(["$a", "b", "$a"], dtype="category")
    shown = as_text(pd.DataFrame({"x": column}))
    assert shown["x"].tolist() == [r"\$a", "b", r"\$a"]
