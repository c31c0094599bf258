"""Megatron-core's distributed optimizer, saved as ``torch_dist``."""

import pickle
import re
from pathlib import Path

import pytest
import torch

from qmaps.capture import load
from qmaps.errors import CaptureError
from qmaps.storage import distributed
from tests.capture.fixtures import HERE, copied, expect

SAVED = "megatron/fully_reshardable"
NEWER = "megatron/fully_reshardable-0.19"
"""Folders of Megatron-core 0.19, without ``common.pt``."""


@pytest.mark.parametrize("name", [SAVED, NEWER])
def test_fully_reshardable(name: str, tmp_path: Path) -> None:
    states = load(HERE / name)
    expect(states, name)
    assert (states.step, states.skipped, states.naming) == (3, [], "the checkpoint")
    options = states.hyperparameters("module.first.bias")
    assert (options["lr"], options["eps"]) == (0.01, 1e-6)
    assert not {"wd_mult", "step"} & options.keys()  # groups differ in the first
    copied(name, tmp_path).rename(tmp_path / "iter_0000003")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("3")
    assert load(tmp_path).fingerprint() == states.fingerprint()


@pytest.mark.parametrize("name", ["megatron/chained", "megatron/chained-prefixed"])
def test_parameters_of_experts_have_an_optimizer_of_their_own(name: str) -> None:
    states = load(HERE / name)
    expect(states, name)
    assert (states.step, states.skipped, len(states.parameters())) == (3, [], 4)
    options = states.hyperparameters("module.second.weight")
    assert (options["lr"], options["eps"]) == (0.01, 1e-6)
    assert "is_expert_parallel" not in options  # both kinds are one group here


def test_options_that_one_of_many_groups_has_differently_are_left_out(tmp_path: Path) -> None:
    common = copied(SAVED, tmp_path) / "common.pt"
    saved = torch.load(common, weights_only=False)
    groups = saved["optimizer"]["optimizer"]["param_groups"]
    groups += [{**groups[0], "lr": 0.5}, groups[0]]
    torch.save(saved, common)
    options = load(common.parent).hyperparameters("module.first.bias")
    assert "lr" not in options
    assert options["eps"] == 1e-6


@pytest.mark.parametrize("name", ["tensor-parallel", "pipeline"])
def test_ranks_that_share_a_model(name: str) -> None:
    states = load(HERE / "megatron" / name)
    expect(states, f"megatron/{name}")
    assert (states.step, states.skipped, states.naming) == (3, [], "the checkpoint")
    owners = ["module"] if name == "tensor-parallel" else ["layers.0", "layers.1"]
    kinds = ("first.weight", "first.bias", "second.weight", "second.bias")
    assert {*states.parameters()} == {f"{owner}.{kind}" for owner in owners for kind in kinds}
    width = 8 if name == "tensor-parallel" else 5
    assert states.shape(f"{owners[-1]}.second.weight", "exp_avg") == (3, width)


@pytest.mark.parametrize("name", ["tensor-parallel", "pipeline"])
def test_missing_and_truncated_ranks_are_refused(name: str, tmp_path: Path) -> None:
    folder = copied(f"megatron/{name}", tmp_path)
    paths = sorted(folder.glob("*.distcp"))
    assert len(paths) > 1
    for path in paths:
        content = path.read_bytes()
        path.write_bytes(content[:-1])
        with pytest.raises(CaptureError, match=f"^'{re.escape(str(path))}' is truncated: it has "):
            load(folder)
        path.unlink()
        with pytest.raises(CaptureError, match=f"^'{re.escape(str(path))}' cannot be read "):
            load(folder)
        path.write_bytes(content)
    expect(load(folder), f"megatron/{name}")


def refused(folder: Path, message: str) -> None:
    with pytest.raises(CaptureError, match=f"^{re.escape(message)}$"):
        load(folder)


@pytest.mark.parametrize("name", ["megatron/dp_reshardable", "megatron/dp_reshardable-0.19"])
def test_formats_without_names_of_parameters_are_refused(name: str) -> None:
    folder = HERE / name
    refused(
        folder,
        f"{str(folder)!r} has no states by parameter, but "
        "param_state_sharding_type='dp_reshardable'; only 'fully_reshardable' says which "
        "parameters they are of",
    )


def test_a_missing_state_is_refused(tmp_path: Path) -> None:
    folder = copied(SAVED, tmp_path)
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    del metadata.state_dict_metadata["optimizer.state.exp_avg_sq.module.first.bias"]
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    refused(
        folder,
        f"{str(folder)!r} has no 'exp_avg_sq' of 'module.first.bias'; other parameters of its "
        "group have this state",
    )


def test_damaged_checkpoints_are_refused(tmp_path: Path) -> None:
    folder = copied(SAVED, tmp_path)
    common = folder / "common.pt"
    torch.save({"iteration": 3}, common)
    refused(
        folder,
        f"{str(common)!r} must have the optimizer's param_groups, as Megatron-core saves them",
    )
    common.unlink()
    refused(folder, f"{str(common)!r} cannot be read (No such file or directory)")
    (folder / "__0_1.distcp").unlink()
    with pytest.raises(CaptureError, match=r"__0_1.distcp' cannot be read \(No such file"):
        load(folder)


def test_a_common_state_without_groups_is_refused(tmp_path: Path) -> None:
    folder = copied(NEWER, tmp_path)
    part = distributed.contents(folder).objects["common_state/shard_0_1"]
    torch.save([{"iteration": 3}], tmp_path / "stream")
    content = part.path.read_bytes()
    stream = (tmp_path / "stream").read_bytes().ljust(part.length, b"\0")
    assert part.start == 0
    part.path.write_bytes(stream + content[part.length :])
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    for index, info in metadata.storage_data.items():
        if index.fqn == "common_state/shard_0_1":
            info.length = (tmp_path / "stream").stat().st_size
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    refused(
        folder,
        f"{str(folder)!r} must have the optimizer's param_groups, as Megatron-core saves them",
    )
