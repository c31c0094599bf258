"""DeepSpeed's ZeRO 1, 2 and 3: its own checkpoints, and missing or mixed files."""

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from qmaps.algebra.quantizer import quantizer
from qmaps.algebra.saved import to_plain
from qmaps.capture import load
from qmaps.capture.readers import zero
from qmaps.capture.readers.zero import STAND_INS
from qmaps.errors import BadValueError, CaptureError, one_line
from qmaps.storage import checkpoint
from tests.capture.fixtures import HERE, PARAMETERS, copied, expect
from tests.outside import CALLS, NAME, Outside

PLAIN = ("zero1", "zero1-bf16", "zero2", "zero2-round-robin", "zero3", "zero3-sub-groups")
BITSANDBYTES = ("zero2-bitsandbytes", "zero3-bitsandbytes")


@pytest.mark.parametrize("name", [*PLAIN, *BITSANDBYTES])
def test_stages(name: str) -> None:
    states = load(HERE / "deepspeed" / name)
    expect(states, f"deepspeed/{name}")
    assert states.parameters() == PARAMETERS
    assert (states.step, states.skipped, states.naming) == (3, [], "the checkpoint")
    decay = [states.hyperparameters(name)["weight_decay"] for name in PARAMETERS]
    assert decay == [0.01, 0.01, 0.0, 0.0]
    assert [states.eps(name) for name in PARAMETERS] == [1e-6] * 4
    assert load(HERE / "deepspeed" / name / "global_step3").fingerprint() == states.fingerprint()


@pytest.mark.parametrize("name", BITSANDBYTES)
def test_partitions_of_bitsandbytes_have_8_bits(name: str) -> None:
    path = next((HERE / "deepspeed" / name).glob("*/*_optim_states.pt"))
    loaded = raw(path)
    inner = loaded.get("base_optimizer_state") or loaded["optimizer_state_dict"]
    assert inner["state"][0]["__bnb_optimizer_quant_state__"]["state1"].dtype == torch.uint8


def raw(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = checkpoint.load(path, stand_ins=STAND_INS)["optimizer_state_dict"]
    return loaded


def test_versions_that_do_not_say_where_parameters_are(tmp_path: Path) -> None:
    folder = copied("deepspeed/zero1", tmp_path) / "global_step3"
    for path in folder.glob("*_optim_states.pt"):
        optimizer = raw(path)
        for name in ("param_slice_mappings", "loss_scaler", "zero_stage"):
            del optimizer[name]
        torch.save({"optimizer_state_dict": optimizer}, path)
    expect(load(folder), "deepspeed/zero1")


def test_options_that_count_the_steps_of_a_group(tmp_path: Path) -> None:
    folder = copied("deepspeed/zero3", tmp_path) / "global_step3"
    for path in folder.glob("*_optim_states.pt"):
        optimizer = raw(path)
        for state in optimizer["optimizer_state_dict"]["state"].values():
            del state["step"]
        for group in optimizer["optimizer_state_dict"]["param_groups"]:
            group["step"] = 7
        remaining = {k: v for k, v in optimizer.items() if k not in ("loss_scaler", "zero_stage")}
        torch.save({"optimizer_state_dict": remaining}, path)
    assert load(folder).step == 7


def test_states_that_are_no_flat_tensors_are_skipped(tmp_path: Path) -> None:
    folder = copied("deepspeed/zero3", tmp_path) / "global_step3"
    for path in folder.glob("*_optim_states.pt"):
        optimizer = raw(path)
        optimizer["optimizer_state_dict"]["state"][1]["worker_error"] = torch.zeros(2)
        remaining = {k: v for k, v in optimizer.items() if k not in ("loss_scaler", "zero_stage")}
        torch.save({"optimizer_state_dict": remaining}, path)
    states = load(folder)
    expect(states, "deepspeed/zero3")
    assert states.skipped == [f"{name}: worker_error (Other)" for name in PARAMETERS[2:]]


def refused(folder: Path, message: str, *, reads: bool = False) -> None:
    """Loading fails with this message; with `reads`, reading the tensors does."""
    states = load(folder) if reads else None
    with pytest.raises(CaptureError, match=f"^{re.escape(message)}$"):
        load(folder) if states is None else list(states.items())


@pytest.mark.parametrize("name", ["zero1", "zero3"])
def test_missing_ranks_are_refused(name: str, tmp_path: Path) -> None:
    folder = copied(f"deepspeed/{name}", tmp_path) / "global_step3"
    first, second = sorted(folder.glob("*_optim_states.pt"))
    content = second.read_bytes()
    prefix = f"{str(folder)!r} has files of the data-parallel ranks"
    for number, (missing, present) in enumerate(((first, second), (second, first))):
        saved = missing.read_bytes()
        missing.unlink()
        refused(folder, f"{prefix} {1 - number}; {present.name!r} was written by 2")
        missing.write_bytes(saved)
    third = folder / second.name.replace("rank_1", "rank_2")
    third.write_bytes(content)
    refused(folder, f"{prefix} 0, 1, 2; {first.name!r} was written by 2")
    third.unlink()
    model = next(folder.glob("*model_states.pt"))
    for weights in folder.glob("*model_states.pt"):
        weights.unlink()
    if name == "zero1":
        refused(folder, f"{str(model)!r} cannot be read (No such file or directory)")


def test_files_of_two_steps_are_refused(tmp_path: Path) -> None:
    folder = copied("deepspeed/zero1", tmp_path) / "global_step3"
    first, second = sorted(folder.glob("*_optim_states.pt"))
    shutil.copy(HERE / "deepspeed/zero1-later/global_step5" / second.name, folder)
    refused(
        folder,
        f"{str(second)!r} is of step 5.0, but {first.name!r} is of step 3.0; files of two "
        "checkpoints are mixed",
    )
    shutil.copy(folder / first.name, folder / f"bf16_{first.name}")
    refused(
        folder,
        f"{str(first)!r} and 'bf16_{first.name}' are both of rank 0; files of two checkpoints are "
        "mixed",
    )


def swapped(first: Path, second: Path) -> None:
    first.rename(first.with_name("kept"))
    second.rename(first)
    first.with_name("kept").rename(second)


@pytest.mark.parametrize("name", ["zero1", "zero1-bf16", "zero2", "zero2-bitsandbytes"])
def test_files_of_two_ranks_that_are_swapped_are_refused(name: str, tmp_path: Path) -> None:
    folder = copied(f"deepspeed/{name}", tmp_path) / "global_step3"
    first, second = sorted(folder.glob("*_optim_states.pt"))
    swapped(first, second)
    refused(
        folder,
        one_line(
            f"{str(first)!r} has other weights of '0.weight' than 'mp_rank_00_model_states.pt'; "
            "files are mixed or swapped, or the weights were changed after the last step"
        ),
    )


@pytest.mark.parametrize("name", ["zero3", "zero3-bitsandbytes", "zero3-sub-groups"])
def test_files_of_zero_3_that_are_swapped_or_copied_are_refused(name: str, tmp_path: Path) -> None:
    """They have no weights to compare, but archives keep torch's names of the files."""
    folder = copied(f"deepspeed/{name}", tmp_path) / "global_step3"
    first, second = sorted(folder.glob("*_optim_states.pt"))
    swapped(first, second)
    for place, written in ((first, second), (second, first)):
        refused(
            folder,
            f"{str(place)!r} was written as {written.name!r}; files were renamed, mixed or swapped",
        )
        shutil.copy(HERE / "deepspeed" / name / "global_step3" / place.name, place)
    load(folder)
    saved = {"optimizer_state_dict": plain(raw(second))}
    with second.open("wb") as file:  # its archive has no name
        torch.save(saved, file)
    load(folder)


def plain(optimizer: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in optimizer.items() if k not in ("loss_scaler", "zero_stage")}


@pytest.mark.parametrize("name", ["zero1", "zero3"])
@pytest.mark.parametrize("ranks", [(0,), (1,), (0, 1)])
def test_a_number_in_place_of_a_tensor_is_refused(
    name: str, ranks: tuple[int, ...], tmp_path: Path
) -> None:
    folder = copied(f"deepspeed/{name}", tmp_path) / "global_step3"
    paths = sorted(folder.glob("*_optim_states.pt"))
    for rank in ranks:
        saved = plain(raw(paths[rank]))
        slices = saved.pop("param_slice_mappings", None)  # torch.load refuses its class
        inner = saved.get("base_optimizer_state") or saved["optimizer_state_dict"]
        inner["state"][0]["exp_avg"] = 0.5
        torch.save({"optimizer_state_dict": saved}, paths[rank])
    if slices is not None:
        for path in paths:
            saved = plain(raw(path))
            saved.pop("param_slice_mappings", None)
            torch.save({"optimizer_state_dict": saved}, path)
    refused(
        folder, f"{str(paths[ranks[0]])!r} has exp_avg of '0.weight' as float; expected a tensor"
    )


def test_weights_that_are_not_finite_are_compared(tmp_path: Path) -> None:
    folder = copied("deepspeed/zero1", tmp_path) / "global_step3"
    for path in [*folder.glob("*.pt")]:
        saved = checkpoint.load(path, stand_ins=STAND_INS)
        if "module" in saved:
            saved["module"]["0.bias"].detach().fill_(torch.nan)
        else:
            saved = {"optimizer_state_dict": raw(path)}
            for key in ("loss_scaler", "zero_stage", "param_slice_mappings"):
                saved["optimizer_state_dict"].pop(key)
            masters = saved["optimizer_state_dict"]["single_partition_of_fp32_groups"][1].detach()
            masters[: 4 if "rank_0_" in path.name else 1] = torch.nan
        torch.save(saved, path)
    expect(load(folder), "deepspeed/zero1")


def test_files_of_two_world_sizes_are_refused(tmp_path: Path) -> None:
    folder = copied("deepspeed/zero3", tmp_path) / "global_step3"
    first, second = sorted(folder.glob("*_optim_states.pt"))
    optimizer = raw(second)
    remaining = {k: v for k, v in optimizer.items() if k not in ("loss_scaler", "zero_stage")}
    torch.save({"optimizer_state_dict": {**remaining, "partition_count": 4}}, second)
    refused(
        folder,
        f"{str(second)!r} is written by 4 ranks, but {first.name!r} is written by 2 ranks; files "
        "of two checkpoints are mixed",
    )


def test_a_model_of_another_training_is_refused(tmp_path: Path) -> None:
    folder = copied("deepspeed/zero3", tmp_path) / "global_step3"
    for path in (HERE / "deepspeed/zero3-sub-groups/global_step3").glob("*model_states.pt"):
        shutil.copy(path, folder)
    path = folder / "zero_pp_rank_0_mp_rank_00_optim_states.pt"
    refused(
        folder,
        f"{str(path)!r} has 2 flat tensors, but the model's file has the parameters of 3",
    )
    wider = HERE / "deepspeed/zero2-bitsandbytes/global_step3/mp_rank_00_model_states.pt"
    shutil.copy(wider, folder)
    refused(
        folder,
        f"{str(path)!r} has 23 elements in flat tensor 0, but the parameters of the model's file "
        "take 302",
    )
    folder = copied("deepspeed/zero2", tmp_path) / "global_step3"
    shutil.copy(wider, folder)
    refused(
        folder,
        f"{str(folder)!r}: the ranks have 30 elements of '0.weight', but the model's file says "
        "that its shape is (67, 6)",
    )


def test_a_smaller_model_is_refused(tmp_path: Path) -> None:
    folder = copied("deepspeed/zero2", tmp_path) / "global_step3"
    path = folder / "mp_rank_00_model_states.pt"
    shapes = [{"0.weight": torch.Size([4, 6]), "2.weight": torch.Size([3, 5])}, {}]
    shapes[1] = {"0.bias": torch.Size([5]), "2.bias": torch.Size([3])}
    torch.save({"param_shapes": shapes}, path)
    refused(
        folder,
        f"{str(folder)!r}: the ranks have 30 elements of '0.weight', but the model's file says "
        "that its shape is (4, 6)",
    )


def test_files_of_two_optimizers_are_refused(tmp_path: Path) -> None:
    folder = copied("deepspeed/zero2-round-robin", tmp_path) / "global_step3"
    first, second = sorted(folder.glob("*_optim_states.pt"))
    shutil.copy(HERE / "deepspeed/zero2-bitsandbytes/global_step3" / second.name, folder)
    refused(
        folder,
        f"{str(second)!r} has other states than {first.name!r}; files of two checkpoints are mixed",
    )


@pytest.mark.parametrize("name", ["..", "../zero2/global_step3", "global\0step3", "", "x" * 999])
def test_latest_names_a_folder_beside_it(name: str, tmp_path: Path) -> None:
    folder = copied("deepspeed/zero2", tmp_path)
    shutil.copytree(folder / "global_step3", tmp_path, dirs_exist_ok=True)
    (folder / "latest").write_text(name)
    refused(
        folder,
        f"{str(folder)!r} holds no captured steps (step-*.safetensors), and no checkpoint of a "
        "known format",
    )


@pytest.mark.parametrize(
    "place", ["latest", "global_step3/zero_pp_rank_0_mp_rank_00_model_states.pt"]
)
def test_pipes_and_devices_are_refused(place: str, tmp_path: Path) -> None:
    path = copied("deepspeed/zero3", tmp_path) / place
    for number in range(2):
        path.unlink()
        if number:
            path.symlink_to("/dev/zero")
        else:
            os.mkfifo(path)
        with pytest.raises(CaptureError, match=r"holds no captured steps|is not a regular file"):
            load(tmp_path / "zero3")


def test_truncated_and_damaged_files_are_refused(tmp_path: Path) -> None:
    folder = copied("deepspeed/zero2", tmp_path) / "global_step3"
    path = sorted(folder.glob("*_optim_states.pt"))[1]
    message = (
        f"{str(path)!r} is not a checkpoint that torch can load; it is corrupt, truncated, or a "
        "file of another kind"
    )
    content = path.read_bytes()
    for length in (1, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        refused(folder, message)
    path.write_bytes(b"")
    refused(folder, f"{str(path)!r} is empty")
    flipped = bytearray(content)
    values = raw(HERE / "deepspeed/zero2/global_step3" / path.name)["base_optimizer_state"]
    flipped[content.index(values["state"][0]["exp_avg"].numpy().tobytes())] ^= 1
    path.write_bytes(flipped)
    refused(folder, message)


def test_large_tensors_are_verified_when_they_are_read(tmp_path: Path) -> None:
    folder = copied("deepspeed/zero3", tmp_path) / "global_step3"
    for path in folder.glob("*model_states.pt"):
        shapes = [{"0.weight": torch.Size([300, 500])}, {"0.bias": torch.Size([8])}]
        torch.save({"param_shapes": shapes}, path)
    for path in sorted(folder.glob("*_optim_states.pt")):
        state = {
            number: {"step": torch.tensor(3.0), "exp_avg": torch.full((size,), 0.7)}
            for number, size in enumerate((75000, 4))
        }
        groups = [{"params": [0]}, {"params": [1]}]
        optimizer = {
            "partition_count": 2,
            "fp32_flat_groups": [entry["exp_avg"] for entry in state.values()],
            "optimizer_state_dict": {"state": state, "param_groups": groups},
        }
        torch.save({"optimizer_state_dict": optimizer}, path)
    assert load(folder).tensor("0.weight", "exp_avg").eq(torch.tensor(0.7)).all()
    content = bytearray(path.read_bytes())
    content[150000] ^= 1
    path.write_bytes(content)
    refused(
        folder,
        f"{str(path)!r} is not a checkpoint that torch can load; it is corrupt, truncated, or a "
        "file of another kind",
        reads=True,
    )


def test_files_that_would_run_code_are_refused(tmp_path: Path) -> None:
    folder = copied("deepspeed/zero2", tmp_path) / "global_step3"
    path = sorted(folder.glob("*_optim_states.pt"))[1]
    torch.save({"optimizer_state_dict": raw(path) | {"loss_scaler": Outside()}}, path)
    refused(
        folder,
        f"{str(path)!r} would have to run code to load ({NAME}); save the optimizer's state_dict() "
        "with plain tensors and numbers",
    )
    assert not CALLS


def test_other_objects_are_refused(tmp_path: Path) -> None:
    folder = copied("deepspeed/zero2", tmp_path) / "global_step3"
    path = sorted(folder.glob("*_optim_states.pt"))[1]
    torch.save({"optimizer_state_dict": {"fp32_flat_groups": []}}, path)
    refused(
        folder,
        f"{str(path)!r} does not hold the optimizer states of ZeRO 1, 2 or 3 as a rank of "
        "DeepSpeed saves them",
    )
    torch.save([1, 2], path)
    refused(folder, f"{str(path)!r} holds a list; expected a dict")


@pytest.mark.parametrize("name", ["zero1", "zero3"])
def test_no_states_before_the_first_step(name: str, tmp_path: Path) -> None:
    folder = copied(f"deepspeed/{name}", tmp_path) / "global_step3"
    for path in folder.glob("*_optim_states.pt"):
        optimizer = raw(path)
        (optimizer.get("base_optimizer_state") or optimizer["optimizer_state_dict"])["state"] = {}
        for key in ("param_slice_mappings", "loss_scaler", "zero_stage"):
            optimizer.pop(key, None)
        torch.save({"optimizer_state_dict": optimizer}, path)
    path = folder / "zero_pp_rank_0_mp_rank_00_optim_states.pt"
    refused(folder, f"{str(path)!r} holds no states; it was saved before the first step")


def test_a_step_cannot_be_asked_for() -> None:
    folder = HERE / "deepspeed/zero1"
    message = f"step=3 needs a folder of captures; {str(folder)!r} is one checkpoint"
    with pytest.raises(BadValueError, match=f"^{re.escape(message)}$"):
        load(folder, step=3)


def test_flat_tensors_that_qmaps_quantized_are_decoded() -> None:
    t = quantizer("B64/DE@4s").quantize(torch.linspace(-1, 1, 300))
    rank = zero.Rank(Path("rank"), {}, {0: {"exp_avg": to_plain(t), "step": 3}}, [])
    flat = rank.flats[0]["exp_avg"]
    assert (flat.shape, flat.quantized) == ((300,), True)
    assert torch.equal(flat.read(), t.dequantize())
