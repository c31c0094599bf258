"""Safetensors files of other packages, with tensors named by parameter and state."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from qmaps.capture import load
from qmaps.capture.conversion import convert_file
from qmaps.errors import BadValueError, CaptureError
from tests.capture.fixtures import HERE, copied, expect

TENSORS = {
    "layer.weight.exp_avg": torch.arange(6.0).view(2, 3),
    "layer.weight.exp_avg_sq": torch.arange(6.0).view(2, 3) ** 2,
    "layer.weight.step": torch.tensor(7.0),
    "state.bias.exp_avg": torch.ones(3, dtype=torch.bfloat16),
}


@pytest.mark.parametrize("prefix", ["", "state.", "optim.state.", "optimizer.state."])
def test_names_identify_tensors(prefix: str, tmp_path: Path) -> None:
    save_file({prefix + key: value for key, value in TENSORS.items()}, tmp_path / "o.safetensors")
    states = load(tmp_path / "o.safetensors")
    assert states.parameters() == ["layer.weight", "state.bias"]
    assert (states.step, states.skipped, states.naming) == (7, [], "the checkpoint")
    for parameter, state, tensor in states.items():
        assert tensor.equal(TENSORS[f"{parameter}.{state}"].float())
    assert [state for _, state, _ in states.lazies()] == ["exp_avg", "exp_avg_sq", "exp_avg"]


def test_other_names_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "o.safetensors"
    save_file({**TENSORS, "layer.weight": torch.ones(2)}, path)
    message = (
        f"{str(path)!r} has the tensor 'layer.weight'; in a file of optimizer states every name "
        "must be PARAMETER.STATE, such as layer.weight.exp_avg"
    )
    with pytest.raises(CaptureError, match=f"^{re.escape(message)}$"):
        load(path)


def test_codes_without_scales_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "o.safetensors"
    codes = torch.ones(2, 3, dtype=torch.uint8)
    save_file({**TENSORS, "layer.weight.exp_avg": codes}, path)
    message = f"{str(path)!r} has 'layer.weight.exp_avg' in U8, which is not read"
    with pytest.raises(CaptureError, match=f"^{re.escape(message)}$"):
        load(path)
    save_file({"layer.weight.state1": codes}, path)
    message = (
        f"state 'state1' of parameter 'layer.weight' in {str(path)!r} is damaged: the 8-bit states "
        "lack qmap1, absmax1"
    )
    states = load(path)
    with pytest.raises(CaptureError, match=f"^{re.escape(message)}$"):
        states.tensor("layer.weight", "state1")


def test_models_and_truncated_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "o.safetensors"
    save_file({"layer.weight": torch.ones(2)}, path)
    with pytest.raises(CaptureError) as model:
        load(path)
    assert str(model.value) == (
        f"{str(path)!r} is a safetensors file with the tensor 'layer.weight'; states are named "
        "PARAMETER.STATE, such as layer.weight.exp_avg"
    )
    save_file({f"layers.0.weight.{state}": torch.ones(2) for state in "mv"}, path)
    with pytest.raises(CaptureError) as mlx:
        load(path)
    assert str(mlx.value) == (
        f"{str(path)!r} is a safetensors file of MLX; rename its tensors .m and .v to .exp_avg and "
        ".exp_avg_sq"
    )
    save_file(TENSORS, path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CaptureError) as truncated:
        load(path)
    assert str(truncated.value) == (
        f"{str(path)!r} is corrupt or truncated (Error while deserializing header: incomplete "
        "metadata, file not fully covered)"
    )


SHARDED, JOINED = "safetensors/sharded", "safetensors/joined"

ALONE = "is the shard of one process; shards of others would have to be beside it$"


@pytest.mark.parametrize(
    "place",
    [
        SHARDED,
        f"{SHARDED}/shard-00001-model-00001-of-00002.safetensors",
        f"{SHARDED}/shard-00002-model-00002-of-00002.safetensors",
        JOINED,
        f"{JOINED}/sharded",
        f"{JOINED}/sharded/shard-00002-model-00001-of-00002.safetensors",
    ],
)
def test_shards_of_torchs_writer_are_joined(place: str) -> None:
    states = load(HERE / place)
    expect(states, "/".join(place.split("/")[:2]))
    assert (states.step, states.skipped, states.naming) == (7, [], "the checkpoint")


@pytest.mark.parametrize(
    "name", ["model.safetensors.index.json", "model-00001-of-00002.safetensors"]
)
def test_steps_lost_in_torchs_joining_are_reported(name: str) -> None:
    path = HERE / JOINED / name
    message = (
        f"{str(path)!r} has step=0 for 'w', but its second moment is not 0; its number of steps "
        "was lost, as where torch joins shards of safetensors"
    )
    with pytest.warns(UserWarning, match=f"^{re.escape(message)}$"):
        states = load(path)
    expect(states, JOINED)
    assert states.step == 0


def test_elements_of_joined_shards(tmp_path: Path) -> None:
    states = load(HERE / SHARDED)
    for parameter, state, lazy in states.lazies():
        assert lazy.opened()(2, 5).equal(states.tensor(parameter, state).flatten()[2:5])


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        (
            "shard-00001-model-00001-*",
            "' has chunks of 12 elements for 'state.w.exp_avg' of shape (6, 4); the chunks must "
            "make up the tensor",
        ),
        (
            "*-model-00001-*",
            "/shard-00001-model-00002-of-00002.safetensors' is one of several files, of which file "
            "1 is missing beside it",
        ),
        (
            "shard-00001-*",
            "/shard-00002-model-00001-of-00002.safetensors' is one of several files, of which "
            "shard 1 is missing beside it",
        ),
    ],
)
def test_missing_shards_are_refused(lost: str, message: str, tmp_path: Path) -> None:
    folder = copied(SHARDED, tmp_path)
    for path in folder.glob(lost):
        path.unlink()
    with pytest.raises(CaptureError) as caught:
        load(folder)
    assert str(caught.value) == f"'{folder}{message}"


def test_files_beside_shards_tell_that_the_last_is_missing(tmp_path: Path) -> None:
    folder = copied(JOINED, tmp_path)
    for path in folder.glob("sharded/shard-00002-*"):
        path.unlink()
    with pytest.warns(UserWarning, match=ALONE), pytest.raises(CaptureError) as caught:
        load(folder)
    index = folder / "model.safetensors.index.json"
    assert str(caught.value) == (
        f"{str(index)!r} lists the tensor 'state.w.step', which the files of {str(folder)!r} do "
        "not have"
    )
    index.unlink()
    with pytest.warns(UserWarning, match=ALONE), pytest.raises(CaptureError) as caught:
        load(folder / "sharded")
    assert str(caught.value) == (
        f"the shards in {str(folder / 'sharded')!r} make up 'state.w.exp_avg' of shape (3, 4), but "
        "'model-00001-of-00002.safetensors' has it in (6, 4); a shard is missing"
    )


def test_an_index_names_the_files(tmp_path: Path) -> None:
    save_file({"w.exp_avg": torch.ones(2)}, tmp_path / "a.safetensors")
    save_file({"w.exp_avg_sq": torch.ones(2)}, tmp_path / "b.safetensors")
    files = {"w.exp_avg": "a.safetensors", "w.exp_avg_sq": "b.safetensors"}
    index = tmp_path / "optimizer.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": files}))
    assert load(index).states("w") == load(tmp_path).states("w") == ["exp_avg", "exp_avg_sq"]
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(CaptureError, match=r"b\.safetensors' does not exist$"):
        load(index)
    message = (
        f"{str(index)!r} lists the tensor 'w.exp_avg_sq', which the files of {str(tmp_path)!r} do "
        "not have"
    )
    with pytest.raises(CaptureError, match=f"^{re.escape(message)}$"):
        load(tmp_path)
    assert load(tmp_path / "a.safetensors").states("w") == ["exp_avg"]


@pytest.mark.parametrize("offset", [-1, 1, 10**18, "0", [0, 0], None])
def test_offsets_that_do_not_fit_are_refused(offset: object, tmp_path: Path) -> None:
    start = offset if isinstance(offset, list) else [offset]
    sharding = json.dumps({"w.exp_avg": {"saved_offsets": start}})
    path = tmp_path / "shard-00001-model-00001-of-00001.safetensors"
    save_file({"w.exp_avg": torch.ones(3)}, path, {"DCP_SHARDING_INFO": sharding})
    with pytest.warns(UserWarning, match=ALONE), pytest.raises(CaptureError) as caught:
        load(path)
    assert re.search("has chunks of 3 elements|parts do not fit together", str(caught.value))


def test_states_are_not_written_back_into_safetensors(tmp_path: Path) -> None:
    message = (
        f"like={str(HERE / SHARDED)!r} must be the folder of a checkpoint of DeepSpeed, "
        "Megatron-core or torch.distributed.checkpoint"
    )
    with pytest.raises(BadValueError, match=f"^{re.escape(message)}$"):
        convert_file(HERE / SHARDED, tmp_path / "out", to="torch", like=HERE / SHARDED)


def test_a_numbered_name_alone_does_not_make_one_of_several(tmp_path: Path) -> None:
    path = tmp_path / "optimizer-3-of-10.safetensors"
    tensors = {f"w.{name}": torch.ones(2) for name in ("exp_avg", "exp_avg_sq")}
    save_file(tensors, path)
    assert load(path).parameters() == load(tmp_path).parameters() == ["w"]
    save_file(tensors, tmp_path / "optimizer-4-of-10.safetensors")
    with pytest.raises(CaptureError, match="of which file 1 is missing beside it"):
        load(path)
    (tmp_path / "optimizer-4-of-10.safetensors").unlink()
    save_file(tensors, path, metadata={"DCP_VERSION": "1.0"})
    with pytest.raises(CaptureError, match="of which file 1 is missing beside it"):
        load(path)
