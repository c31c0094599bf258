"""Designs choose what leads least away, measure on what they did not see, and appear whole."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import qmaps
from qmaps import figures
from qmaps.analyze import design
from qmaps.analyze.design import files
from qmaps.analyze.design.candidates import bits_of, designed, known, known_pairs, normalizers
from qmaps.analyze.design.samples import looks
from qmaps.analyze.replay.source import source
from qmaps.capture import CapturedStates
from qmaps.errors import BadTypeError, BadValueError, CaptureError, OutputError
from qmaps.optim import AdamW
from tests.analyze.replay.test_replay import record

SPECS = ["B128/DE@4s + B128/DE-0@4u", "B128/DE@4s+sr + B128/DE-0@4u"]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("recording"), window=24, start=30)


@pytest.fixture(scope="module")
def found(recording: Path) -> design.Design:
    return qmaps.design.run(recording, 4, criterion="displacement_error", steps=48)


def rows(found: design.Design, moment: str = "both") -> pd.DataFrame:
    return found.frame[found.frame["moment"] == moment].set_index("quantizer")


def test_the_winner_is_at_least_as_good_as_the_papers_maps(found: design.Design) -> None:
    table = rows(found)
    chosen = table.loc[found.pair.spec]
    papers = table[~table["designed"]]
    assert set(SPECS) <= set(papers.index)
    assert papers["allowed"].sum() >= 4
    # On gradients that did not choose.
    assert found.held_out
    assert chosen["displacement_error"] < 0.8 * papers["displacement_error"].min()
    assert chosen["net_progress"] > papers.loc[papers["allowed"], "net_progress"].max() - 0.01
    assert chosen["allowed"]
    for moment in ("first", "second"):
        own = rows(found, moment)
        own = own[own["allowed"]]
        best = own.groupby("designed")["displacement_error"].min()
        assert best[True] < best[False]


def test_the_choice_follows_its_rule(found: design.Design) -> None:
    table = rows(found)
    able = table[table["allowed"]]
    equal = able[able["selection_error"] <= 1.05 * able["selection_error"].min()]
    fewest = equal["bits_per_element"].round(2)
    assert fewest[found.pair.spec] == fewest.min()
    assert found.frame["chosen"].sum() == 3
    assert found.frame.loc[0, "quantizer"] == found.pair.spec
    singles = [rows(found, moment).index[0] for moment in ("first", "second")]
    assert singles == [q.spec for q in (found.pair.first, found.pair.second)]


def test_the_frame_is_of_replays_of_the_second_half(recording: Path, found: design.Design) -> None:
    states = qmaps.capture.load(recording)
    books = [q.map for q in found.best] + found.codebooks
    specs = [found.pair.spec, *SPECS]
    for half, column in ((0, "selection_error"), (12, "displacement_error")):
        frame = qmaps.replay.run(states, specs, codebooks=books, skip=half, steps=12, rounds=4)
        summary = qmaps.replay.summarize(frame).set_index("quantizer")
        for spec in specs:
            wanted = summary.loc[spec, "displacement_error"]
            assert rows(found).loc[spec, column] == pytest.approx(wanted, rel=1e-4)
    row, wanted = rows(found).loc[specs[1]], summary.loc[specs[1]]
    for name in ("progress", "net_progress", "explosion_share"):
        assert row[name] == pytest.approx(wanted[name], rel=1e-4)
    # One update of the states that the second half begins with.
    later = source(states, "a", 0, steps=2, share=1.0, seed=0, skip=12)
    assert later is not None
    tensors = {"a": {"exp_avg": later.m, "exp_avg_sq": later.v}}
    single = qmaps.analyze.update_error(tensors, [specs[1]])
    assert row["median_rel_error"] == pytest.approx(single["median_rel_error"].item())
    # The bits of the states, not of the mean with 32 bits.
    assert row["bits_per_element"] == pytest.approx(wanted["bits_per_element"])
    assert rows(found, "first").loc["B128/DE@4s", "bits_per_element"] == 4.25


def test_later_gradients_do_not_choose(
    recording: Path, found: design.Design, tmp_path: Path
) -> None:
    folder = tmp_path / "changed"
    shutil.copytree(recording, folder)
    for path in sorted(folder.glob("gradients-*"))[12:]:
        with safe_open(path, "pt") as file:
            about = {"qmaps_capture": file.metadata()["qmaps_capture"]}
            tensors = {name: 3 * file.get_tensor(name).flip(0) for name in file.keys()}  # noqa: SIM118
        save_file(tensors, path, metadata=about)
    other = qmaps.design.run(folder, 4, criterion="displacement_error", steps=48)
    assert other.pair == found.pair
    first, second = (
        each.frame.sort_values("quantizer", ignore_index=True) for each in (found, other)
    )
    pd.testing.assert_series_equal(first["selection_error"], second["selection_error"])
    assert (first["displacement_error"] != second["displacement_error"]).all()


def test_what_a_design_says_of_itself(found: design.Design) -> None:
    assert (found.gradients, found.step, found.steps, found.elements) == ("recorded", 30, 48, 6144)
    assert found.state_quantizers == {
        "exp_avg": found.pair.first, "exp_avg_sq": found.pair.second,
    }  # fmt: skip
    for q in found.best:
        assert q.spec in set(found.frame.loc[found.frame["designed"], "quantizer"])
    weight = torch.nn.Parameter(torch.ones(80, 80))
    optimizer = AdamW([weight], state_quantizers=found.state_quantizers)
    weight.grad = torch.randn(80, 80)
    optimizer.step()
    assert optimizer.memory().rows[0].quantizer == found.pair.first.spec


def test_equal_calls_give_equal_designs(recording: Path) -> None:
    options = {"steps": 4, "share": 0.4}
    one, other = (qmaps.design.run(recording, (3, 2), **options) for _ in range(2))
    assert one.pair == other.pair
    pd.testing.assert_frame_equal(one.frame, other.frame)
    assert one.elements < 6144
    assert {q.map.bits for q in one.best} == {2, 3}


def test_a_short_window_is_not_halved(tmp_path: Path) -> None:
    short = record(tmp_path, window=9)
    for criterion, column in (
        ("step_cost", "step_cost"),
        ("displacement_error", "displacement_error"),
        ("update_error", "mean_abs_error"),
    ):
        one = qmaps.design.run(short, 2, criterion=criterion, steps=2)
        assert (one.held_out, one.steps, one.criterion) == (False, 9, criterion)
        frame = one.frame
        pd.testing.assert_series_equal(frame["selection_error"], frame[column], check_names=False)


def test_by_default_the_step_cost_decides(recording: Path) -> None:
    one = qmaps.design.run(recording, 4, steps=48)
    assert one.criterion == "step_cost"
    able = rows(one)
    able = able[able["allowed"]]
    # Updates that are too long cost something, too.
    assert (able["step_cost"] > 0).all()
    best = able.groupby("designed")["step_cost"].min()
    assert best[True] < 0.8 * best[False]
    # Of pairs that cost nothing that training shows, the one of fewest bits.
    cheap = able[able["selection_error"] < 0.05]
    assert len(cheap) > 5
    assert able.loc[one.pair.spec, "selection_error"] > 1.05 * cheap["selection_error"].min()
    fewest = cheap["bits_per_element"].round(2)
    assert fewest[one.pair.spec] == fewest.min()


def test_without_gradients_they_are_simulated() -> None:
    torch.manual_seed(0)
    m = 1e-3 * torch.randn(64, 96)
    states = {"w": {"exp_avg": m, "exp_avg_sq": m.square() + 1e-6 * torch.rand(64, 96)}}
    calls: list[tuple[str, int, int, str]] = []
    one = qmaps.design.run(states, 2, steps=6, progress=lambda *call: calls.append(call))
    assert calls[0] == ("compute codebooks", 0, 2, "first")
    assert list(dict.fromkeys(stage for stage, *_ in calls)) == [
        "compute codebooks", "replay moments", "replay pairs", "replay what is held out",
    ]  # fmt: skip
    for stage in ("replay moments", "replay what is held out"):
        assert [call[1:] for call in calls if call[0] == stage] == [(0, 1, "w"), (1, 1, "")]
    assert (one.gradients, one.held_out, one.steps) == ("simulated", True, 6)
    assert (one.frame["selection_error"] != one.frame["displacement_error"]).any()


# Candidates


def test_blocks_fit_into_the_bits() -> None:
    shapes = [(512, 512), (64, 64)]
    for most, specs in (
        (4.25, ["B128", "B256", "B32x8", "B64x8", "rank1"]),
        (4.5, ["B64", "B128", "B16x8", "B32x8", "rank1"]),
        (4.02, ["B2048", "B4096", "B512x8", "B1024x8"]),
    ):
        found, least = normalizers(1, 4, shapes, most)
        assert [n.spec for n in found] == specs
        assert 4 < least < 4.01
    assert normalizers(0, 4, shapes, 4.0)[0] == []
    assert "rank1" not in [n.spec for n in normalizers(0, 4, shapes, 4.5)[0]]
    assert bits_of(qmaps.quantizer("B128/DE@4s"), [(256, 256)]) == 4.25


@pytest.mark.parametrize("bits", range(2, 9))
def test_known_specs_are_valid_at_every_width(bits: int) -> None:
    for moment in (0, 1):
        specs = known(moment, bits)
        assert len(specs) == len(set(specs)) > 6
        for spec in specs:
            q = qmaps.quantizer(spec)
            assert (q.map.bits, q.map.signed) == (bits, moment == 0)
    for pair in known_pairs((bits, 4)):
        assert " + " in pair


def test_second_moments_under_8_bit_scales_are_rounded_at_random(recording: Path) -> None:
    states = qmaps.capture.load(recording)
    one = source(states, "a", 0, steps=12, share=1.0, seed=0)
    assert one is not None
    norms = [qmaps.quantizer(f"{name}/DE@2s").normalizer for name in ("B64", "B64x8")]
    for moment, specs in (
        (0, ["B64", "B64+sr", "B64x8", "B64x8+sr"]),
        (1, ["B64", "B64+sr", "B64x8+sr"]),
    ):
        found = designed(moment, 2, norms, looks([one]), 0.9)
        assert [q.normalizer.spec + "+sr" * q.stochastic for q in found] == specs
        assert len({q.map.label for q in found}) == len(found)


# Files


def test_files_can_be_read_back(found: design.Design, tmp_path: Path) -> None:
    design.write(found, tmp_path)
    assert design.load(tmp_path) == found.pair
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "candidates.parquet", "design.json", "first.txt", "second.txt",
    ]  # fmt: skip
    pd.testing.assert_frame_equal(
        pd.read_parquet(tmp_path / "candidates.parquet"), found.frame, check_dtype=False
    )
    for moment, book in zip(("first", "second"), found.codebooks, strict=True):
        lines = (tmp_path / f"{moment}.txt").read_text().split()
        assert qmaps.Codebook(map(float, lines), label=book.label) == book
    about = json.loads((tmp_path / "design.json").read_text())
    row = rows(found).loc[found.pair.spec]
    assert about["measures"]["displacement_error"] == row["displacement_error"]
    assert about["codebooks"][found.codebooks[0].label]["file"] == "first.txt"


def test_an_interrupted_write_leaves_no_record(
    found: design.Design, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    design.write(found, tmp_path)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_frame", interrupted)
        with pytest.raises(KeyboardInterrupt):
            design.write(found, tmp_path)
    with pytest.raises(OutputError, match=r"design\.json' is missing or damaged"):
        design.load(tmp_path)
    assert not list(tmp_path.glob(".*"))  # neither temporary files nor a lock
    design.write(found, tmp_path)
    assert design.load(tmp_path) == found.pair


def test_known_maps_leave_no_codebook_of_an_earlier_design(
    found: design.Design, tmp_path: Path
) -> None:
    design.write(found, tmp_path)
    pair = qmaps.algebra.pair.Pair.parse(SPECS[0])
    frame = found.frame.assign(chosen=found.frame["quantizer"] == SPECS[0])
    known_one = design.Design(pair, frame, found.best, "step_cost", "recorded", True, 30, 48, 6144)
    design.write(known_one, tmp_path)
    assert not list(tmp_path.glob("*.txt"))
    assert design.load(tmp_path) == pair


@pytest.mark.parametrize("change", ["pair", "codebooks"])
def test_a_damaged_record_is_refused(found: design.Design, tmp_path: Path, change: str) -> None:
    design.write(found, tmp_path)
    about = json.loads((tmp_path / "design.json").read_text())
    del about["checksum"]
    about[change] = {"a": 1}
    (tmp_path / "design.json").write_text(json.dumps(about))
    with pytest.raises(OutputError, match="is damaged; make the design again"):
        design.load(tmp_path)


def test_the_figure_takes_the_frame(found: design.Design) -> None:
    drawn = figures.design(found.frame)
    drawn.draw_without_rendering()
    rings = [line for axis in drawn.axes for line in axis.lines if line.get_markersize() == 13]
    assert [len(line.get_xdata()) for line in rings] == [1] * 6


# Bad input


def test_bad_arguments(recording: Path) -> None:
    for options, error, message in (
        ({"bits": 9}, BadValueError, "bits=9 must be 2 to 8; no other widths are designed"),
        ({"bits": (4, 1)}, BadValueError, "bits=(4, 1) must be 2 to 8; no other widths are "
         "designed"),
        ({"bits": 4.0}, BadTypeError, "bits=4.0 must be an int, or two for the two moments"),
        ({"bits": (4, 4, 4)}, BadTypeError, "bits=(4, 4, 4) must be an int, or two for the two "
         "moments"),
        ({"bits_per_element": 4}, BadValueError, "bits_per_element=4 must be more than the 4 bits "
         "of the codes"),
        ({"bits_per_element": "4"}, BadTypeError, "bits_per_element='4' must be a number"),
        ({"bits": (2, 3), "bits_per_element": 2.5001}, BadValueError, "bits_per_element=2.5001 "
         "leaves too little for scales; these parameters need at least 2.52"),
        ({"criterion": ["step_cost"]}, BadValueError, "criterion=['step_cost'] must be one of "
         "step_cost, displacement_error, update_error"),
        ({"criterion": "loss"}, BadValueError, "criterion='loss' must be one of step_cost, "
         "displacement_error, update_error"),
        ({"steps": 1}, BadValueError, "steps=1 must be 2 to 2**32 - 1"),
        ({"seed": -1}, BadValueError, "seed=-1 must be 0 to 2**32 - 1"),
        ({"share": 0}, BadValueError, "share=0 must be above 0 and at most 1"),
        ({"parameters": "x*"}, BadValueError, "parameters='x*' matches no parameter of "
         f"'{recording}/step-00000030.safetensors'; the names are a, b"),
    ):  # fmt: skip
        with pytest.raises(error) as caught:
            qmaps.design.run(recording, **options)
        assert str(caught.value) == message


def test_windows_that_are_too_short(tmp_path: Path) -> None:
    with pytest.raises(CaptureError) as caught:
        qmaps.design.run(record(tmp_path, window=1))
    assert str(caught.value) == (
        f"'{tmp_path}/step-00000005.safetensors' has the gradients of 1 step after it; a design "
        "needs at least 2"
    )


def test_gradients_of_another_run(tmp_path: Path) -> None:
    record(tmp_path / "one")
    record(tmp_path / "other", lr=0.5, weight_decay=0.3, start=6)
    for path in (tmp_path / "one").glob("gradients-*"):
        path.rename(tmp_path / "other" / path.name)
    with pytest.raises(CaptureError, match="was recorded in another run than the states in"):
        qmaps.design.run(tmp_path / "other")


def test_states_without_any_update() -> None:
    zero = torch.zeros(80, 80)
    states = CapturedStates.from_tensors({"w": {"exp_avg": zero, "exp_avg_sq": zero}}, step=3)
    with pytest.raises(CaptureError) as caught:
        qmaps.design.run(states, 2, steps=2)
    assert str(caught.value) == (
        "all exact updates of 'memory' are 0; there is nothing to compare with"
    )
