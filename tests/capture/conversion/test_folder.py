"""Folders of torch.distributed.checkpoint, for sharded training.

Checks with several processes are in ``tests/distributed/checks/checkpoints.py``.
"""

import os
import re
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from qmaps.algebra.saved import from_plain
from qmaps.capture import load
from qmaps.capture.conversion import convert_file
from qmaps.errors import BadValueError, OutputError, QmapsError
from qmaps.storage.locks import FolderLock
from tests.capture.fixtures import HERE, expect

pytestmark = pytest.mark.slow


def test_there_and_back_bit_for_bit(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(96, 96)
    optimizer = torch.optim.AdamW(layer.named_parameters())
    layer(torch.randn(8, 96)).square().mean().backward()
    optimizer.step()
    state = {"state": {}, "param_groups": [{**optimizer.state_dict()["param_groups"][0]}]}
    names = [name for name, _ in layer.named_parameters()]
    state["param_groups"][0]["params"] = names
    state["state"] = dict(zip(names, optimizer.state_dict()["state"].values(), strict=True))
    torch.save(state, tmp_path / "exact.pt")
    for out in ({}, {"distributed": "optim"}):
        convert_file(tmp_path / "exact.pt", tmp_path / f"4bit{len(out)}", to="qmaps",
                     states="4bit", **out)  # fmt: skip
    assert (tmp_path / "4bit1/.metadata").exists()
    file, folder = load(tmp_path / "4bit0"), load(tmp_path / "4bit1")
    assert file.fingerprint() == folder.fingerprint()
    (report,) = convert_file(tmp_path / "4bit1", tmp_path / "back.pt", to="qmaps")
    assert report.lossless
    before, after = (torch.load(tmp_path / n, weights_only=True) for n in ("4bit0", "back.pt"))
    for name in ("exp_avg", "exp_avg_sq"):
        codes = [from_plain(state_dict["state"]["weight"][name]) for state_dict in (before, after)]
        assert codes[0].packed.equal(codes[1].packed)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "4bit0", "4bit1", "back.pt", "exact.pt",
    ]  # fmt: skip


def test_names_of_the_optimizer_are_used(tmp_path: Path) -> None:
    """`optimizer.state_dict()` numbers parameters, with their names beside the numbers."""

    def built() -> tuple[nn.Module, torch.optim.Optimizer]:
        net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
        named = {name: (name, p) for name, p in net.named_parameters()}
        groups = [[named["1.weight"], named["0.weight"]], [named["0.bias"], named["1.bias"]]]
        return net, torch.optim.AdamW([{"params": group} for group in groups])

    net, optimizer = built()
    net(torch.randn(4, 8)).square().sum().backward()
    optimizer.step()
    dcp.save({"optim": optimizer.state_dict()}, checkpoint_id=tmp_path / "in", no_dist=True)
    convert_file(tmp_path / "in", tmp_path / "out", to="torch", distributed="optim")
    twin, resumed = built()
    state = {"optim": get_optimizer_state_dict(twin, resumed)}
    dcp.load(state, checkpoint_id=tmp_path / "out", no_dist=True)
    set_optimizer_state_dict(twin, resumed, state["optim"])
    for saved, loaded in zip(net.parameters(), twin.parameters(), strict=True):
        assert torch.equal(optimizer.state[saved]["exp_avg"], resumed.state[loaded]["exp_avg"])


def test_deepspeed_becomes_a_folder_that_fsdp_loads(tmp_path: Path) -> None:
    convert_file(HERE / "deepspeed/zero3", tmp_path / "out", to="torch", distributed="optim")
    expect(load(tmp_path / "out"), "deepspeed/zero3")


@pytest.mark.parametrize("mask", [0o077, 0o002])
def test_permissions_are_the_usual_ones(mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        convert_file(HERE / "dcp/fsdp2", tmp_path / "out", to="qmaps", distributed="optim")
    finally:
        os.umask(before)
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o777 & ~mask
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


def refused(error: type[QmapsError], message: str, source: str, out: Path, to: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        convert_file(HERE / source, out, to=to, distributed="optim", overwrite=True)


def test_unsupported_outputs_are_refused(tmp_path: Path) -> None:
    refused(
        BadValueError,
        "distributed='optim' needs one of the formats torch, qmaps; got to='bitsandbytes'",
        "dcp/fsdp2",
        tmp_path / "out",
        "bitsandbytes",
    )
    refused(
        BadValueError,
        "the checkpoint names a parameter 0; a folder of torch.distributed.checkpoint needs the "
        "parameters' own names",
        "dcp/plain",
        tmp_path / "out",
        "torch",
    )
    message = f"{str(tmp_path)!r} already exists; give another name"
    refused(OutputError, message, "dcp/fsdp2", tmp_path, "torch")
    (tmp_path / "file").write_text("")
    out = tmp_path / "file/out"
    message = f"{str(out)!r} cannot be written (File exists)"
    refused(OutputError, message, "dcp/fsdp2", out, "torch")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_leftovers_of_a_killed_conversion_are_removed_by_the_next(tmp_path: Path) -> None:
    source, out = HERE / "dcp/fsdp2", tmp_path / "out"
    leftover = tmp_path / ".out.tmp/new/__0_0.distcp"
    leftover.parent.mkdir(parents=True)
    leftover.touch()
    (tmp_path / ".out.tmp/.new.lock").touch()  # as a killed process leaves it
    with FolderLock(tmp_path / ".out.tmp", "new"):  # as a live process holds it
        with pytest.raises(OutputError, match="is being written;"):
            convert_file(source, out, to="torch", distributed="optim")
        assert leftover.exists()
    convert_file(source, out, to="torch", like=source)
    assert list(tmp_path.iterdir()) == [out]
    expect(load(out), "dcp/fsdp2")


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FileSystemWriter, "write_data", full)
    message = f"{str(tmp_path / 'out')!r} cannot be written ([Errno 28] No space left on device)"
    refused(OutputError, message, "dcp/fsdp2", tmp_path / "out", "torch")
    assert list(tmp_path.iterdir()) == []
