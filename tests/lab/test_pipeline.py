"""From a checkpoint or a training to the page; an interrupted run resumes."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from qmaps import capture, figures, lab
from qmaps.analyze import executors, recommend
from qmaps.analyze.recommend.verdict import LEVELS
from qmaps.lab import pipeline
from qmaps.lab.workloads.processes import Training, Trainings
from tests.lab.test_cli import call

pytestmark = pytest.mark.slow


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A Trainer's folder, with HTML characters in a name."""
    folder = tmp_path / "<b>-5"
    folder.mkdir()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(70, 60), nn.LayerNorm(60), nn.Linear(60, 3))
    parameters = dict(net.named_parameters())
    decaying = [name for name, p in parameters.items() if p.dim() > 1]
    optimizer = torch.optim.AdamW(
        [
            {"params": [parameters[name] for name in decaying]},
            {"params": [p for name, p in parameters.items() if name not in decaying]},
        ]
    )
    for _ in range(3):
        net(torch.randn(8, 70)).square().mean().backward()
        optimizer.step()
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    torch.save(net.state_dict(), folder / "pytorch_model.bin")
    return folder


def test_an_interrupted_run_goes_on_to_a_whole_page(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch
) -> None:
    out, names = tmp_path / "run", tmp_path / "names.txt"
    names.write_text("\n".join("abcdef"))
    command = f"lab --checkpoint '{trained}' --names {names} --min-quantized-size 100 --out {out}"
    draw = pipeline.draw

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "draw", interrupted)
    assert call(command, capsys)[0] == 130
    monkeypatch.setattr(pipeline, "draw", draw)
    # Rendering takes most of the time, and tests of figures do it.
    monkeypatch.setattr(figures, "save", lambda figure, path: path.write_bytes(b"a picture"))
    before = {
        p: p.stat().st_mtime_ns
        for p in out.rglob("*.*")
        if p.suffix in (".safetensors", ".parquet")
    }
    assert len(before) == 1 + 3 + 9 + 2
    del before[out / "sweep" / "sweep.parquet"]  # put together anew from its parts

    code, text, err = call(f"{command} --json", capsys)
    assert (code, err) == (0, "")
    summary = json.loads(text)
    assert summary.pop("verdict") in LEVELS
    assert summary.pop("reason")
    assert summary.pop("code").startswith("from qmaps.optim import AdamW")
    assert summary == {
        "out": str(out), "report": str(out / "report.html"), "captured_step": 3,
        "naming": "names.txt",
    }  # fmt: skip
    assert before == {path: path.stat().st_mtime_ns for path in before}
    page = (out / "report.html").read_text()
    assert len(re.findall(r'<img [^>]*src="data:image/png;base64,', page)) == 10
    for words in (
        "<dd>4,563 parameters in 6 tensors, of which 2 have more than 100 elements and are",
        "&lt;b&gt;-5</b>, simulated gradients</dd>", "<dt>Step</dt><dd>3</dd>",
        "Parameter names: names.txt.", 'id="candidates"',
    ):  # fmt: skip
        assert words in page
    assert "<b>-5" not in page
    assert capture.load(out / "states").parameters() == list("abcdef")

    # Another checkpoint does not go into this folder, and changes nothing in it.
    state = torch.load(trained / "optimizer.pt", weights_only=True)
    state["state"][0]["exp_avg"][3, 3] += 1
    torch.save(state, trained / "optimizer.pt")
    code, _, err = call(command, capsys)
    assert code == 2
    assert "holds other states than" in err
    assert before == {path: path.stat().st_mtime_ns for path in before}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("digits", "workload='digits' cannot be combined with --checkpoint, which trains nothing"),
        ("--seed 0", "seed='0' cannot be combined with --checkpoint, which trains nothing"),
        ("--names {trained}/none.txt", "names='.*none.txt' cannot be read"),
        ("--min-quantized-size 9999", "no parameter has more than min_quantized_size=9999 elemen"),
        ("{nan}", "state 'exp_avg' of parameter '0.weight' in .* holds 1 NaN"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    options: str, message: str, trained: Path, tmp_path: Path, capsys
) -> None:
    if options == "{nan}":
        state = torch.load(trained / "optimizer.pt", weights_only=True)
        state["state"][0]["exp_avg"][3, 3] = float("nan")
        torch.save(state, trained / "optimizer.pt")
        options = ""
    options = options.format(trained=trained)
    code, text, err = call(f"lab {options} --checkpoint '{trained}' --out {tmp_path}/new", capsys)
    assert (code, text, err.count("\n")) == (2, "", 1)
    assert re.match(f"error: {message}", err)
    assert not (tmp_path / "new").exists()


def test_options_of_checkpoints_need_one(tmp_path: Path, capsys) -> None:
    code, _, err = call(f"lab digits --names a.txt --out {tmp_path}/new", capsys)
    assert (code, err) == (2, "error: names='a.txt' needs --checkpoint\n")
    assert not (tmp_path / "new").exists()


def test_captures_of_a_folder_have_names(trained: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "states"
    code, text, _ = call(f"capture --checkpoint '{trained}' --out {out} --json", capsys)
    assert (code, json.loads(text)["naming"]) == (0, "pytorch_model.bin")
    assert capture.load(out).parameters()[:3] == ["0.weight", "2.weight", "0.bias"]
    names = tmp_path / "names.txt"
    names.write_text("\n".join("abcdef"))
    again = f"capture --checkpoint '{trained}' --names {names} --out {tmp_path}/again"
    code, text, _ = call(again, capsys)
    assert (code, text.splitlines()[-1]) == (0, "parameter names: names.txt")
    assert capture.load(tmp_path / "again").parameters() == list("abcdef")
    code, _, err = call(f"capture digits --names {names} --out {tmp_path}/new", capsys)
    assert (code, err) == (2, f"error: names={str(names)!r} needs --checkpoint\n")


def test_workers_share_every_stage_of_a_training(tmp_path: Path, monkeypatch) -> None:
    pools, stages = [], []

    def pool(workers: int) -> Executor:
        pools.append(ThreadPoolExecutor(workers))  # threads of one thread each, as processes are
        return pools[-1]

    class Pickled(Trainings):
        """Trainings of one process, pickled as for several."""

        def start(self, trainings: Sequence[Training]) -> None:
            pickle.dumps(trainings)
            super().start(trainings)

    monkeypatch.setattr(executors, "new_pool", pool)
    monkeypatch.setattr(pipeline, "Trainings", lambda _, progress: Pickled(1, progress))
    monkeypatch.setattr(figures, "save", lambda figure, path: path.write_bytes(b"a picture"))
    monkeypatch.setattr(recommend, "run", partial(recommend.run, steps=4))
    page = lab.run(
        lab.workloads.get("digits"),
        tmp_path / "run",
        steps=2,
        pairs=["B128/DE@4s + B128/DE-0@4u"],
        contenders=[],
        workers=2,
        progress=lambda *call: stages.append(call),
    )
    assert page.exists()
    assert len(pools) == 1
    assert pools[0]._shutdown
    on_workers = [note for _, done, _, note in stages if done == 0 and note.endswith("on workers")]
    assert on_workers == [
        "2 jobs on workers",
        "2 jobs on workers",
        "9 jobs on workers",
    ]
    assert ("train 32-bit AdamW", 2, 2) in {progress[:3] for progress in stages}
    assert stages[-1] == ("draw figures", 11, 11, "")
