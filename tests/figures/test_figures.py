"""Figures draw what their frames hold, and say what frames lack."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.cbook import is_math_text
from matplotlib.colors import LogNorm, to_hex
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from qmaps import figures
from qmaps.errors import BadValueError, OutputError
from qmaps.figures._text import as_text
from tests.figures import synthetic
from tests.figures.synthetic import FRAMES, OTHER, PAIR, SUBJECTS

NAMES = sorted(FRAMES)
NEEDED = {name: each.needed for name, each in SUBJECTS.items()}
PANELS = {name: each.panels for name, each in SUBJECTS.items()}


def fresh(name: str, frame: pd.DataFrame | None = None) -> Figure:
    return getattr(figures, name)(FRAMES[name] if frame is None else frame)


once = functools.cache(fresh)


def draw(name: str, frame: pd.DataFrame | None = None) -> Figure:
    """For tests that only look."""
    return once(name) if frame is None else fresh(name, frame)


def shown(figure: Figure) -> list[Axes]:
    return [axis for axis in figure.axes if axis.get_visible()]


def legend(figure: Figure, which: int = 0) -> list[str]:
    return [text.get_text() for text in figure.legends[which].get_texts()]


def test_every_figure_is_tested() -> None:
    assert set(NAMES) == set(figures.FIGURES)
    assert set(figures.__all__) >= {"save", *NAMES}


# What holds for all


@pytest.mark.parametrize("name", NAMES)
def test_these_columns_are_enough(name: str) -> None:
    figure = draw(name, FRAMES[name][NEEDED[name].split()])
    assert isinstance(figure, Figure)
    assert len(shown(figure)) == PANELS[name]


@pytest.mark.parametrize("name", NAMES)
def test_each_missing_column_is_named(name: str) -> None:
    needed = NEEDED[name].split()
    for column in needed:
        with pytest.raises(BadValueError) as caught:
            draw(name, FRAMES[name].drop(columns=column))
        assert str(caught.value) == (
            f"frame lacks {column}; {name} needs the columns {', '.join(needed)}"
        )
    with pytest.raises(BadValueError) as caught:
        draw(name, pd.DataFrame())
    assert str(caught.value) == (
        f"frame lacks {', '.join(needed)}; {name} needs the columns {', '.join(needed)}"
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_frame_without_rows_is_refused(name: str) -> None:
    with pytest.raises(BadValueError) as caught:
        draw(name, FRAMES[name].iloc[:0])
    assert str(caught.value) == f"frame has no rows; {name} needs at least one"


@pytest.mark.parametrize("name", NAMES)
def test_the_frame_is_left_alone(name: str) -> None:
    before = FRAMES[name].copy()
    fresh(name)
    pd.testing.assert_frame_equal(FRAMES[name], before)


@pytest.mark.parametrize("name", NAMES)
def test_text_is_there_legible_and_inside(name: str) -> None:
    figure = draw(name)
    figure.draw_without_rendering()
    page = figure.bbox.padded(1)
    found = [figure.get_supxlabel(), figure.get_supylabel()]
    for axis in shown(figure):
        found += [axis.get_xlabel(), axis.get_ylabel()]
        labels = [
            *axis.get_xticklabels(),
            *axis.get_yticklabels(),
            axis.xaxis.label,
            axis.yaxis.label,
        ]
        for text in (*labels, axis.title, *axis.texts, *figure.texts):
            if text.get_text() and text.get_visible():
                assert text.get_fontsize() >= 9
        for text in (axis.xaxis.label, axis.yaxis.label, axis.title):
            box = text.get_window_extent()
            if text.get_text():
                assert page.x0 <= box.x0 < box.x1 <= page.x1
                assert page.y0 <= box.y0 < box.y1 <= page.y1
    assert len([label for label in found if label]) >= 2


@pytest.mark.parametrize("name", NAMES)
def test_equal_figures_give_equal_bytes_whatever_the_users_settings(
    name: str, tmp_path: Path
) -> None:
    # What makes SVG differ from run to run lies in `save`; two figures show it, one with an image.
    kinds = {"outliers": ("png", "svg"), "pareto": ("png", "svg", "pdf")}.get(name, ("png",))
    figure = fresh(name)
    for kind in kinds:
        figures.save(figure, tmp_path / f"a.{kind}", dpi=50)
    users = {"axes.grid": False, "font.size": 21, "lines.linewidth": 7, "axes.facecolor": "red",
             "savefig.bbox": "tight", "figure.facecolor": "green", "svg.hashsalt": "x"}  # fmt: skip
    with mpl.rc_context(users):
        figure = fresh(name)
        for kind in kinds:
            figures.save(figure, tmp_path / f"b.{kind}", dpi=50)
        assert {key: mpl.rcParams[key] for key in users} == users
    for kind, start in zip(kinds, (b"\x89PNG", b"<?xml", b"%PDF"), strict=False):
        written = (tmp_path / f"a.{kind}").read_bytes()
        assert written.startswith(start)
        assert written == (tmp_path / f"b.{kind}").read_bytes()
        assert not re.search(rb"<dc:date>|20\d\d-\d\d-\d\dT", written)
    assert len(list(tmp_path.iterdir())) == 2 * len(kinds)


@pytest.mark.parametrize("name", ["code_pairs", "first_code_error"])
def test_a_figure_gives_the_same_file_twice(name: str, tmp_path: Path) -> None:
    figure = fresh(name)
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
        list(pool.map(lambda job: figures.save(fresh(job[0]), job[1], dpi=40),
                      zip(names, paths, strict=True)))  # fmt: skip
    for one, other in zip(paths[:2], paths[2:], strict=True):
        assert one.read_bytes() == other.read_bytes()


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


def test_save_says_what_is_wrong(tmp_path: Path) -> None:
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
        one, other = meshes[column], meshes[3 + column]
        assert isinstance(one.norm, LogNorm)
        assert (one.norm.vmin, one.norm.vmax) == (other.norm.vmin, other.norm.vmax)
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


def test_code_pairs_draws_the_quantities_asked_for() -> None:
    figure = figures.code_pairs(FRAMES["code_pairs"], quantities=["rel", "use"])
    assert [axis.get_title() for axis in figure.axes[:2]] == ["relative error", "use"]
    assert [axis.get_xlabel() for axis in figure.axes[4:]] == [
        "mean |Δu| / |u| (fraction)", "share of all elements (fraction)",
    ]  # fmt: skip
    for wrong in (["use", "x"], []):
        with pytest.raises(BadValueError) as caught:
            figures.code_pairs(FRAMES["code_pairs"], quantities=wrong)
        assert str(caught.value) == (
            f"quantities={wrong!r} must name one or more of 'use', 'abs', 'rel'"
        )


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
    one, other = (axis.lines[0] for axis in figure.axes[:2])
    assert one.get_color() != other.get_color()
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
    assert list(axis.patches[1].get_data().values) == [3e-5]  # not the whole of that bin


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


def test_pareto_names_the_frontier_and_no_name_covers_another_or_a_point() -> None:
    frame = FRAMES["pareto"]
    figure = draw("pareto")
    figure.draw_without_rendering()
    axis = figure.axes[0]
    notes = [text for text in axis.texts if isinstance(text, Annotation)]
    assert sorted(note.get_text() for note in notes) == sorted(
        frame.loc[frame["on_frontier"], "quantizer"]
    )
    for note in notes:
        row = frame[frame["quantizer"] == note.get_text()].iloc[0]
        assert note.xy == (row["bits_per_element"], row["error"])
    extents = [Text.get_window_extent(note) for note in notes]
    for one, other in combinations(extents, 2):
        assert not one.overlaps(other)
    inside = axis.get_window_extent()
    drawn = frame[~frame["is_limit"]]
    dots = axis.transData.transform(drawn[["bits_per_element", "error"]].to_numpy())
    for box in extents:
        assert inside.x0 <= box.x0 < box.x1 <= inside.x1
        assert inside.y0 <= box.y0 < box.y1 <= inside.y1
        assert not any(box.contains(*dot) for dot in dots)


def test_names_of_a_crowded_frontier_do_not_overlap() -> None:
    frame = FRAMES["pareto"]
    crowd = frame[frame["map"] == "DE"].assign(
        bits_per_element=4 + np.arange(12) / 100, error=1 - np.arange(12) / 100
    )
    figure = draw("pareto", pd.concat([frame[frame["map"] == "linear"], crowd]))
    figure.draw_without_rendering()
    notes = [text for text in figure.axes[0].texts if isinstance(text, Annotation)]
    assert len(notes) >= 10
    for one, other in combinations([Text.get_window_extent(note) for note in notes], 2):
        assert not one.overlaps(other)


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


def test_loss_curves_draw_what_is_smoothed_over_the_raw_loss() -> None:
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


def test_a_band_is_of_what_is_smoothed() -> None:
    frame = FRAMES["loss_curves"]
    more = frame[frame["seed"] == 0].assign(seed=2)
    whole = pd.concat([frame, more], ignore_index=True)
    plain = draw("loss_curves", whole).axes[0].lines
    lines = draw("loss_curves", whole.assign(smoothed=whole["loss"] + 0.5)).axes[0].lines
    assert np.allclose(lines[0].get_ydata(), plain[0].get_ydata() + 0.5)
    assert len(lines) == len(plain)


def test_loss_curves_name_the_unit() -> None:
    frame = FRAMES["loss_curves"]
    assert draw("loss_curves").axes[0].get_ylabel() == "training loss (nats)"
    with_unit = frame.assign(unit="nats per byte")
    assert draw("loss_curves", with_unit).axes[1].get_ylabel() == "validation loss (nats per byte)"
    figure = figures.loss_curves(with_unit, unit="bits")
    assert figure.axes[0].get_ylabel() == "training loss (bits)"


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


def test_update_error_draws_what_absolute_errors_there_are() -> None:
    frame = FRAMES["update_error"]
    more = frame.assign(median_abs_error=1.0, p99_abs_error=2.0, max_abs_error=3.0)
    left = draw("update_error", more).axes[0]
    assert [line.get_xdata()[0] for line in left.lines] == [1.0, 2e-3, 2.0, 3.0]


def test_update_error_colours_groups() -> None:
    frame = FRAMES["update_error"].assign(group=["a", "b", "a"])
    figure = draw("update_error", frame.set_index(pd.Index([9, 4, 7])))
    assert legend(figure, 1) == ["a", "b"]
    means = [line for line in figure.axes[1].lines if line.get_marker() == "D"]
    assert [list(line.get_ydata()) for line in means] == [[2, 0], [1]]
    assert means[0].get_color() != means[1].get_color()


# replay


REPLAYED = {
    "replay": (
        (["step_cost"], 1),
        (["update_gain"], 1),
        (["update_noise"], 1),
        (["largest_update"], 1),
        (["stalled_share_first", "stalled_share_second"], 100),
    ),
    "replay_states": (
        (["gain_first", "gain_second"], 1),
        (["lag_first", "lag_second"], 1),
        (["rerounded_share_first", "rerounded_share_second"], 100),
    ),
    "replay_errors": (
        (["bias_first", "bias_second"], 1),
        (["noise_first", "noise_second"], 1),
        (["amplification_first", "amplification_second"], 1),
    ),
    "replay_updates": (
        (["progress"], 1),
        (["displacement_error"], 1),
        (["displacement_gain"], 1),
        (["explosion_share"], 100),
        (["zero_point_share"], 100),
    ),
}
"""The columns of each panel of the figures of replays, and what they are multiplied by."""
EDGES = {
    "step_cost": (-0.1, 10),
    "update_gain": (0, 1.5),
    "gain_first": (0, 1.5),
    "gain_second": (0, 1.5),
    "progress": (-0.5, 2),
    "displacement_gain": (-0.5, 2),
    "displacement_error": (0, 100),
}
"""Between which values a measure is drawn; what is beyond stands at the edge."""


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


# stability


def test_stability_tells_stable_runs_from_others() -> None:
    frame = FRAMES["stability"]
    runs, shares = draw("stability").axes
    assert [label.get_text() for label in runs.get_yticklabels()] == list(frame["setting"].unique())
    assert [bar.get_width() for bar in shares.patches] == [0, 30, 100]
    stable, unstable = runs.lines[1:3]
    part = frame[frame["setting"] == "B2048/DE@4u"]
    assert list(stable.get_xdata()) == list(part["loss"][~part["unstable"]])
    # Beyond the axis, which ends where stable runs do, and NaN: both at its edge.
    assert list(unstable.get_xdata()) == [runs.get_xlim()[1]] * 3
    assert 2.0 < runs.get_xlim()[1] < 2.2
    heights = np.concatenate([stable.get_ydata(), unstable.get_ydata()])
    assert len(set(heights)) == 10
    assert np.abs(heights - 1).max() <= 0.25


def test_stability_without_a_stable_run() -> None:
    frame = pd.DataFrame({"setting": "a", "loss": [3.0, np.nan], "unstable": True})
    runs, _ = draw("stability", frame).axes
    assert runs.get_xlim() == (2.0, 4.0)
    runs, _ = draw("stability", frame.assign(loss=np.nan)).axes
    assert runs.get_xlim() == (0.0, 1.0)


def test_stability_says_what_settings_are() -> None:
    figure = figures.stability(FRAMES["stability"], unit="bits", label="bits | map")
    assert figure.axes[0].get_xlabel() == "final loss (bits)"
    assert figure.axes[0].get_ylabel() == "bits | map"


# speedup


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


# bin_changes


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


# update_histogram


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


# convergence_bound


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


# sensitivity


def test_sensitivity_joins_means_and_marks_seeds() -> None:
    left, right = draw("sensitivity").axes
    assert (left.get_xlabel(), right.get_xlabel()) == ("lr", "eps")
    assert (left.get_xscale(), right.get_xscale()) == ("linear", "log")
    mean, seeds, other, _ = left.lines
    assert list(mean.get_xdata()) == [1e-3, 2e-3, 4e-3]
    assert np.allclose(mean.get_ydata(), [2.005, 2.105, 2.205])
    assert np.allclose(other.get_ydata(), mean.get_ydata() + 0.02)
    assert np.allclose(sorted(seeds.get_ydata()), [2, 2.01, 2.1, 2.11, 2.2, 2.21])
    assert legend(draw("sensitivity")) == ["32-bit", "8-bit"]


# error_per_decade


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


# error_curves


def test_error_curves_draw_both_errors_of_each_net_in_per_cent() -> None:
    frame = FRAMES["error_curves"]
    figure = draw("error_curves")
    keys = [(panel, split) for panel in ("large", "small") for split in ("train", "test")]
    for axis, (panel, split) in zip(figure.axes, keys, strict=True):
        for line, run in zip(axis.lines, ("32-bit", "8-bit"), strict=True):
            own = frame[(frame["panel"] == panel) & (frame["run"] == run)].sort_values("step")
            assert np.array_equal(line.get_xdata(), own["step"])
            assert np.array_equal(line.get_ydata(), 100 * own[split])
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


# bit_fields


def test_bit_fields_write_each_bit_under_its_field() -> None:
    frame = FRAMES["bit_fields"]
    figure = draw("bit_fields")
    for axis, value in zip(figure.axes, (0.5, 0.01), strict=True):
        assert axis.get_title("left") == f"{value:g}"
        found = [(text.get_text(), text.get_position()) for text in axis.texts]
        for place, name in enumerate(("moving", "fixed")):
            part = frame[(frame["map"] == name) & (frame["value"] == value)]
            here = [(text, x) for text, (x, y) in found if round(y) == place]
            expected = [
                (str(digit), bit) for digit, bit in zip(part["set"], part["bit"], strict=True)
            ]
            middles = part.groupby("field", sort=False)["bit"].mean()
            expected += list(zip(middles.index, middles, strict=True))
            assert here[:-1] == expected
            assert here[-1][0] == f"= {1.1 * value:g}"
    small = draw("bit_fields", frame.replace({"value": {0.01: 0.0000234}}))
    assert small.axes[1].get_title("left") == "0.0000234"
    smaller = draw("bit_fields", frame.replace({"value": {0.01: 1.25e-12}}))
    assert smaller.axes[1].get_title("left") == "1.25e-12"
    faces = {}
    for cell, field in zip(figure.axes[0].patches[:4], frame["field"][:4], strict=True):
        faces[field] = cell.get_facecolor()
    assert len(set(faces.values())) == len(faces) == 3


# Names of any kind


ODD = ["$\\frac{1}$", "$", "$$ \\$ _a^b%{c}#&<d>", "two\nlines\x00\t", "x" * 500, "名前 имя"]
NAMED = ("quantizer", "parameter", "setting", "run", "tensor", "normalizer", "group", "map")


@pytest.mark.parametrize("name", NAMES)
def test_names_are_literal_text_whatever_they_hold(name: str, tmp_path: Path) -> None:
    frame = FRAMES[name].copy()
    columns = [column for column in NAMED if column in frame and frame[column].dtype != float]
    for column in columns:
        known = {text: number for number, text in enumerate(dict.fromkeys(frame[column]))}
        frame[column] = [f"{text} {ODD[known[text] % len(ODD)]}" for text in frame[column]]
    figure = fresh(name, frame)
    figures.save(figure, tmp_path / "odd.svg")
    ElementTree.parse(tmp_path / "odd.svg")
    found = [text.get_text() for text in figure.findobj(Text)]
    odd = [text for text in found if "frac" in text or "lines" in text]
    assert odd or not columns or name in ("convergence_bound",)
    assert not any(map(is_math_text, odd))
    assert not any("two\nlines" in text or "x" * 130 in text for text in found)


def test_long_names_that_differ_in_their_middle_stay_apart() -> None:
    frame = pd.DataFrame({"run": ["a" * 200 + "b" + "a" * 200, "a" * 200 + "c" + "a" * 200]})
    first, second = as_text(frame)["run"]
    assert (first, second) == ("a" * 58 + "..." + "a" * 58, "a" * 58 + "..." + "a" * 58 + " (2)")
