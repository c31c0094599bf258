"""``qmaps plot``: one figure by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qmaps import figures, lab
from qmaps.errors import CaptureError
from qmaps.lab.pictures import Plot, of_run, plots
from qmaps.storage.files import write_frame
from tests.figures.synthetic import FRAMES

pytestmark = pytest.mark.slow

PICTURES = {picture.name: (picture, draw) for picture, draw in figures.pictures()}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    (folder / "frames").mkdir()
    write_frame(folder / "frames" / "loss_curves.parquet", FRAMES["loss_curves"])
    return folder


def test_every_figure_is_listed(call) -> None:
    for command in ("plot", "plot replay --list"):
        code, out, _ = call(command)
        assert code == 0
        assert all(name in out for name in plots())
    results = {plot["name"]: plot for plot in json.loads(call("plot --json")[1])}
    assert set(PICTURES) <= set(results)
    assert {plot.draw for plot in plots().values()} == set(figures.FIGURES.values())
    assert results["pareto_exp_avg"]["title"] == PICTURES["pareto_exp_avg"][0].title
    assert results["pareto_exp_avg"]["frame"] == "sweep/sweep.parquet"
    assert results["replay"]["frame"] == "replay/summary.parquet"


def test_plot_draws_the_figures_of_a_run(call, run: Path, tmp_path: Path) -> None:
    code, out, _ = call(f"plot loss_curves --run {run} --out {tmp_path}/new/l.png")
    assert (code, out) == (0, f"{tmp_path}/new/l.png\n")
    (drawn,) = lab.draw(run)
    assert (tmp_path / "new" / "l.png").read_bytes() == drawn.read_bytes()
    (run / "replay").mkdir()
    write_frame(run / "replay" / "summary.parquet", FRAMES["replay"])
    code, out, _ = call(f"plot replay --run {run} --out {tmp_path}/r.pdf --json")
    assert json.loads(out) == {"figure": "replay", "out": f"{tmp_path}/r.pdf"}
    assert (tmp_path / "r.pdf").read_bytes().startswith(b"%PDF")


def test_a_figure_of_another_package_without_a_file_of_its_own(tmp_path: Path) -> None:
    dots = Plot("dots", "Dots", "", "", figures.pareto)
    with pytest.raises(CaptureError) as caught:
        of_run(dots, tmp_path)
    assert str(caught.value) == f"run='{tmp_path}' does not have a frame for dots"


BAD = {
    "plot pareto --run .": "figure='pareto' is not a figure; qmaps plot --list shows all "
    f"{len(plots())}; nearest match: pareto_exp_avg",
    "plot replay": "figure='replay' needs --run, a run folder with its frame",
    "plot replay --run . --out x.jpg": "out='x.jpg' must end in .png, .svg, .pdf",
    "plot replay --run .": "run='.' does not have the frame of replay (replay/summary.parquet)",
    "plot outliers --run .": "run='.' does not have the frame of outliers "
    "(frames/outliers.parquet)",
    "plot replay --run . --out new/x.png": "run='.' does not have the frame of replay "
    "(replay/summary.parquet)",
}


@pytest.mark.parametrize("command", BAD)
def test_bad_input_writes_nothing(command: str, call, place: Path) -> None:
    before = sorted(place.iterdir())
    assert call(command) == (2, "", f"error: {BAD[command]}\n")
    assert sorted(place.iterdir()) == before


def test_a_monitors_file_is_drawn(call, place: Path, tmp_path: Path) -> None:
    frame = FRAMES["monitor"]
    frame.to_csv(place / "monitor.csv", index=False)
    assert call(f"plot monitor.csv --out {tmp_path}/m.png") == (0, f"{tmp_path}/m.png\n", "")
    (tmp_path / "run").mkdir()
    frame.to_csv(tmp_path / "run" / "monitor.csv", index=False)
    assert call(f"plot monitor --run {tmp_path}/run --out {tmp_path}/n.png")[0] == 0
    assert (tmp_path / "m.png").read_bytes() == (tmp_path / "n.png").read_bytes()
    (place / "monitor.csv").unlink()


BAD_FILES = {
    "": "'m.csv' is no CSV file (No columns to parse from file)",
    "\xff\xfe": "'m.csv' is no CSV file ('utf-8' codec can't decode byte 0xff in position 0: "
    "invalid start byte)",
    "step,parameter\n1,a\n": "'m.csv' is no file of a monitor: frame lacks state, quantizer, ",
    FRAMES["monitor"].head(0).to_csv(index=False): "'m.csv' is no file of a monitor: frame has no "
    "rows; ",
    FRAMES["monitor"].assign(sqnr_db="high").to_csv(index=False): "'m.csv' is no file of a "
    "monitor: frame has text in the column sqnr_db; monitor needs numbers",
}


@pytest.mark.parametrize("text", BAD_FILES, ids=range(len(BAD_FILES)))
def test_a_file_that_is_no_monitors_is_one_line(text: str, call, place: Path) -> None:
    (place / "m.csv").write_bytes(text.encode("latin-1"))
    code, out, err = call("plot m.csv")
    (place / "m.csv").unlink()
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: {BAD_FILES[text]}")
    assert call("plot m.csv")[2] == "error: 'm.csv' cannot be read (No such file or directory)\n"
    assert not (place / "m.png").exists()
