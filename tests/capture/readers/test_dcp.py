"""torch.distributed.checkpoint: every FSDP save of an optimizer, and damaged folders."""

import dataclasses
import io
import os
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing._internal.distributed import fake_pg as fake

import qmaps
from qmaps.capture import load
from qmaps.capture.conversion import convert_file
from qmaps.distributed.rows import by_rows
from qmaps.errors import BadValueError, CaptureError
from qmaps.storage.distributed import StoredTensor, _Unpickler, contents
from qmaps.storage.pickles import DEEPEST, LARGEST
from tests.capture.fixtures import HERE, PARAMETERS, copied, expect
from tests.outside import CALLS, NAME, Outside

SAVED = ("fsdp2", "fsdp2-flattened", "fsdp1-sharded", "fsdp1-full")


pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.mark.parametrize("name", SAVED)
def test_fsdp(name: str) -> None:
    states = load(HERE / "dcp" / name)
    expect(states, f"dcp/{name}")
    assert states.parameters() == PARAMETERS
    assert (states.step, states.skipped, states.naming) == (3, [], "the checkpoint")
    decay = [states.hyperparameters(name)["weight_decay"] for name in PARAMETERS]
    assert decay == [0.01, 0.01, 0.0, 0.0]
    assert [states.eps(name) for name in PARAMETERS] == [1e-6] * 4


MESH = "dcp/fsdp2-tensor-parallel"


def test_a_mesh_of_two_dimensions(tmp_path: Path) -> None:
    states = load(HERE / MESH)
    expect(states, MESH)
    shapes = {name: states.shape(name, "exp_avg") for name in states.parameters()}
    assert shapes["0.weight"] == (10, 6)
    assert shapes["2.weight"] == (5, 10)
    (cut,) = [
        t for t in contents(HERE / MESH).tensors.values() if t.key.endswith("2.weight.exp_avg")
    ]
    assert len({chunk.offsets[0] for chunk in cut.chunks}) == 2
    assert len({chunk.offsets[1] for chunk in cut.chunks}) == 2
    folder = copied(MESH, tmp_path)
    for path in sorted(folder.glob("*.distcp")):
        content = path.read_bytes()
        path.write_bytes(content[:-1])
        with pytest.raises(CaptureError, match=f"^'{re.escape(str(path))}' is truncated: it has "):
            load(folder)
        path.write_bytes(content)
    shutil.move(path, tmp_path)
    with pytest.raises(CaptureError, match=f"^'{re.escape(str(path))}' cannot be read "):
        load(folder)


@pytest.mark.parametrize("around", ["state", "param_groups", "app"])
def test_dicts_around_the_optimizer_may_have_any_name(around: str, tmp_path: Path) -> None:
    layers = nn.ModuleDict({"state": nn.Linear(3, 3), "param_groups": nn.Linear(3, 3)})
    optimizer = torch.optim.AdamW(layers.parameters())
    layers["param_groups"](layers["state"](torch.ones(1, 3))).sum().backward()
    optimizer.step()
    saved = get_optimizer_state_dict(layers, optimizer)
    dcp.save({around: {"optim": saved, "epoch": 3}}, checkpoint_id=tmp_path, no_dist=True)
    states = load(tmp_path)
    assert states.parameters() == list(dict(layers.named_parameters()))
    for name, param in layers.named_parameters():
        assert states.hyperparameters(name)["lr"] == 1e-3
        assert states.tensor(name, "exp_avg").equal(optimizer.state[param]["exp_avg"])


def test_numbered_parameters_take_names() -> None:
    saved = torch.load(HERE / "dcp/plain/expected.pt", weights_only=True)
    states = load(HERE / "dcp/plain", names=PARAMETERS)
    for number, name in enumerate(PARAMETERS):
        for state in ("exp_avg", "exp_avg_sq"):
            assert states.tensor(name, state).equal(saved["state"][number][state])
    assert load(HERE / "dcp/plain").parameters()[3] == "group1.param1"


def test_fingerprints_are_those_of_the_states() -> None:
    results = [load(HERE / "dcp" / name).fingerprint() for name in SAVED]
    assert len(set(results)) == 1  # FSDP1 and FSDP2 took the same steps
    assert load(HERE / "dcp/bitsandbytes").fingerprint() != results[0]


def test_states_of_bitsandbytes_are_decoded() -> None:
    stored = contents(HERE / "dcp/bitsandbytes")
    (key,) = [key for key in stored.tensors if key.endswith(".state1")]
    assert stored.tensors[key].dtype == torch.uint8
    expect(load(HERE / "dcp/bitsandbytes"), "dcp/bitsandbytes")


def test_states_of_torchao_are_decoded() -> None:
    pytest.importorskip("torchao")
    expect(load(HERE / "dcp/fsdp2-torchao"), "dcp/fsdp2-torchao")


def test_states_of_qmaps_are_decoded_and_converted_bit_for_bit(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(96, 96)
    optimizer = qmaps.optim.AdamW4bit(layer.parameters(), lr=1e-2)
    layer(torch.randn(4, 96)).square().sum().backward()
    optimizer.step()
    with by_rows():
        state = {"optimizer": get_optimizer_state_dict(layer, optimizer)}
        dcp.save(state, checkpoint_id=tmp_path / "saved", no_dist=True)
    states = load(tmp_path / "saved")
    tensors = optimizer.state[layer.weight]
    for name in ("exp_avg", "exp_avg_sq"):
        assert states.tensor("weight", name).equal(tensors[name].dequantize())
    (report,) = convert_file(tmp_path / "saved", tmp_path / "o.pt", to="qmaps")
    assert (report.source, report.lossless) == ("qmaps", True)
    saved = torch.load(tmp_path / "o.pt", weights_only=True)["state"]["weight"]["exp_avg"]
    assert saved["packed"].equal(tensors["exp_avg"].packed)


def test_one_tensor_is_read_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    read_whole = StoredTensor.read

    def recorded(self: StoredTensor, *args: object) -> torch.Tensor:
        read.append(self.key)
        return read_whole(self, *args)

    monkeypatch.setattr(StoredTensor, "read", recorded)
    states = load(HERE / "dcp/fsdp2")
    assert not [key for key in read if not key.endswith(".step")]
    read.clear()
    states.tensor("0.bias", "exp_avg")
    assert read == ["optim.state.0.bias.exp_avg"]


@pytest.mark.parametrize("subfolder", ["optimizer_0", "optimizer"])
def test_folders_of_accelerate(subfolder: str, tmp_path: Path) -> None:
    (tmp_path / "checkpoint-3").mkdir()
    copied("dcp/fsdp2", tmp_path).rename(tmp_path / "checkpoint-3" / subfolder)
    assert load(tmp_path / "checkpoint-3").parameters() == PARAMETERS


def test_without_the_paths_that_torch_stores(tmp_path: Path) -> None:
    folder = copied("dcp/fsdp2", tmp_path)
    rewritten(folder, lambda metadata: setattr(metadata, "planner_data", None))
    expect(load(folder), "dcp/fsdp2")


def rewritten(folder: Path, change: Callable[[object], None]) -> None:
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    change(metadata)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))


def refused(folder: Path, message: str, *, reads: bool = False) -> None:
    """Loading fails with this message; with `reads`, reading the first tensor does."""
    states = load(folder) if reads else None
    with pytest.raises(CaptureError, match=f"^{re.escape(message)}$"):
        load(folder) if states is None else list(states.items())


def test_missing_and_truncated_files_are_refused(tmp_path: Path) -> None:
    folder = copied("dcp/fsdp2", tmp_path)
    last = folder / "__1_0.distcp"
    content = last.read_bytes()
    last.write_bytes(content[:20000])
    end, key = max(
        (chunk.part.start + chunk.part.length, key)
        for key, tensor in contents(HERE / "dcp/fsdp2").tensors.items()
        for chunk in tensor.chunks
        if chunk.part.path.name == last.name
    )
    assert end == len(content)
    refused(
        folder,
        f"{str(last)!r} is truncated: it has 20000 bytes, and the metadata says that {key!r} ends "
        f"at byte {end}",
    )
    last.unlink()
    refused(
        folder,
        f"{str(last)!r} cannot be read (No such file or directory); the metadata says that a part "
        f"of {key!r} is in it",
    )


def test_damaged_chunks_are_refused(tmp_path: Path) -> None:
    folder = copied("dcp/fsdp2", tmp_path)
    (chunk, _) = contents(folder).tensors["optim.state.0.weight.exp_avg"].chunks
    content = bytearray(chunk.part.path.read_bytes())
    values = torch.load(folder / "expected.pt")["state"]["0.weight"]["exp_avg"][:3]
    place = content.index(values.numpy().tobytes(), chunk.part.start)
    content[place] ^= 1
    chunk.part.path.write_bytes(content)
    refused(
        folder,
        f"{str(chunk.part.path)!r} is not a checkpoint that torch can load; it is corrupt, "
        "truncated, or a file of another kind",
        reads=True,
    )


def test_metadata_that_would_run_code_is_refused(tmp_path: Path) -> None:
    folder = copied("dcp/fsdp2", tmp_path)
    path = folder / ".metadata"
    rewritten(folder, lambda metadata: setattr(metadata, "planner_data", Outside()))
    refused(
        folder,
        f"{str(path)!r} would have to run code to load ({NAME}); only the metadata of "
        "torch.distributed.checkpoint is read",
    )
    assert not CALLS
    for content in (b"", path.read_bytes()[:500], b"text"):
        path.write_bytes(content)
        refused(
            folder,
            f"{str(path)!r} is not the metadata of torch.distributed.checkpoint; it is corrupt, "
            "truncated, or a file of another kind",
        )


def unpickled(content: bytes) -> _Unpickler:
    """Read this content of a ``.metadata``; return the unpickler."""
    unpickler = _Unpickler(io.BytesIO(content), "'.metadata'")
    unpickler.load()
    return unpickler


def test_metadata_takes_no_more_memory_than_it_has() -> None:
    # An index in the file is a key here, no length of a list.
    assert unpickled(b"\x80\x04Nr\x00\x10\x00\x00.").memo == {4096: None}
    with pytest.raises(KeyError):  # a length in the file would be allocated
        unpickled(b"\x80\x05\x96" + (2).to_bytes(8, "little") + b"ab.")


def test_tuples_in_tuples_are_read(tmp_path: Path) -> None:
    path = copied(f"dcp/{SAVED[0]}", tmp_path) / ".metadata"
    before = contents(path.parent)
    saved = pickle.loads(path.read_bytes())
    saved.shapes = ((("w", torch.Size([3, 2])), ("b", torch.Size([3]))), ())
    path.write_bytes(pickle.dumps(saved))
    assert contents(path.parent) == before


def keyed(tuples: bytes) -> bytes:
    """The pickle of a dict with a key of these opcodes."""
    return b"\x80\x02}" + tuples + b"K\x01s."


DEEP, WIDE = b")" + b"\x85" * (DEEPEST - 1), b"(" + b"K\x00" * LARGEST + b"t"


@pytest.mark.parametrize("tuples", [DEEP + b"\x85", WIDE + b"\x85"])
def test_keys_of_more_or_deeper_tuples_are_refused(tuples: bytes, tmp_path: Path) -> None:
    """Their hash takes time for each repetition, and depth on the stack."""
    path = tmp_path / ".metadata"
    for key in (DEEP, WIDE):
        unpickled(keyed(key))
    with pytest.raises(pickle.UnpicklingError, match="tuples of depth"):
        unpickled(keyed(tuples))
    path.write_bytes(keyed(tuples))
    with pytest.raises(BadValueError) as error:
        contents(tmp_path)
    assert str(error.value) == (
        f"{str(path)!r} is not the metadata of torch.distributed.checkpoint; it is corrupt, "
        "truncated, or a file of another kind"
    )


def test_a_missing_state_is_refused(tmp_path: Path) -> None:
    folder = copied("dcp/fsdp2", tmp_path)

    def without(metadata) -> None:
        del metadata.state_dict_metadata["optim.state.2.bias.exp_avg_sq"]

    rewritten(folder, without)
    refused(
        folder,
        f"{str(folder)!r} has no 'exp_avg_sq' of '2.bias'; other parameters of its group have this "
        "state",
    )


def test_pipes_and_devices_are_refused(tmp_path: Path) -> None:
    folder = copied("dcp/fsdp2", tmp_path)
    last = folder / "__1_0.distcp"
    for path, message in (
        (last, "; the metadata says that a part of 'optim.state.2.bias.exp_avg_sq' is in it"),
        (folder / ".metadata", ""),
    ):
        path.unlink()
        os.mkfifo(path)
        refused(folder, f"{str(path)!r} cannot be read (it is not a regular file){message}")
        path.unlink()
        path.symlink_to("/dev/zero")
        refused(folder, f"{str(path)!r} cannot be read (it is not a regular file){message}")
        shutil.copy(HERE / "dcp/fsdp2" / path.name, tmp_path)
        path.unlink()
        (tmp_path / path.name).rename(path)


def test_chunks_that_would_run_code_are_refused(tmp_path: Path) -> None:
    folder = copied("dcp/fsdp2", tmp_path)
    (chunk, _) = contents(folder).tensors["optim.state.0.weight.exp_avg"].chunks
    torch.save({"tensor": Outside()}, tmp_path / "hostile.pt")
    content = (tmp_path / "hostile.pt").read_bytes()
    assert len(content) <= chunk.part.length
    with chunk.part.path.open("r+b") as file:
        file.seek(chunk.part.start)
        file.write(content)

    def shorter(metadata) -> None:
        for index, info in metadata.storage_data.items():
            if index.fqn == "optim.state.0.weight.exp_avg" and info.offset == chunk.part.start:
                info.length = len(content)

    rewritten(folder, shorter)
    refused(
        folder,
        f"{str(chunk.part.path)!r} would have to run code to load ({NAME}); save the optimizer's "
        "state_dict() with plain tensors and numbers",
        reads=True,
    )


def test_files_outside_the_folder_are_refused(tmp_path: Path) -> None:
    folder = copied("dcp/fsdp2", tmp_path)

    def outside(metadata) -> None:
        next(iter(metadata.storage_data.values())).relative_path = "../other.distcp"

    rewritten(folder, outside)
    refused(
        folder,
        f"{str(folder / '.metadata')!r} names the file '../other.distcp', which is not in its "
        "folder",
    )


def test_metadata_of_another_world_size_is_refused(tmp_path: Path) -> None:
    folder = copied("dcp/fsdp2", tmp_path)
    rewritten(folder, lambda m: m.state_dict_metadata["optim.state.0.bias.exp_avg"].chunks.pop())
    refused(
        folder,
        f"{str(folder / '.metadata')!r} has chunks of 3 elements for 'optim.state.0.bias.exp_avg' "
        "of shape (5,); the chunks must make up the tensor",
    )
    shutil.copy(HERE / "dcp/fsdp1-full/.metadata", folder)
    (folder / "__1_0.distcp").write_bytes(bytes(10**5))
    (folder / "__0_0.distcp").write_bytes(bytes(10**5))
    refused(
        folder,
        f"{str(folder / '__0_0.distcp')!r} is not a checkpoint that torch can load; it is corrupt, "
        "truncated, or a file of another kind",
    )


def test_chunks_that_overlap_are_refused(tmp_path: Path) -> None:
    folder = copied("dcp/fsdp2", tmp_path)
    key = "optim.state.0.weight.exp_avg"
    moved = torch.Size([1, 0])

    def overlapping(metadata) -> None:  # of the right size, but nothing is left for the last row
        entry = metadata.state_dict_metadata[key]
        size = entry.chunks[0].sizes[0]
        entry.size = torch.Size([2 * size, entry.size[1]])
        entry.chunks[1].sizes = entry.chunks[0].sizes
        entry.chunks[1].offsets = moved
        (index,) = [i for i in metadata.storage_data if i.fqn == key and any(i.offset)]
        info = metadata.storage_data.pop(index)
        metadata.storage_data[dataclasses.replace(index, offset=moved)] = info

    rewritten(folder, overlapping)
    refused(
        folder,
        f"{str(folder / '.metadata')!r} has chunks of 36 elements for {key!r} of shape (6, 6); the "
        "chunks must make up the tensor",
    )


def test_chunks_of_another_shape_are_refused(tmp_path: Path) -> None:
    folder = copied("dcp/fsdp2", tmp_path)
    stored = contents(folder)
    place = stored.tensors["optim.state.0.weight.exp_avg"].chunks[0].part
    shorter = stored.tensors["optim.state.0.bias.exp_avg"].chunks[0].part

    def swapped(metadata) -> None:
        for index, info in metadata.storage_data.items():
            if index.fqn == "optim.state.0.weight.exp_avg" and info.offset == place.start:
                info.offset, info.length = shorter.start, shorter.length

    rewritten(folder, swapped)
    refused(
        folder,
        f"{str(place.path)!r} has (3,) at byte {shorter.start}, where the metadata says that "
        "'optim.state.0.weight.exp_avg' has a chunk of shape (3, 6)",
        reads=True,
    )


def test_files_of_two_steps_are_refused(tmp_path: Path) -> None:
    layers = nn.Sequential(*(nn.Linear(3, 3) for _ in range(4)))
    optimizer = torch.optim.AdamW(layers.parameters())
    for step in (1, 2):
        layers(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        folder = tmp_path / f"step-{step}"
        writer = dcp.FileSystemWriter(folder, thread_count=2)
        state = {"optimizer": get_optimizer_state_dict(layers, optimizer)}
        dcp.save(state, storage_writer=writer, no_dist=True)
    assert load(tmp_path / "step-1").step == 1
    old, new = sorted((tmp_path / "step-2").glob("*.distcp"))
    shutil.copy(tmp_path / "step-1" / new.name, new)
    stored = contents(tmp_path / "step-2")
    files = [t.chunks[0].part.path for k, t in stored.tensors.items() if k.endswith(".step")]
    assert files.count(old) > 1 < files.count(new)
    first, odd = (old, new) if files[0] == old else (new, old)
    refused(
        tmp_path / "step-2",
        f"{str(odd)!r} is of step {2 - (odd == new)}, but {first.name!r} is of step "
        f"{2 - (first == new)}; files of two checkpoints are mixed",
    )


def test_checkpoints_without_an_optimizer_are_refused(tmp_path: Path) -> None:
    dcp.save({"model": nn.Linear(2, 2).state_dict()}, checkpoint_id=tmp_path, no_dist=True)
    refused(
        tmp_path,
        f"{str(tmp_path)!r} must hold an optimizer state_dict ('state' and 'param_groups'), but "
        "holds model.weight, model.bias",
    )


def test_shards_of_one_process_are_distinguished_from_a_file_without_states(tmp_path: Path) -> None:
    path = tmp_path / "rank0.pt"
    dist.init_process_group("fake", store=fake.FakeStore(), rank=1, world_size=2)
    try:
        mesh = init_device_mesh("cpu", (2,))
        state = {"exp_avg": distribute_tensor(torch.ones(4), mesh, [Shard(0)])}
        torch.save({"state": {0: state}, "param_groups": [{"params": [0]}]}, path)
        with pytest.raises(CaptureError) as caught:
            load(path)
    finally:
        dist.destroy_process_group()
    assert str(caught.value) == (
        f"{str(path)!r} is an optimizer checkpoint whose states are of types that are not read, "
        "such as group0.param0: exp_avg (DTensor); of shards of one process, save with "
        "torch.distributed.checkpoint, or gather the state_dict by get_optimizer_state_dict with "
        "full_state_dict=True"
    )
