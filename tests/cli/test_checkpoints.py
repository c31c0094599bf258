"""Commands on folders of other packages, by the same names as on files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

from qmaps import capture, sweep
from qmaps.optim import AdamW4bit
from tests.capture.fixtures import HERE, PARAMETERS, expect

FOLDERS = (
    "dcp/fsdp2",
    "deepspeed/zero2",
    "deepspeed/zero1-universal",
    "megatron/fully_reshardable",
)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A folder of torch.distributed.checkpoint, with a parameter large enough to be quantized."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(96, 96)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.randn(8, 96)).square().mean().backward()
    optimizer.step()
    state = {"optimizer": get_optimizer_state_dict(layer, optimizer)}
    dcp.save(state, checkpoint_id=tmp_path / "large", no_dist=True)
    return tmp_path / "large"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_sweep_and_recommend(call, large: Path, tmp_path: Path) -> None:
    pair = "B128/DE@4s + B128/DE-0@4u"
    code, out, err = call(f"sweep {large} --spec '{pair}' --out {tmp_path / 'run'} --json")
    assert (code, err) == (0, "")
    assert pair in out
    frame = sweep.run(capture.load(large), [pair])
    assert set(frame["parameter"]) == {"weight"}
    code, out, err = call(f"recommend {large} --bits 8.5 --json")
    assert (code, err) == (0, "")
    assert json.loads(out)


def test_capture_copies_the_states(call, tmp_path: Path) -> None:
    code, _, err = call(f"capture --checkpoint {HERE / 'dcp/fsdp2'} --out {tmp_path / 'states'}")
    assert (code, err) == (0, "")
    states = capture.load(tmp_path / "states")
    expect(states, "dcp/fsdp2")
    assert states.fingerprint() == capture.load(HERE / "dcp/fsdp2").fingerprint()


def test_capture_takes_the_options_of_another_framework(call, tmp_path: Path) -> None:
    out = tmp_path / "states"
    command = f"capture --checkpoint {HERE / 'flax/masked'} --out {out}"
    code, printed, err = call(f"{command} --betas 0.9,0.95 --eps 1e-7")
    assert (code, err) == (0, "")
    assert "kernels are stored as (in, out), which is transposed" in " ".join(printed.split())
    states = capture.load(out)
    expect(states, "flax/masked")
    assert states.hyperparameters("dense.bias") == {"betas": [0.9, 0.95], "eps": 1e-7}
    assert call(f"{command} --betas 0.9")[2] == (
        "error: betas='0.9' must be two numbers, such as 0.9,0.95\n"
    )
    assert call(f"capture stdlib-lm --out {out} --eps 1e-7")[2] == (
        "error: eps=1e-07 needs --checkpoint\n"
    )


@pytest.mark.filterwarnings("ignore:.*has no betas")
def test_the_layout_of_another_framework_is_named(call, tmp_path: Path) -> None:
    folder = HERE / "paddle/momentum"
    code, printed, _ = call(
        f"sweep {folder} --out {tmp_path} --spec B64/nf4@4s --min-quantized-size 9"
    )
    assert code == 0
    assert "kernels are stored as (in, out)" in printed


@pytest.mark.parametrize("name", [*FOLDERS, "deepspeed/zero3-bitsandbytes", "dcp/bitsandbytes"])
def test_convert(call, name: str, tmp_path: Path) -> None:
    out = tmp_path / "o.pt"
    code, _, err = call(f"convert {HERE / name} {out} --to torch")
    assert (code, err) == (0, "")
    expect(capture.load(out), name)
    saved = torch.load(out, weights_only=True)
    assert {group["lr"] for group in saved["param_groups"]} == {0.01}


@pytest.mark.parametrize("name", FOLDERS)
def test_convert_like(call, name: str, tmp_path: Path) -> None:
    states, out = tmp_path / "states", tmp_path / "out"
    assert call(f"capture --checkpoint {HERE / name} --out {states}")[0] == 0
    command = f"convert {states} {out} --to torch --like {HERE / name}"
    code, _, err = call(command)
    assert (code, err) == (0, "")
    expect(capture.load(out), name)
    code, _, err = call(command)
    assert (code, err.strip()) == (2, f"error: {str(out)!r} already exists; give another name")


def test_convert_to_four_bits_goes_on(call, tmp_path: Path) -> None:
    out = tmp_path / "o.pt"
    code, _, err = call(f"convert {HERE / 'deepspeed/zero3'} {out} --to qmaps --states 4bit")
    assert (code, err) == (0, "")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    named = dict(net.named_parameters())
    groups = [[named[name] for name in PARAMETERS[:2]], [named[name] for name in PARAMETERS[2:]]]
    optimizer = AdamW4bit([{"params": group} for group in groups])
    optimizer.load_state_dict(torch.load(out, weights_only=True))
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.01, 0.0]
    net(torch.randn(4, 6)).square().mean().backward()
    optimizer.step()
    assert optimizer.state[named["0.weight"]]["step"] == 4


def test_one_line_about_damage(call, tmp_path: Path) -> None:
    code, out, err = call(f"sweep {HERE / 'megatron/dp_reshardable'} --out {tmp_path}")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "only 'fully_reshardable' says which parameters they are of" in err
