"""Files in, files out, and the command line."""

import json
import pickle
import re
import shlex
from pathlib import Path
from typing import IO, Any

import pytest
import torch

from qmaps import optim
from qmaps.capture import load
from qmaps.capture.conversion import convert_file
from qmaps.cli import main
from qmaps.errors import CaptureError, OutputError
from qmaps.optim import PRESETS, AdamW8bit
from tests.capture.conversion.nets import resumed, trained
from tests.outside import CALLS, NAME, Outside

pytestmark = pytest.mark.slow


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    _, adam = trained(torch.optim.AdamW)
    torch.save(adam.state_dict(), tmp_path / "in.pt")
    return tmp_path / "in.pt"


def test_a_file_is_converted_with_all_that_is_in_it(tmp_path: Path) -> None:
    net, adam = trained(torch.optim.AdamW)
    content = {"model": net.state_dict(), "optimizer_states": [adam.state_dict()], "epoch": 3}
    torch.save(content, tmp_path / "in.ckpt")
    reports = convert_file(tmp_path / "in.ckpt", tmp_path / "out.ckpt", to="qmaps")
    assert [(r.source, r.target, r.optimizer) for r in reports] == [("torch", "qmaps", "adam")]
    out = torch.load(tmp_path / "out.ckpt", weights_only=True)
    assert out["epoch"] == 3
    assert out["model"]["0.weight"].equal(net[0].weight)
    weights = resumed(net, AdamW8bit, out["optimizer_states"][0])
    # Random numbers of a file have no parameter's number.
    torch.testing.assert_close(
        weights, resumed(net, AdamW8bit, adam.state_dict()), atol=1e-3, rtol=0
    )


def test_nothing_is_overwritten_unasked(saved: Path) -> None:
    message = f"{str(saved)!r} already exists; give another name or overwrite=True (--overwrite)"
    with pytest.raises(OutputError, match=f"^{re.escape(message)}$"):
        convert_file(saved, saved, to="qmaps")
    convert_file(saved, saved, to="qmaps", overwrite=True)
    # The file now has qmaps' format; its path is input and output.
    assert convert_file(saved, saved, to="torch", overwrite=True)[0].source == "qmaps"


def refused(path: Path, message: str) -> None:
    out = path.with_name("out.pt")
    with pytest.raises(CaptureError, match=f"^{re.escape(message)}$"):
        convert_file(path, out, to="qmaps")
    assert not out.exists()


def test_hostile_and_truncated_files_are_refused(saved: Path, tmp_path: Path) -> None:
    hostile = tmp_path / "hostile.pt"
    message = (
        f"{str(hostile)!r} would have to run code to load ({NAME}); record its states with "
        "qmaps.capture.StateRecorder, or save plain tensors and numbers"
    )
    torch.save({"state": {0: Outside()}, "param_groups": []}, hostile)
    refused(hostile, message)
    hostile.write_bytes(pickle.dumps({"state": {0: Outside()}, "param_groups": []}, protocol=2))
    refused(hostile, message)
    assert not CALLS
    short = tmp_path / "short.pt"
    content = saved.read_bytes()
    for length in (1, 100, len(content) // 2, len(content) - 1):
        short.write_bytes(content[:length])
        refused(
            short,
            f"{str(short)!r} is not a checkpoint that torch can load; it is corrupt, "
            "truncated, or a file of another kind",
        )
    short.write_bytes(b"")
    refused(short, f"{str(short)!r} is empty")
    refused(tmp_path / "none.pt", f"{str(tmp_path / 'none.pt')!r} does not exist")
    refused(tmp_path, f"{str(tmp_path)!r} is a folder; expected an optimizer checkpoint")
    torch.save({"model": {}}, short)
    refused(
        short,
        f"{str(short)!r} must hold an optimizer state_dict ('state' and 'param_groups'), but "
        "holds a dict with model",
    )
    torch.save({"state": {}, "param_groups": []}, short)
    refused(short, f"{str(short)!r}: the checkpoint has no states, so there is nothing to convert")


def test_an_interrupted_write_leaves_the_old_file(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()

    def dying(what: object, file: IO[bytes]) -> None:
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", dying)
    with pytest.raises(KeyboardInterrupt):
        convert_file(saved, saved, to="qmaps", overwrite=True)
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == ["in.pt"]


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as exit_:
        main([str(argument) for argument in arguments])
    return int(exit_.value.code or 0)


def test_the_command_reports_as_json(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = saved.with_name("out.pt")
    specs = ("--states", "B64/nf4@4s + 32-bit")
    assert run("convert", saved, out, "--to", "qmaps", *specs, "--json") == 0
    (report,) = json.loads(capsys.readouterr().out)
    assert report["target"] == "qmaps"
    rows = {(row["parameter"], row["state"]): row for row in report["states"]}
    assert rows["0.weight", "exp_avg"]["became"] == "B64/nf4@4s"
    assert rows["0.weight", "exp_avg_sq"]["how"] == "same values"
    second = rows["0.weight", "exp_avg_sq"]
    assert (second["zeros"], second["raised"]) == (0, 0)
    assert torch.load(out, weights_only=True)["param_groups"][0]["state_quantizers"] == {
        "exp_avg": "B64/nf4@4s",
        "exp_avg_sq": None,
    }


def test_transposed_kernels_get_no_lines_to_load(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = Path(__file__).parents[1] / "fixtures" / "flax" / "chain" / "state.msgpack"
    options = ("--to", "torch", "--eps", "1e-8")
    assert run("convert", state, tmp_path / "out.pt", *options) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "a torch model needs their moments transposed" in printed
    assert "To load it:" not in printed


def test_the_command_prints_tables_and_refuses_in_a_line(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = saved.with_name("out.pt")
    assert run("convert", saved, out, "--to", "qmaps", "--states", "4bit") == 0
    printed = capsys.readouterr().out
    assert "torch to qmaps: 8 states, the largest error of each kind" in printed
    assert "States one by one" not in printed
    for text in (f"wrote {out}: ", f"; {saved}: ", "To load it:", 'state_quantizers="4bit"'):
        assert text in printed
    assert run("convert", saved, out, "--to", "qmaps") == 2
    assert capsys.readouterr().err == (
        f"error: {str(out)!r} already exists; give another name or overwrite=True (--overwrite)\n"
    )


LOADS = {
    "--to qmaps --states 4bit": "AdamW(\n    model.named_parameters(),\n",
    "--to qmaps --states 'B128/DE@4s + 32-bit'": '{"exp_avg": "B128/DE@4s", "exp_avg_sq": None}',
    "--to qmaps --states 32bit": 'state_quantizers="32bit"',
    "--to qmaps --distributed optim": 'dcp.load(state, checkpoint_id="',
    "--to torch": "from torch.optim import AdamW\n",
    "--to bitsandbytes": "from bitsandbytes.optim import AdamW8bit\n",
    "--to torchao --states fp8": "from torchao.optim import AdamWFp8\n",
    "--to torchao --states 4bit": "from torchao.optim import AdamW4bit\n",
    "--to torchao --states 32bit": "optimizer = ...\n",
}
"""Options, and lines of the code that loads the result."""


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("options", LOADS)
def test_the_lines_that_load_the_result(
    options: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(shlex.split(options)[1])
    net, adam = trained(torch.optim.AdamW)
    net.zero_grad()
    torch.save({"model": {}, "optimizer": adam.state_dict()}, tmp_path / "in.pt")
    words = shlex.split(options)
    assert run("convert", tmp_path / "in.pt", tmp_path / "out", *words) == 0
    printed = capsys.readouterr().out
    code = printed.partition("To load it:\n\n")[2]
    assert LOADS[options] in code
    if "..." in LOADS[options]:
        return
    scope: dict[str, Any] = {"model": net}
    exec(code, scope)
    state = scope["optimizer"].state
    assert {int(values["step"]) for values in state.values()} == {
        int(values["step"]) for values in adam.state.values()
    }


RULES = {
    ("torch.Adam", "qmaps"): "Adam",
    ("torch.Adam", "torch"): "Adam",
    ("torch.NAdam", "qmaps"): "NAdam",
    ("torch.NAdam", "bitsandbytes"): None,
    ("LAMB", "qmaps"): "LAMB",
    ("LAMB", "bitsandbytes"): "LAMB8bit",
    ("LAMB", "torch"): None,
    ("LARS", "qmaps"): "LARS",
    ("Lion", "torch"): None,
    ("Lion", "bitsandbytes"): "Lion8bit",
}
"""Classes and formats, and the class that the lines name; None where the package has none."""


@pytest.mark.parametrize(("source", "to"), RULES)
def test_the_lines_name_the_rule_of_the_states(
    source: str, to: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    library, _, name = source.rpartition(".")
    options = {} if library else {"state_quantizers": "8bit"}
    _, optimizer = trained(getattr(torch.optim if library else optim, name), **options)
    torch.save(optimizer.state_dict(), tmp_path / "in.pt")
    assert run("convert", tmp_path / "in.pt", tmp_path / "out.pt", "--to", to) == 0
    code = capsys.readouterr().out.partition("To load it:\n\n")[2]
    expected = RULES[source, to]
    assert f"optimizer = {expected or '...'}{'(' if expected else chr(10)}" in code
    assert ("optim import" in code) == (expected is not None)
    if to == "qmaps":  # the next conversion knows it, too
        (again,) = convert_file(tmp_path / "out.pt", tmp_path / "again.pt", to="torch")
        assert again.rule == expected


def test_alike_changes_share_a_row(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = saved.with_name("out.pt")
    assert run("convert", saved, out, "--to", "qmaps", "--states", "8bit", "--top", "1") == 0
    first, _, details = capsys.readouterr().out.partition("\nStates one by one\n")
    rows = [line.split() for line in first.splitlines() if line.startswith("exp_avg")]
    specs = PRESETS["8bit"].specs(("exp_avg", "exp_avg_sq"), ("exp_avg",))
    for row, (name, spec) in zip(rows, specs.items(), strict=False):
        assert row[0] == name
        assert spec.startswith(row[3])  # a long one goes on in the next line
    (report,) = convert_file(saved, out, to="qmaps", states="8bit", overwrite=True)
    quantized = [row for row in report.states if row.how == "quantized"]
    for state, row in zip(specs, rows, strict=False):
        errors = [change.max_abs_error for change in quantized if change.state == state]
        assert (row[4], row[6]) == (str(len(errors)), f"{max(errors):.3g}")
    assert details.splitlines()[0].split()[0] == "parameter"


def test_names_are_written_into_the_groups(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(8)).sum().backward()
    optimizer.step()
    names = [name for name, _ in model.named_parameters()]
    torch.save(optimizer.state_dict(), tmp_path / "o.pt")
    convert_file(tmp_path / "o.pt", tmp_path / "named.pt", to="torch", names=model)
    (group,) = torch.load(tmp_path / "named.pt")["param_groups"]
    assert (group["param_names"], group["params"]) == (names, [0, 1, 2, 3])
    (tmp_path / "names.txt").write_text("\n".join(names))
    source, folder, file = (str(tmp_path / name) for name in ("o.pt", "folder", "names.txt"))
    options = ["--to", "torch", "--distributed", "optimizer", "--names", file]
    with pytest.raises(SystemExit) as ended:
        main(["convert", source, folder, *options])
    assert ended.value.code == 0
    assert load(tmp_path / "folder").parameters() == names
    torch.save([optimizer.state_dict()] * 2, tmp_path / "two.pt")
    convert_file(tmp_path / "two.pt", tmp_path / "n.pt", to="torch", names=[*"abcdefgh"])
    groups = [
        state_dict["param_groups"][0]["param_names"] for state_dict in torch.load(tmp_path / "n.pt")
    ]
    assert groups == [[*"abcd"], [*"efgh"]]
