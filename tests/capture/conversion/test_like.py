"""States written back into checkpoints of DeepSpeed, Megatron-core and torch."""

import os
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from qmaps.capture import CapturedStates, load
from qmaps.capture.conversion import convert_file
from qmaps.capture.readers.zero import STAND_INS
from qmaps.capture.recorder import write
from qmaps.errors import BadValueError, CaptureError, OutputError, QmapsError
from qmaps.storage import checkpoint
from tests.capture.fixtures import HERE, PARAMETERS, copied, expect

pytestmark = pytest.mark.slow

ZERO = ("zero1", "zero1-bf16", "zero2", "zero2-round-robin", "zero3", "zero3-sub-groups")
UNIVERSAL = ("zero1-universal", "zero3-universal")
DCP = ("fsdp1-full", "fsdp1-sharded", "fsdp2", "fsdp2-flattened", "plain")
ALL = [f"deepspeed/{name}" for name in (*ZERO, *UNIVERSAL)]
ALL += [f"dcp/{name}" for name in (*DCP, "fsdp2-tensor-parallel")]
ALL += [f"megatron/{name}" for name in ("fully_reshardable", "tensor-parallel", "pipeline")]
ALL += ["megatron/fully_reshardable-0.19"]

CODES = {"exp_avg": "B64/DE@8s", "exp_avg_sq": "B64/DE-0@8u"}


def files(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    results = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    results.pop(
        "expected.pt", None
    )  # of the fixtures' script, and copied only with the whole folder
    return results


def same(actual: CapturedStates, expected: CapturedStates) -> bool:
    assert actual.parameters() == expected.parameters()
    return all(
        tensor.equal(expected.tensor(name, state))
        and actual.scalars(name) == expected.scalars(name)
        for name, state, tensor in actual.items()
    )


@pytest.mark.parametrize("name", ALL)
def test_there_and_back_byte_for_byte(name: str, tmp_path: Path) -> None:
    convert_file(HERE / name, tmp_path / "ours.pt", to="torch")
    (report,) = convert_file(tmp_path / "ours.pt", tmp_path / "back", to="torch", like=HERE / name)
    assert (report.lossless, report.notes) == (True, ())
    assert files(tmp_path / "back") == files(HERE / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "ours.pt"]


def test_a_pipe_in_a_template_is_refused(tmp_path: Path) -> None:
    template = copied("deepspeed/zero1", tmp_path)
    convert_file(template, tmp_path / "ours.pt", to="torch")
    pipe = template / "global_step3" / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(CaptureError) as caught:
        convert_file(tmp_path / "ours.pt", tmp_path / "out", to="torch", like=template)
    assert str(caught.value) == f"{str(pipe)!r} cannot be read (it is not a regular file)"
    assert not (tmp_path / "out").exists()


def later(source: Path, out: Path, step: float = 700) -> Path:
    """The checkpoint of a quantized run at a later step, with other values."""
    convert_file(source, out, to="qmaps", states=CODES)
    state_dict = torch.load(out, weights_only=True)
    for number, state in enumerate(state_dict["state"].values()):
        state["step"] = torch.tensor(step)
        for name in CODES:
            value = state[name]
            if isinstance(value, Tensor):  # too small to be quantized
                value.add_(number + 1)
            else:
                value["scales"] = {at: x * (number + 2) for at, x in value["scales"].items()}
    torch.save(state_dict, out)
    return out


def tensors(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
    if isinstance(value, (list, tuple)):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        for key, member in value.items():
            yield from tensors(member, (*path, key))


def contents(path: Path) -> dict[tuple[Any, ...], Tensor]:
    return dict(tensors(checkpoint.load(path, stand_ins=STAND_INS)))


@pytest.mark.parametrize("name", ALL)
def test_quantized_states_are_decoded(name: str, tmp_path: Path) -> None:
    ours = later(HERE / name, tmp_path / "ours.pt")
    convert_file(ours, tmp_path / "back", to="torch", like=HERE / name)
    states, before = load(tmp_path / "back"), load(HERE / name)
    assert same(load(ours), states)
    assert states.step == 700
    changed = [not t.equal(before.tensor(p, s)) for p, s, t in states.items()]
    assert all(changed)
    old, new = files(HERE / name), files(tmp_path / "back")
    assert old.keys() == new.keys()
    assert all(len(old[file]) == len(new[file]) for file in old if file != "common.pt")


@pytest.mark.parametrize("name", ZERO)
def test_all_else_in_files_of_deepspeed_stays(name: str, tmp_path: Path) -> None:
    source = HERE / "deepspeed" / name
    ours = later(source, tmp_path / "ours.pt")
    convert_file(ours, tmp_path / "back", to="torch", like=source / "global_step3")
    for path in (tmp_path / "back").iterdir():
        template = source / "global_step3" / path.name
        if not path.name.endswith("optim_states.pt"):
            assert path.read_bytes() == template.read_bytes()
            continue
        with zipfile.ZipFile(path) as new, zipfile.ZipFile(template) as old:
            pickles = [file.read(f"{path.stem}/data.pkl") for file in (new, old)]
        assert pickles[0] == pickles[1]  # with objects of deepspeed's own classes
        before, after = contents(path), contents(template)
        changed = {key[-1] for key in before if not before[key].equal(after[key])}
        assert changed == {"step", "exp_avg", "exp_avg_sq"}
        weights = [key for key in before if key[-1] not in changed]
        assert len(weights) == len(after) - 3 * len([key for key in after if key[-1] == "step"]) > 0


def test_padding_stays(tmp_path: Path) -> None:
    source = HERE / "deepspeed/zero3"
    convert_file(later(source, tmp_path / "o.pt"), tmp_path / "out", to="torch", like=source)
    # Two parameters of 30 and 15 elements are cut in 15 and 8 for each rank.
    path = tmp_path / "out/global_step3/zero_pp_rank_1_mp_rank_00_optim_states.pt"
    state = contents(path)["optimizer_state_dict", "optimizer_state_dict", "state", 0, "exp_avg"]
    assert (state.numel(), state[-1]) == (23, 0)
    assert all(state[:22])


def test_the_newest_checkpoint_of_several_is_the_template(tmp_path: Path) -> None:
    several = copied("deepspeed/zero1", tmp_path / "several")
    shutil.copytree(HERE / "deepspeed/zero1-later/global_step5", several / "global_step5")
    ours = later(several, tmp_path / "ours.pt")
    convert_file(ours, tmp_path / "out", to="torch", like=several)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["global_step3", "latest"]
    assert same(load(ours), load(tmp_path / "out"))
    iteration = tmp_path / "megatron/iter_0000003"
    shutil.copytree(HERE / "megatron/fully_reshardable", iteration)
    (tmp_path / "megatron/latest_checkpointed_iteration.txt").write_text("3")
    ours = later(iteration, tmp_path / "others.pt")
    convert_file(ours, tmp_path / "back", to="torch", like=tmp_path / "megatron")
    assert same(load(ours), load(tmp_path / "back"))
    assert (tmp_path / "back/iter_0000003/common.pt").exists()


def with_numbers(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the state of the optimizer of a checkpoint of ZeRO 3."""
    for path in folder.glob("*_optim_states.pt"):
        loaded = checkpoint.load(path, stand_ins=STAND_INS)["optimizer_state_dict"]
        change(loaded["optimizer_state_dict"])
        optimizer = {k: v for k, v in loaded.items() if k not in ("loss_scaler", "zero_stage")}
        torch.save({"optimizer_state_dict": optimizer}, path)


def in_states(optimizer: dict[str, Any]) -> None:
    for state in optimizer["state"].values():  # as DeepSpeedCPUAdam counts
        state["step"] = 3


def in_groups(optimizer: dict[str, Any]) -> None:
    for state in optimizer["state"].values():
        del state["step"]
    for group in optimizer["param_groups"]:  # as FusedAdam counts
        group["step"] = 3


@pytest.mark.parametrize("change", [in_states, in_groups])
def test_steps_that_are_numbers_in_the_pickle(
    change: Callable[[dict[str, Any]], None], tmp_path: Path
) -> None:
    folder = copied("deepspeed/zero3", tmp_path) / "global_step3"
    with_numbers(folder, change)
    ours = later(folder, tmp_path / "ours.pt", 70_000)
    convert_file(ours, tmp_path / "out", to="torch", like=folder)
    assert load(tmp_path / "out").step == 70_000
    assert same(load(ours), load(tmp_path / "out"))
    path = next((tmp_path / "out").glob("*_optim_states.pt"))
    optimizer = torch.load(path, weights_only=True)["optimizer_state_dict"]["optimizer_state_dict"]
    every = [*optimizer["state"].values(), *optimizer["param_groups"]]
    assert {type(state["step"]) for state in every if "step" in state} == {int}


def captured(ours: Path, folder: Path) -> Path:
    return write(load(ours), folder)


def test_captured_states(tmp_path: Path) -> None:
    source = HERE / "deepspeed/zero2"
    ours = later(source, tmp_path / "ours.pt")
    snapshot = captured(ours, tmp_path / "states")
    for number, path in enumerate((tmp_path / "states", snapshot)):
        out = tmp_path / f"out{number}"
        convert_file(path, out, to="torch", like=source)
        assert same(load(ours), load(out))


def test_states_that_are_left_out_are_noted(tmp_path: Path) -> None:
    source = HERE / "deepspeed/zero2"
    states = torch.load(later(source, tmp_path / "ours.pt"))
    first = next(iter(states["state"].values()))
    first["mask"] = torch.ones(5, dtype=torch.int32)
    torch.save(states, tmp_path / "ours.pt")
    captured(tmp_path / "ours.pt", tmp_path / "states")
    (report,) = convert_file(tmp_path / "states", tmp_path / "out", to="torch", like=source)
    assert report.notes[-1].startswith("states of integers or booleans are left out")
    assert report.notes[-1].endswith(": mask (int32)")


def test_states_of_the_template_are_rounded_to_its_dtype(tmp_path: Path) -> None:
    folder = copied("deepspeed/zero1-universal", tmp_path)
    for path in folder.rglob("exp_avg.pt"):
        loaded = torch.load(path, weights_only=True)
        torch.save({**loaded, "param": loaded["param"].bfloat16()}, path)
    ours = tmp_path / "ours.pt"
    convert_file(HERE / "deepspeed/zero1", ours, to="torch")
    (report,) = convert_file(ours, tmp_path / "out", to="torch", like=folder)
    name = folder.name
    assert report.notes == (f"exp_avg is rounded to bfloat16, as {name} has it",)
    actual, exact = load(tmp_path / "out"), load(ours)
    for parameter in PARAMETERS:
        first = exact.tensor(parameter, "exp_avg").bfloat16().float()
        assert actual.tensor(parameter, "exp_avg").equal(first)
        second = exact.tensor(parameter, "exp_avg_sq")
        assert actual.tensor(parameter, "exp_avg_sq").equal(second)


def test_between_formats(tmp_path: Path) -> None:
    """States of ZeRO 3 in shards of ZeRO 2, with other partitions."""
    like = HERE / "deepspeed/zero2-round-robin"
    convert_file(HERE / "deepspeed/zero3", tmp_path / "out", to="torch", like=like)
    expect(load(tmp_path / "out"), "deepspeed/zero3")


def refused(
    error: type[QmapsError], message: str, source: Path, like: Path, out: Path, **more: Any
) -> None:
    before = sorted(out.parent.iterdir())
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        convert_file(source, out, **{"to": "torch", "like": like, **more})
    assert sorted(out.parent.iterdir()) == before


def test_arguments_that_are_refused(tmp_path: Path) -> None:
    source, out = HERE / "deepspeed/zero1", tmp_path / "out"
    for more, shown in (
        ({"to": "qmaps"}, "to='qmaps'"),
        ({"distributed": "optim"}, "distributed='optim'"),
    ):
        message = f"like={str(source)!r} needs to='torch' and no distributed; got {shown}"
        refused(BadValueError, message, source, source, out, **more)
    for like in (tmp_path, source / "expected.pt", tmp_path / "none"):
        message = (
            f"like={str(like)!r} must be the folder of a checkpoint of DeepSpeed, Megatron-core "
            "or torch.distributed.checkpoint"
        )
        refused(BadValueError, message, source, like, out)
    message = f"{str(tmp_path)!r} already exists; give another name"
    refused(OutputError, message, source, source, tmp_path, overwrite=True)
    (tmp_path / "file").write_text("")
    message = f"{str(tmp_path / 'file/out')!r} cannot be written (File exists)"
    with pytest.raises(OutputError, match=f"^{re.escape(message)}$"):
        convert_file(source, tmp_path / "file/out", to="torch", like=source)
    two = tmp_path / "two.pt"
    state_dict = {"state": {"a": {"exp_avg": torch.ones(2)}}, "param_groups": [{"params": ["a"]}]}
    torch.save([state_dict, state_dict], two)
    message = f"like={str(source)!r} needs a checkpoint of one optimizer; {str(two)!r} has 2"
    refused(BadValueError, message, two, source, out, optimizer="lion")


def test_states_of_other_parameters_are_refused(tmp_path: Path) -> None:
    like, out = HERE / "deepspeed/zero1", tmp_path / "out"
    ours = tmp_path / "ours.pt"
    convert_file(like, ours, to="torch")
    good = torch.load(ours, weights_only=True)

    def with_state(change: Callable[[dict[str, Any]], None], message: str) -> None:
        state = {name: dict(states) for name, states in good["state"].items()}
        change(state)
        torch.save({**good, "state": state}, ours)
        refused(BadValueError, message, ours, like, out)

    same_names = "like needs the same parameters by the same names"
    with_state(
        lambda state: state.pop("0.bias"),
        f"{str(like)!r} has states of '0.bias', and {str(ours)!r} has none; {same_names}",
    )
    with_state(
        lambda state: state["0.bias"].update(exp_avg=torch.zeros(6), exp_avg_sq=torch.zeros(6)),
        f"{str(ours)!r} has 'exp_avg' of '0.bias' in the shape (6,), and {str(like)!r} in (5,)",
    )
    with_state(
        lambda state: [each.update(max_exp_avg_sq=each["exp_avg_sq"]) for each in state.values()],
        f"{str(like)!r} has exp_avg, exp_avg_sq of '0.weight', and {str(ours)!r} has exp_avg, "
        "exp_avg_sq, max_exp_avg_sq; like needs the same states",
    )
    with_state(
        lambda state: [each.pop("step") for each in state.values()],
        f"{str(ours)!r}: the checkpoint has no step, neither in its states nor in its groups "
        "(step, step_count, k); the update of adam depends on it",
    )
    with_state(
        lambda state: state["0.weight"].update(step=torch.tensor(9.0)),
        f"{str(ours)!r} has '0.weight' at step 9, and others at step 3; {str(like)!r} has one for "
        "all of them",
    )
    refused(
        BadValueError,
        f"{str(HERE / 'dcp/plain')!r} has states of 'group0.param0', and {str(like)!r} has none; "
        f"{same_names}",
        HERE / "dcp/plain",
        like,
        out,
    )


def test_one_number_in_the_pickle_for_steps_that_differ(tmp_path: Path) -> None:
    folder = copied("deepspeed/zero3", tmp_path) / "global_step3"
    with_numbers(folder, in_states)
    ours = tmp_path / "ours.pt"
    convert_file(folder, ours, to="torch")
    state_dict = torch.load(ours, weights_only=True)
    for name in PARAMETERS:
        state_dict["state"][name]["step"].fill_(8 if name.endswith("bias") else 9)
    torch.save(state_dict, ours)
    message = f"{str(folder)!r} has one step for all parameters; got steps 8, 9"
    refused(BadValueError, message, ours, folder, tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "parameter", "state"),
    [
        ("deepspeed/zero2-bitsandbytes", "0.weight", "exp_avg"),
        ("deepspeed/zero3-bitsandbytes", "0.weight", "exp_avg"),
        ("dcp/bitsandbytes", "weight", "exp_avg"),
    ],
)
def test_templates_with_codes_are_refused(
    name: str, parameter: str, state: str, tmp_path: Path
) -> None:
    like = HERE / name
    convert_file(like, tmp_path / "ours.pt", to="torch")
    message = (
        f"{str(like)!r} does not hold {state!r} of {parameter!r} as numbers in floating point; "
        "like needs a checkpoint without quantized states"
    )
    refused(CaptureError, message, tmp_path / "ours.pt", like, tmp_path / "out")


def test_chunks_of_torchao_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("torchao")
    like = HERE / "dcp/fsdp2-torchao"
    convert_file(like, tmp_path / "ours.pt", to="torch")
    with pytest.raises(
        BadValueError,
        match=rf"^'{re.escape(str(like))}/__\d_0.distcp' has OptimState8bit at byte \d+; expected "
        r"a tensor of shape \(64, 64\)$",
    ):
        convert_file(tmp_path / "ours.pt", tmp_path / "out", to="torch", like=like)
    assert [path.name for path in tmp_path.iterdir()] == ["ours.pt"]


def test_damaged_templates_are_refused(tmp_path: Path) -> None:
    """The damage is in weights; conversion does not read these."""
    folder = copied("deepspeed/zero3", tmp_path) / "global_step3"
    ours = later(folder, tmp_path / "ours.pt")
    path = sorted(folder.glob("*_optim_states.pt"))[1]
    key = ("optimizer_state_dict", "fp32_flat_groups", 0)
    content = bytearray(path.read_bytes())
    content[content.index(contents(path)[key].detach().numpy().tobytes())] ^= 1
    path.write_bytes(content)
    message = (
        f"{str(path)!r} is not a checkpoint that torch can load; it is corrupt, truncated, or a "
        "file of another kind"
    )
    refused(CaptureError, message, ours, folder, tmp_path / "out")


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = shutil.copyfile

    def full(source: Path, target: Path) -> None:
        if source.name.endswith("optim_states.pt"):
            raise OSError(28, "No space left on device")
        copy(source, target)

    source = HERE / "deepspeed/zero3"
    ours = later(source, tmp_path / "ours.pt")
    monkeypatch.setattr(shutil, "copyfile", full)
    message = f"{str(tmp_path / 'out')!r} cannot be written (No space left on device)"
    refused(OutputError, message, ours, source, tmp_path / "out")


def test_files_that_may_not_be_written_are_copied(tmp_path: Path) -> None:
    folder = copied("deepspeed/zero3", tmp_path)
    ours = later(folder, tmp_path / "ours.pt")
    for path in folder.rglob("*.pt"):
        path.chmod(0o400)
    before = files(folder)
    convert_file(ours, tmp_path / "out", to="torch", like=folder)
    assert files(folder) == before
    assert same(load(ours), load(tmp_path / "out"))
    modes = {path.stat().st_mode & 0o600 for path in (tmp_path / "out").rglob("*.pt")}
    assert modes == {0o600}
