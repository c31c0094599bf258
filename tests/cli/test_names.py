"""Names of a checkpoint's parameters, in every command on checkpoints."""

from __future__ import annotations

import io
import json
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qmaps.cli import main
from qmaps.cli.output import progress
from qmaps.errors import printable
from tests.cli.conftest import NAMES, SHAPES
from tests.helpers import examples

PAIR = "--spec 'B128/DE@4s + B128/DE-0@4u'"
FRAMES = {
    f"sweep optimizer.pt {PAIR}": "sweep/sweep.parquet",
    f"replay optimizer.pt --steps 2 {PAIR}": "replay/replay.parquet",
    f"recommend optimizer.pt --steps 2 --bits 8.3 {PAIR}": "recommend/tensors.parquet",
}


@pytest.mark.parametrize("command", FRAMES)
def test_frames_have_the_names(command: str, call, tmp_path: Path) -> None:
    code, out, _ = call(f"{command} --out {tmp_path}")
    assert code == 0
    frame = pd.read_parquet(tmp_path / FRAMES[command])
    assert "group0.param0" in set(frame["parameter"])
    if not command.startswith("replay"):
        assert "parameter names: numbers" in out
        (line,) = (line for line in out.splitlines() if line.startswith("parameter names"))
        assert len(line) <= 80
    code, out, _ = call(f"{command} --names names.txt --out {tmp_path}/named")
    assert code == 0
    frame = pd.read_parquet(tmp_path / "named" / FRAMES[command])
    assert set(frame["parameter"]) == {"layers.0.weight", "layers.1.weight"}
    assert "parameter names" not in out


def test_names_that_do_not_go_with_the_states(call, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for verb in ("sweep", "replay", "recommend", "figures"):
        assert call(f"{verb} states --names names.txt --out {out}") == (
            2,
            "",
            "error: names needs an optimizer checkpoint; 'states' holds captured states, which "
            "have names\n",
        )
    code, _, err = call(f"figures --names names.txt --out {out}")
    assert (code, err) == (2, "error: names='names.txt' needs a checkpoint\n")
    assert not out.exists()


def test_the_reason_of_missing_names_is_printed_before_the_code(call, tmp_path: Path) -> None:
    code, out, _ = call(f"recommend optimizer.pt --steps 2 --bits 8.3 {PAIR} --out {tmp_path}")
    assert code == 0
    assert 0 < out.index("; --names gives them") < out.index("optimizer = AdamW(")


def test_lint_takes_the_names_that_the_others_take(call, place: Path, tmp_path: Path) -> None:
    saved = torch.load(place / "optimizer.pt")
    saved["state"][2]["exp_avg"][0, 0] = float("nan")
    torch.save(saved, tmp_path / "optimizer.pt")
    torch.save(dict(zip(NAMES, map(torch.zeros, SHAPES), strict=True)), tmp_path / "model.pt")
    for names, name in (
        ("", "group0.param2"),
        (f"--names {tmp_path}/model.pt", NAMES[2]),
        (f"--names {place}/names.txt", NAMES[2]),
    ):
        code, out, _ = call(f"lint {tmp_path}/optimizer.pt {names} --json")
        assert (code, json.loads(out)[0]["parameter"]) == (1, name)
    assert call(f"lint states --names {tmp_path}/model.pt")[0] == 2
    (tmp_path / "names.txt").write_bytes(b"\xe9")
    code, _, err = call(f"lint optimizer.pt --names {tmp_path}/names.txt")
    assert (code, err.count("\n"), "(it is not text in UTF-8)" in err) == (2, 1, True)


HOSTILE = [
    "[/x]",
    "[qkv]",
    ":x:",
    "\x1b[31mred",
    "\u202eeman",
    "a\u2028b\nc",
    "$\\frac{",
    "a|b`<c>",
    "é漢",
]


def named(folder: Path, names: list[str]) -> Path:
    """A checkpoint of parameters with these names."""
    weights = [torch.nn.Parameter(torch.randn(4, 6)) for _ in names]
    optimizer = torch.optim.AdamW(list(zip(names, weights, strict=True)))
    for weight in weights:
        weight.grad = torch.ones(4, 6).tril(-1)
    optimizer.step()
    torch.save(optimizer.state_dict(), folder / "hostile.pt")
    return folder / "hostile.pt"


def test_names_are_neither_markup_nor_escapes(call, tmp_path: Path, capsys) -> None:
    file = named(tmp_path, HOSTILE)
    with progress(quiet=False) as advance:  # on the terminal of errors
        advance("train [/x]\x1b[0m", 1, 2, "[qkv]")
    assert "[/x]\\x1b[0m" in capsys.readouterr().err
    saved, damaged = torch.load(file), tmp_path / "damaged.pt"
    for state in saved["state"].values():
        state["exp_avg"][0, 0] = torch.nan
    torch.save(saved, damaged)
    pair = "--min-quantized-size 0 --spec 'B128/DE@4s + B128/DE-0@4u'"
    for command in (
        f"lint {damaged}",
        f"convert {file} {tmp_path}/out.pt --to qmaps --top 20",
        f"recommend {file} {pair} --steps 2 --bits 9 --out {tmp_path}",
    ):
        code, out, err = call(command)
        assert code == command.startswith("lint")
        assert all(line.isprintable() for line in (out + err).split("\n"))
        if not command.startswith("recommend"):
            assert all(printable(name) in out for name in HOSTILE)
    code, out, err = call(f"sweep {file} --spec 'B1\x1b[/x]/DE@4s'")
    assert (code, out, err[:-1].isprintable()) == (2, "", True)
    assert "B1\\x1b[/x]/DE@4s" in err
    file = named(tmp_path, ["\ud800"])
    expected = f"error: {str(file)!r} names a parameter '\\ud800', which is no text in Unicode\n"
    assert call(f"sweep {file}") == (2, "", expected)


def widely(command: list[str]) -> tuple[int, str]:
    """The exit code of a command and its output, on long lines."""
    text = io.StringIO()
    with pytest.MonkeyPatch.context() as setting, redirect_stdout(text), redirect_stderr(text):
        setting.setenv("COLUMNS", "400")
        try:
            main(command)
        except SystemExit as ended:
            return int(ended.code or 0), text.getvalue()


@pytest.mark.fuzz
@given(
    names=st.lists(
        st.text(max_size=12) | st.sampled_from([*HOSTILE, "\ud800", "", "[bold]", "\\", "\x9b2J"]),
        min_size=1, max_size=3, unique=True,
    )
)  # fmt: skip
@settings(max_examples=examples(8), deadline=None)
def test_any_name_is_shown_on_its_line_or_refused_in_one(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = named(Path(folder), names)
        convert = ["convert", file, f"{folder}/out.pt", "--to", "qmaps", "--top", "9"]
        for command in (["lint", file], convert):
            code, shown = widely(list(map(str, command)))
            assert all(line.isprintable() for line in shown.split("\n"))
            if code == 2:
                assert shown.count("\n") == 1
            else:
                assert code == 0
                assert command[0] == "lint" or all(printable(name) in shown for name in names)
