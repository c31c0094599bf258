"""The command line, end to end on the tiny workload."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import qmaps
from qmaps import figures
from qmaps.analyze.recommend.verdict import LEVELS
from qmaps.cli import main
from qmaps.figures import declare
from qmaps.optim.presets import pair_of

pytestmark = pytest.mark.slow


def call(command: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(shlex.split(command))
    out, err = capsys.readouterr()
    return int(caught.value.code or 0), out, err


def blank(figure: Figure, path: Path) -> None:
    """Save a figure without rendering it; tests in tests/figures render."""
    assert figure.axes
    path.write_bytes(b"a picture")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("lab") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "save", blank)
        with pytest.raises(SystemExit) as caught:
            main(["lab", "stdlib-lm-tiny", "--steps", "10", "--out", str(out)])
    assert not caught.value.code
    return out


@pytest.fixture
def few_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw two figures instead of eleven, in tests about other things."""
    two = dict(list(declare._PICTURES.items())[:2])
    monkeypatch.setattr(declare, "_PICTURES", two)


def test_the_lab_leaves_everything_in_its_folder(lab: Path) -> None:
    assert {path.name for path in lab.iterdir()} == {
        "about.json", "figures", "frames", "recommend", "report.html", "states", "sweep", "train",
    }  # fmt: skip
    assert len(list((lab / "train").iterdir())) == 3
    assert qmaps.capture.load(lab / "states").steps == [5, 10]
    sweep = pd.read_parquet(lab / "sweep" / "sweep.parquet")
    assert sweep.loc[sweep["state"] == "update", "quantizer"].nunique() >= 60
    losses = pd.read_parquet(lab / "frames" / "losses.parquet")
    assert losses["run"].str[:5].tolist() == ["32-bi", "4-bit", "recom"]
    summary = json.loads((lab / "recommend" / "summary.json").read_text())
    assert summary["gradients"] == "recorded"  # of the steps after the middle
    assert losses["run"].iloc[-1] == f"recommended ({summary['bits_per_element']:.2f} bits)"
    assert losses["state_mib"].iloc[-1] == pytest.approx(summary["nbytes"] / 2**20, rel=0.02)


def test_the_report_is_one_self_contained_page(lab: Path) -> None:
    page = (lab / "report.html").read_text()
    assert len(re.findall(r'<img [^>]*src="data:image/png;base64,', page)) == 11
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)
    for text in ("B64xbf16/geometric@3u+qsr", "zero points", 'id="losses"', "stdlib-lm-tiny"):
        assert text in page
    losses = pd.read_parquet(lab / "frames" / "losses.parquet")
    first = page[: page.index('id="tensors"')]
    assert f"loss {losses['difference'].iloc[-1]:+.4f} from that of 32 bits" in first
    chosen = json.loads((lab / "recommend" / "summary.json").read_text())["choice"]
    pair = " + ".join(chosen["state_quantizers"].values())  # of most elements
    for frame, column in (("frames/update_error", pair), ("sweep/sweep", pair),
                          ("frames/inverse_sqrt", pair.split(" + ")[1])):  # fmt: skip
        assert column in set(pd.read_parquet(lab / f"{frame}.parquet")["quantizer"])


@pytest.mark.usefixtures("few_pictures")
def test_running_again_finds_everything_done(lab: Path, tmp_path: Path, capsys) -> None:
    lab = Path(shutil.copytree(lab, tmp_path / "run"))
    result = lab / "train" / "32-bit-adamw-seed0" / "result.json"
    files = [result, lab / "sweep/parts/00000.parquet", lab / "recommend/choice.json"]
    files.append(lab / "figures/map_curves.png")
    stamps = [path.stat().st_mtime_ns for path in files]
    code, out, err = call(f"lab stdlib-lm-tiny --steps 10 --out {lab} --json", capsys)
    assert (code, err) == (0, "")
    summary = json.loads(out)
    assert (summary["out"], summary["report"]) == (str(lab), str(lab / "report.html"))
    assert summary["verdict"] in LEVELS
    assert summary["code"].startswith("from qmaps.optim import AdamW")
    assert stamps == [path.stat().st_mtime_ns for path in files]
    code, _, err = call(f"lab stdlib-lm-tiny --steps 11 --out {lab}", capsys)
    assert code == 2
    assert "holds a run with steps=10, but 11 was requested" in err


def test_ctrl_c_exits_with_one_line(tmp_path: Path, capsys, monkeypatch) -> None:
    from qmaps import capture

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(capture, "load", interrupted)
    code, out, err = call(f"sweep {tmp_path}", capsys)
    assert (code, out) == (130, "")
    assert err.strip() == "interrupted; the same command goes on from here"


def test_report_and_figures_of_a_run(lab: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(figures, "save", blank)
    before = (lab / "report.html").read_bytes()
    code, out, _ = call(f"figures --out {lab} --json", capsys)
    assert code == 0
    assert len(json.loads(out)) == 11
    code, out, _ = call(f"report {lab} --json", capsys)
    assert (code, json.loads(out)) == (0, {"report": str(lab / "report.html")})
    assert (lab / "report.html").read_bytes() == before


@pytest.mark.usefixtures("few_pictures")
def test_capture_sweep_figures_and_report_of_own_states(tmp_path: Path, capsys) -> None:
    states, run = tmp_path / "states", tmp_path / "run"
    code, out, _ = call(
        f"capture stdlib-lm-tiny --steps 6 --every 3 --parameters 'blocks.*' --out {states} --json",
        capsys,
    )
    assert code == 0
    assert json.loads(out)["steps"] == [3, 6]
    code, out, _ = call(
        f"sweep {states} --spec B128/DE@4s --spec 'B64/nf4@4s + rank1/linear@4u' "
        f"--out {run} --json",
        capsys,
    )
    assert code == 0
    rows = pd.DataFrame(json.loads(out))
    assert set(rows["quantizer"]) == {
        "B128/DE@4s", "B64/nf4@4s", "rank1/linear@4u", "B64/nf4@4s + rank1/linear@4u",
    }  # fmt: skip
    frame = pd.read_parquet(run / "sweep" / "sweep.parquet")
    assert rows["mean_square"].min() < 1e-10
    pd.testing.assert_series_equal(rows["mean_square"], frame["mean_square"], rtol=0, atol=0)
    assert call(f"figures {states} --out {run}", capsys)[0] == 0
    code, out, _ = call(f"report {run}", capsys)
    assert code == 0
    assert out == f"report: {run / 'report.html'}\n"
    assert 'id="figures"' in (run / "report.html").read_text()


def test_capture_and_replay_of_gradients(tmp_path: Path, capsys, monkeypatch) -> None:
    states, run = tmp_path / "states", tmp_path / "run"
    code, _, _ = call(
        "capture stdlib-lm-tiny --steps 8 --every 4 --gradients 3 --parameters 'blocks.0.*' "
        f"--out {states} --json",
        capsys,
    )
    assert code == 0
    pairs = ["B128/DE@4s + B128/DE@4u", "32-bit + 32-bit"]
    command = f"replay {states} --spec '{pairs[0]}' --spec '{pairs[1]}' --out {run}"
    code, out, _ = call(f"{command} --json", capsys)
    assert code == 0
    rows = pd.DataFrame(json.loads(out)).set_index("quantizer")
    assert set(rows.index) == set(pairs)
    assert set(rows["gradients"]) == {"recorded"}  # of step 4: after step 8 there are none
    assert set(rows["steps"]) == {3}
    assert rows.loc[pairs[0], "explosion_share"] > 0
    assert rows.loc[pairs[1], "explosion_share"] == 0
    assert sorted(path.name for path in (run / "replay").iterdir()) == [
        "replay.parquet", "replay.png", "summary.parquet",
    ]  # fmt: skip
    frame = pd.read_parquet(run / "replay" / "replay.parquet")
    assert set(frame["step"]) == {4}
    monkeypatch.setattr(figures, "save", blank)
    code, out, _ = call(f"{command} --rounds 2 --json", capsys)
    assert {row["steps"] for row in json.loads(out)} == {6}
    code, out, _ = call(f"{command} --step 8 --steps 4", capsys)
    assert code == 0
    assert "gradients were not recorded; they were simulated from the moments" in out
    frame = pd.read_parquet(run / "replay" / "replay.parquet")
    assert set(frame["gradients"]) == {"simulated"}


def test_a_recommendation_is_printed_and_written(states: Path, tmp_path: Path, capsys) -> None:
    run = tmp_path / "run"
    pairs = ["B128/DE@4s + B128/DE-0@4u", pair_of("8bit").spec, "B256/DE@8s + 32-bit"]
    specs = " ".join(f"--spec '{pair}'" for pair in pairs)
    command = f"recommend {states} {specs} --steps 4 --out {run}"
    code, out, _ = call(f"{command} --bits 9", capsys)
    assert code == 0
    printed = " ".join(out.split())
    choice = run / "recommend" / "choice.json"
    parts = (f"unproven: {pairs[1]} (8bit)",
             "States: 14,632 bytes, 57,600 in 32 bits. Where quantized: 8.13 bits per state",
             "Gradients were not recorded; they were simulated with the mean and variance",
             "# Training loop",
             "optimizer = AdamW( model.named_parameters(), state_quantizers={",
             "# Trainer of Hugging Face", f'optim_args="state_quantizers={choice}"',
             "# YAML of LLaMA-Factory", "# YAML of axolotl", f'state_quantizers: "{choice}"',
             "The step cost decides pair bits bytes step cost verdict",
             f"* {pairs[1]} ", "8.13 2.03 ", "*: the choice.",
             "--all shows the reason of each verdict",
             f"choice: {choice}")  # fmt: skip
    assert [text for text in parts if text not in printed] == []
    places = [printed.index(text) for text in parts]
    assert places == sorted(places)
    for text in ("up to 4.3 bits", "best up to"):
        assert text not in printed
    code, every, _ = call(f"{command} --bits 9 --all", capsys)
    assert code == 0
    joined = " ".join(every.split())
    for text in ("up to 4.3 bits per state element", "more than 8.3 bits", "(diagnostic)",
                 "best up to 2.3 bits: none", f"best up to 8.3 bits: {pairs[1]}"):  # fmt: skip
        assert text in joined
    chosen = qmaps.load_choice(run / "recommend" / "choice.json")["state_quantizers"]
    assert [q.spec for q in chosen.values()] == pairs[1].split(" + ")
    names = {path.name for path in (run / "recommend").iterdir()}
    assert names == {"choice.json", "pairs.parquet", "summary.json", "tensors.parquet"}
    code, out, _ = call(f"report {run} --json", capsys)  # of a recommendation alone
    assert code == 0
    page = (run / "report.html").read_text()
    for text in ("Gradients were not recorded", f"<b>{pairs[1]}</b>", "14.3 KiB", "75% saved"):
        assert text.lower() in page.lower()
    code, out, _ = call(f"{command} --bytes 8000 --json", capsys)
    summary = json.loads(out)
    assert summary["nbytes"] == 7656
    assert summary["choice"]["state_quantizers"]["exp_avg"] == "B128/DE@4s"
    assert summary["choice"] == json.loads((run / "recommend" / "choice.json").read_text())
    assert [row["quantizer"] for row in summary["pairs"]] == pairs


def test_capture_of_a_checkpoint(tmp_path: Path, capsys) -> None:
    layer = torch.nn.Linear(100, 80)
    optimizer = torch.optim.AdamW(layer.named_parameters())
    layer(torch.ones(1, 100)).sum().backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    code, out, _ = call(
        f"capture --checkpoint {tmp_path / 'optimizer.pt'} --out {tmp_path / 's'}", capsys
    )
    assert code == 0
    assert "captured at steps 1" in out
    assert qmaps.capture.load(tmp_path / "s").parameters() == ["weight", "bias"]


def test_train_compares(tmp_path: Path, capsys) -> None:
    code, out, _ = call(
        f"train stdlib-lm-tiny --steps 3 --seeds 2 --optimizer 32bit --optimizer 4bit "
        f"--optimizer 'B64/nf4@4s + 32-bit' --out {tmp_path / 'run'} --json",
        capsys,
    )
    assert code == 0
    rows = json.loads(out)
    assert [row["run"] for row in rows] == [
        "32-bit AdamW", "AdamW 4bit", "AdamW B64/nf4@4s + 32-bit",
    ]  # fmt: skip
    assert [row["seeds"] for row in rows] == [2, 2, 2]
    losses = [
        json.loads((tmp_path / "run" / f"32-bit-adamw-seed{seed}" / "result.json").read_text())
        for seed in (0, 1)
    ]
    assert rows[0]["mean"] == pytest.approx(sum(r["final"]["loss"] for r in losses) / 2)
    assert rows[0]["difference"] == 0


def test_maps(capsys) -> None:
    code, out, _ = call("maps --json", capsys)
    assert code == 0
    listed = json.loads(out)
    assert [row["map"] for row in listed["maps"]] == qmaps.maps.names()
    widths = {row["map"]: row["widths"] for row in listed["maps"]}
    assert widths["linear"] == {"s": "2-16", "u": "2-16"}
    assert widths["log2"] == {"u": "2-8"}
    assert widths["nf4"] == {"s": "4"}
    assert widths["static-tree"] == {"s": "5-8", "u": "4-8"}
    code, out, _ = call("maps DE@4s --json", capsys)
    assert json.loads(out)["values"] == qmaps.maps.DynamicExponent(4).codebook().tolist()
    assert call("maps", capsys)[0] == 0
    assert "0.8875" in call("maps DE@4s", capsys)[1]


@pytest.mark.parametrize("verb", ["", "lab", "train", "capture", "convert", "lint", "sweep",
                                  "replay", "recommend", "figures", "report",
                                  "maps", "doctor", "verify"])  # fmt: skip
def test_help_shows_examples(verb: str, capsys) -> None:
    code, out, _ = call(f"{verb} --help", capsys)
    assert code == 0
    assert "Usage:" in out
    assert verb == "" or f"qmaps {verb}" in out


@pytest.fixture
def states(tmp_path: Path) -> Path:
    return capture_states(tmp_path / "states")


def capture_states(folder: Path) -> Path:
    qmaps_states = {"exp_avg": torch.randn(80, 90), "exp_avg_sq": torch.rand(80, 90)}
    layer = torch.nn.Parameter(torch.zeros(80, 90))
    optimizer = torch.optim.AdamW([layer])
    optimizer.state[layer] = {"step": torch.tensor(1.0), **qmaps_states}
    qmaps.capture.StateRecorder(optimizer, folder).record()
    return folder


BAD = {
    "maps DF@4s": "map='DF@4s': unknown map 'DF'; allowed are .*; nearest match: DE",
    "maps DE@9s": "bits=9 is not allowed for signed DE; its widths are 2 to 8 bits",
    "sweep {states} --spec B0/DE@4s": "block_size=0 must be at least 1",
    "sweep {states} --spec 'B8/DE@4s + B8/DF@4u'": "unknown map 'DF'",
    "sweep {states} --step 7": "step=7 is not in .*; it has 1",
    "sweep {truncated}": "is corrupt or truncated",
    "sweep {nan}": "state 'exp_avg' of parameter 'group0.param0' in .* holds 1 NaN or infinite",
    "sweep {missing}": "does not exist",
    "sweep {sgd}": "has no Adam states .*; its states are momentum_buffer",
    "sweep {states} --out {file}": "cannot be written",
    "replay {states} --spec 'B8/DE@9s + 32-bit'": "bits=9 is not allowed for signed DE; its widths",
    "replay {states} --spec B8/DE@4s": "has 1 parts; expected 'FIRST \\+ SECOND'",
    "replay {states} --steps 1": "steps=1 must be 2 to",
    "replay {states} --rounds 0": "rounds=0 must be 1 to",
    "replay {states} --share 2": "share=2.0 must be above 0 and at most 1",
    "replay {sgd}": "has no Adam states",
    "replay {nan}": "holds 1 NaN or infinite",
    "replay {states} --out {file} --spec '32-bit + 32-bit'": "cannot be written",
    "recommend {states} --bits 2": "bits=2.0 is less than any choice takes; the smallest",
    "recommend {states} --bytes 9": "nbytes=9 is less than any choice takes; the smallest takes",
    "recommend {states} --bits 4 --bytes 9999": "bits=4.0 and nbytes=9999: give one of them",
    "recommend {states} --spec 'B128/DE@4s + 32-bit'": "candidates must hold at least one pair",
    "recommend {states} --steps 2 --out {file}": "cannot be written",
    "recommend {sgd}": "has no Adam states",
    "capture --checkpoint {text} --gradients 9 --out {new}": "gradients=9 needs a workload",
    "lint {text}": "is not a checkpoint that torch can load",
    "lint {states} --step 7": "step=7 is not in .*; it has 1",
    "figures {states} --out {file}": "cannot be written",
    "figures {sgd} --out {new}": "has no Adam states",
    "figures --out {new}": "has no frames to draw",
    "report {new}": "must hold figures, losses or a recommendation",
    "capture --checkpoint {missing} --out {new}": "does not exist",
    "capture --checkpoint {text} --out {new}": "is not a checkpoint that torch can load",
    "capture --out {new}": "give either a workload or --checkpoint, not both",
    "capture nope --out {new}": "workload='nope' is unknown",
    "lab stdlib-lm-tiny --out {file}": "cannot be written",
    "lab stdlib-lm-tiny --steps 0 --out {new}": "Invalid value for '--steps'",
    "train digits --optimizer 9bit --out {new}": "state_quantizers='9bit' is not a preset",
    "nonsense": "No such command 'nonsense'",
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Good and bad inputs by name."""
    folder = tmp_path_factory.mktemp("bad")
    places = {name: folder / name for name in ("truncated", "nan", "file", "missing", "states")}
    places |= {name: folder / f"{name}.pt" for name in ("sgd", "text")}
    capture_states(places["states"])
    (snapshot,) = places["states"].glob("step-*")
    places["truncated"].mkdir()
    (places["truncated"] / snapshot.name).write_bytes(snapshot.read_bytes()[:20_000])
    places["nan"].mkdir()
    tensors = load_file(snapshot)
    tensors["0"][3, 3] = float("nan")
    with safe_open(snapshot, "pt") as file:
        # Without the checksums; otherwise they would fail first.
        metadata = {"qmaps_capture": file.metadata()["qmaps_capture"]}
        save_file(tensors, places["nan"] / snapshot.name, metadata=metadata)
    places["file"].write_text("")
    places["text"].write_text("no checkpoint")
    layer = torch.nn.Linear(90, 90)
    sgd = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    layer(torch.ones(1, 90)).sum().backward()
    sgd.step()
    torch.save(sgd.state_dict(), places["sgd"])
    return places


@pytest.mark.parametrize("command", BAD)
def test_bad_input_is_one_line_and_exit_code_2(
    command: str, places: dict[str, Path], tmp_path: Path, capsys
) -> None:
    message, new = BAD[command], tmp_path / "new"
    if "--out" not in command and command.startswith(("sweep", "replay", "recommend")):
        command += " --out {new}"
    code, out, err = call(command.format(**places, new=new), capsys)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert re.match(f"error: .*{message}", err)
    results = (".parquet", ".png", ".html", ".json", ".txt")
    assert [path for path in new.rglob("*") if path.suffix in results] == []
