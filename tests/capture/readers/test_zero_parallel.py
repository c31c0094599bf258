"""DeepSpeed's tensor-parallel and pipeline ranks and its experts, sound and damaged."""

import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from qmaps.capture import load
from qmaps.capture.conversion import convert_file
from qmaps.capture.readers.parallel import Experts, matches
from qmaps.capture.readers.zero import STAND_INS
from qmaps.errors import CaptureError, one_line
from qmaps.storage import checkpoint
from tests.capture.fixtures import HERE, copied, expect

TENSOR = ("parallel-zero1", "parallel-zero3")
ALL = (*TENSOR, "parallel-pipeline", "parallel-experts")
EXPERT = "mixture.deepspeed_moe.experts.deepspeed_experts.{}.weight"


@pytest.mark.parametrize("name", ALL)
def test_ranks_are_put_together(name: str) -> None:
    states = load(HERE / "deepspeed" / name)
    expect(states, f"deepspeed/{name}")
    assert (states.step, states.skipped, states.naming) == (3, [], "the checkpoint")
    assert {states.eps(parameter) for parameter in states.parameters()} == {1e-6}
    for parameter in states.parameters():
        full = states.tensor(parameter, "exp_avg").flatten()
        part = states.opened(parameter, "exp_avg")
        assert torch.cat([part(0, 2), part(2, len(full))]).equal(full)


def test_groups_of_stages() -> None:
    states = load(HERE / "deepspeed/parallel-pipeline")
    decay = {name: states.hyperparameters(name)["weight_decay"] for name in states.parameters()}
    assert {decay.pop(name) for name in [*decay] if name.endswith("bias")} == {0.0}
    assert {*decay.values()} == {0.01}
    assert {*decay} == {"tied_modules.tied.weight", "2.weight", "3.weight"}


@pytest.mark.parametrize("name", ALL)
def test_written_back_byte_for_byte(name: str, tmp_path: Path) -> None:
    source = HERE / "deepspeed" / name
    convert_file(source, tmp_path / "ours.pt", to="torch")
    convert_file(tmp_path / "ours.pt", tmp_path / "back", to="torch", like=source)
    for path in source.rglob("global_step*/*.pt"):
        assert (tmp_path / "back" / path.relative_to(source)).read_bytes() == path.read_bytes()
    ours = torch.load(tmp_path / "ours.pt", weights_only=True)
    for state in ours["state"].values():
        state["exp_avg"].add_(1)
    torch.save(ours, tmp_path / "other.pt")
    convert_file(tmp_path / "other.pt", tmp_path / "there", to="torch", like=source)
    before, after = load(source), load(tmp_path / "there")
    for parameter, state, tensor in after.items():
        expected = before.tensor(parameter, state)
        assert tensor.equal(expected + 1 if state == "exp_avg" else expected)


def refused(folder: Path, message: str, *, reads: bool = False) -> None:
    """Loading fails with this message; with `reads`, reading the tensors does."""
    states = load(folder) if reads else None
    with pytest.raises(CaptureError, match=f"^{re.escape(one_line(message))}$"):
        load(folder) if states is None else list(states.items())


@pytest.mark.parametrize("name", [*TENSOR, "parallel-pipeline"])
def test_missing_and_extra_ranks_are_refused(name: str, tmp_path: Path) -> None:
    folder = copied(f"deepspeed/{name}", tmp_path) / "global_step3"
    last = folder / "zero_pp_rank_1_mp_rank_01_optim_states.pt"
    content = last.read_bytes()
    last.unlink()
    first = folder / "zero_pp_rank_0_mp_rank_01_optim_states.pt"
    prefix, zeroth = (
        f"{str(folder)!r} has files of the",
        sorted(folder.glob("*00_model_states.pt"))[0],
    )
    refused(folder, f"{prefix} data-parallel ranks 0; {first.name!r} was written by 2")
    saved = first.read_bytes()
    first.unlink()
    refused(folder, f"{prefix} model-parallel ranks 0; {zeroth.name!r} was written by 2")
    last.write_bytes(content)
    first.write_bytes(saved)
    extra = folder / "zero_pp_rank_0_mp_rank_02_optim_states.pt"
    shutil.copy(first, extra)
    model = sorted(folder.glob("*mp_rank_01_model_states.pt"))[0]
    added = folder / model.name.replace("mp_rank_01", "mp_rank_02")
    shutil.copy(model, added)
    refused(folder, f"{prefix} model-parallel ranks 0, 1, 2; {zeroth.name!r} was written by 2")
    extra.unlink()
    added.unlink()
    model.unlink()
    if name != "parallel-zero3":
        refused(folder, f"{str(model)!r} cannot be read (No such file or directory)")


def test_truncated_files_are_refused(tmp_path: Path) -> None:
    folder = copied("deepspeed/parallel-zero1", tmp_path) / "global_step3"
    for name in ("zero_pp_rank_1_mp_rank_01_optim_states.pt", "mp_rank_01_model_states.pt"):
        path = folder / name
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
        refused(
            folder,
            f"{str(path)!r} is not a checkpoint that torch can load; it is corrupt, truncated, or "
            "a file of another kind",
        )
        path.write_bytes(content)


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the content of a file of DeepSpeed, without DeepSpeed's own objects."""
    value = checkpoint.load(path, stand_ins=STAND_INS)
    change(value)
    optimizer = value.get("optimizer_state_dict", {})
    for key in ("loss_scaler", "zero_stage"):
        optimizer.pop(key, None)
    if "param_slice_mappings" in optimizer:
        optimizer.pop("param_slice_mappings")
    torch.save(value, path)


def test_files_of_two_checkpoints_are_refused(tmp_path: Path) -> None:
    folder = copied("deepspeed/parallel-zero1", tmp_path) / "global_step3"
    for rank in (0, 1):
        path = folder / f"zero_pp_rank_{rank}_mp_rank_01_optim_states.pt"

        def later(value: dict[str, Any]) -> None:
            state = value["optimizer_state_dict"]["base_optimizer_state"]["state"]
            state[0]["step"] = torch.tensor(5.0)

        edit(path, later)
    first = folder / "zero_pp_rank_0_mp_rank_01_optim_states.pt"
    refused(
        folder,
        f"{str(first)!r} is of step 5.0, but 'zero_pp_rank_0_mp_rank_00_optim_states.pt' is of "
        "step 3.0; files of two checkpoints are mixed",
    )
    folder = copied("deepspeed/parallel-zero3", tmp_path) / "global_step3"
    model = folder / "zero_pp_rank_0_mp_rank_01_model_states.pt"
    edit(model, lambda value: value.update(mp_world_size=3))
    refused(
        folder,
        f"{str(model)!r} was written by 3 model-parallel ranks, but "
        "'zero_pp_rank_0_mp_rank_00_model_states.pt' by 2; files of two checkpoints are mixed",
    )


@pytest.mark.parametrize("name", ["parallel-zero1", "parallel-pipeline"])
def test_files_of_two_ranks_that_are_swapped_are_refused(name: str, tmp_path: Path) -> None:
    folder = copied(f"deepspeed/{name}", tmp_path) / "global_step3"
    ranks = sorted(folder.glob("*_optim_states.pt"))
    contents = [path.read_bytes() for path in ranks]
    for i, j in ((0, 1), (2, 3), (0, 2), (1, 3)):  # of a column and of a row
        ranks[i].write_bytes(contents[j])
        ranks[j].write_bytes(contents[i])
        with pytest.raises(CaptureError, match=r"files are mixed or swapped"):
            load(folder)
        ranks[i].write_bytes(contents[i])
        ranks[j].write_bytes(contents[j])
    assert load(folder)


def models(folder: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """Change the files of both model-parallel ranks; return the first."""
    paths = sorted(folder.glob("mp_rank_*_model_states.pt"))
    for path in paths:
        edit(path, change)
    return paths[0]


INFO = "universal_checkpoint_info"


def test_the_cuts_of_parameters_are_required(tmp_path: Path) -> None:
    folder = copied("deepspeed/parallel-zero1", tmp_path) / "global_step3"
    for name in folder.glob("*_optim_states.pt"):
        edit(name, lambda value: value["optimizer_state_dict"].pop(INFO, None))
    model = models(folder, lambda value: value.pop(INFO))
    refused(
        folder,
        f"{str(model)!r} does not say how 'up.weight' was cut among 2 model-parallel ranks (it has "
        f"no {INFO}); make the checkpoint universal with DeepSpeed's ds_to_universal",
    )
    models(folder, lambda value: value.pop("mp_world_size"))
    refused(
        folder,
        f"{str(model)!r} does not say how many model-parallel ranks there were (mp_world_size); "
        "make the checkpoint universal with DeepSpeed's ds_to_universal",
    )


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (
            "parameter_to_average_patterns",
            ["^norm"],
            "{!r} lists 'norm.weight' in parameter_to_average_patterns; such parameters of "
            "model-parallel ranks are not read",
        ),
        (
            "autotp_unsupported_parameter_patterns",
            {"^head.bias$": "shared"},
            "{!r} lists 'head.bias' in autotp_unsupported_parameter_patterns; such parameters of "
            "model-parallel ranks are not read",
        ),
        (
            "sub_param_shard_widths",
            {},
            "{!r} does not say how the parts of 'fused.weight' were cut among model-parallel ranks "
            "(it has no sub_param_shard_widths of its dimensions)",
        ),
        (
            "parameter_with_row_parallelism_patterns",
            [],
            "{!r} says that 'down.weight' has the shape (5, 8), but its slices make up (10, 4)",
        ),
    ],
)
def test_cuts_that_are_not_read(kind: str, value: Any, message: str, tmp_path: Path) -> None:
    folder = copied("deepspeed/parallel-zero1", tmp_path) / "global_step3"
    model = models(folder, lambda saved: saved[INFO].update({kind: value}))
    refused(folder, message.format(str(model)))


@pytest.mark.parametrize(
    "pattern",
    ["(up)", "up|down", "u{1,9}", "(?=up)", r"u\1", "[z-a]"],
)
def test_patterns_of_other_forms_are_refused(pattern: str, tmp_path: Path) -> None:
    folder = copied("deepspeed/parallel-zero1", tmp_path) / "global_step3"
    models(folder, lambda saved: saved[INFO].update(vocabulary_parameter_patterns=[pattern]))
    refused(
        folder,
        f"the pattern {pattern!r} of parameter names is not read; only characters, classes, '.', "
        "'*', '+', '?', '^' and '$' are",
    )


def test_patterns_are_those_of_re() -> None:
    chance = random.Random(0)
    pieces = ["a", "b", ".", r"\d", r"\.", r"\w", "[ab.]", "[^a]", r"[\d-]", r"[a\]^]"]
    for _ in range(2000):
        parts = [
            chance.choice(pieces) + chance.choice(["", "", "*", "+", "?", "*?"]) for _ in "abcd"
        ]
        pattern = chance.choice(["", "^"]) + "".join(parts) + chance.choice(["", "$"])
        name = "".join(chance.choices("ab1.-", k=chance.randrange(7)))
        assert matches(pattern, name) == bool(re.match(pattern, name)), (pattern, name)
    with pytest.raises(CaptureError, match="of parameter names is not read"):
        matches("[^a]" * 10 + "(", "a")


def test_rows_of_padding_are_left_out(tmp_path: Path) -> None:
    folder = copied("deepspeed/parallel-zero1", tmp_path) / "global_step3"

    def pad(saved: dict[str, Any]) -> None:
        saved[INFO].pop("affine_map")
        saved[INFO].update(vocabulary_parameter_patterns=["^up"], original_vocab_size=7)

    models(folder, pad)
    full = load(HERE / "deepspeed/parallel-zero1").tensor("up.weight", "exp_avg")
    states = load(folder)
    assert states.tensor("up.weight", "exp_avg").equal(full[:7])
    assert states.opened("up.weight", "exp_avg")(20, 42).equal(full[:7].flatten()[20:])


def test_halves_that_older_versions_list(tmp_path: Path) -> None:
    folder = copied("deepspeed/parallel-zero1", tmp_path) / "global_step3"

    def older(saved: dict[str, Any]) -> None:
        saved[INFO].pop("sub_param_shard_widths")
        saved[INFO].pop("affine_map")
        saved[INFO].update(
            parameter_with_sub_params=[], parameter_with_2_sub_params_cat_dim_0=["^fused"]
        )

    models(folder, older)
    expect(load(folder), "deepspeed/parallel-zero1")


@pytest.mark.parametrize("name", ["parallel-zero1", "parallel-pipeline"])
def test_copies_that_differ_are_refused(name: str, tmp_path: Path) -> None:
    folder = copied(f"deepspeed/{name}", tmp_path) / "global_step3"
    copy = "down.bias" if name == "parallel-zero1" else "tied_modules.tied.weight"
    for path in folder.glob("*_mp_rank_01_optim_states.pt"):

        def add(value: dict[str, Any]) -> None:
            for state in value["optimizer_state_dict"]["base_optimizer_state"]["state"].values():
                state["exp_avg"].add_(1)

        edit(path, add)
    refused(
        folder,
        f"{str(folder)!r}: model-parallel ranks differ in {copy!r}, of which each should have the "
        "same copy; files of two checkpoints are mixed, or stages do not share it",
        reads=True,
    )


def test_copies_of_a_diverged_run_are_equal(tmp_path: Path) -> None:
    source = copied("deepspeed/parallel-zero1", tmp_path)
    for path in source.glob("global_step3/*_optim_states.pt"):

        def diverge(value: dict[str, Any]) -> None:
            for state in value["optimizer_state_dict"]["base_optimizer_state"]["state"].values():
                state["exp_avg"].fill_(float("nan"))

        edit(path, diverge)
    assert load(source).tensor("down.bias", "exp_avg", check=False).isnan().all()


def test_experts_of_other_ranks_are_refused(tmp_path: Path) -> None:
    folder = copied("deepspeed/parallel-experts", tmp_path) / "global_step3"
    name = "layer_0_expert_{}_mp_rank_00_model_states.pt"
    second = folder / name.format(2)
    second.rename(tmp_path / "kept")
    refused(
        folder,
        f"{str(folder)!r} has no file of an expert's weights with {EXPERT.format(2)!r}; one is "
        "missing",
    )
    # As where the experts of ranks are in another order.
    first = torch.load(folder / name.format(0), weights_only=True)
    torch.save({key.replace("experts.0", "experts.2"): first[key] for key in first}, second)
    rank = folder / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    refused(
        folder,
        f"{str(rank)!r} has other weights of {EXPERT.format(2)!r} than {second.name!r}; files of "
        "two checkpoints are mixed, or ranks hold experts in another order than DeepSpeed's",
    )


def test_experts_of_other_kinds_are_refused(tmp_path: Path) -> None:
    folder = HERE / "deepspeed/parallel-experts-without-zero"
    path = folder / "global_step3/expp_rank_0_mp_rank_00_optim_states.pt"
    refused(
        folder,
        f"{str(path)!r} is of experts in a training without ZeRO; it does not say which parameters "
        "its states are of, and is not read",
    )
    folder = copied("deepspeed/parallel-experts", tmp_path) / "global_step3"
    model = models(folder, lambda value: value.update(num_experts=[8]))
    refused(
        folder,
        f"{str(model)!r} is of layers with 8 experts, but 2 ranks have 2 of one layer each",
    )
    models(folder, lambda value: value.update(ds_autoep_layers=[{"num_experts": 4}]))
    refused(
        folder,
        f"{str(model)!r} is of experts that DeepSpeed's AutoEP made of a model's own, which are "
        "not read",
    )
    for path in folder.glob("layer_*"):
        path.unlink()
    models(folder, lambda value: value.update(ds_autoep_layers=None, num_experts=[]))
    rank = folder / "zero_pp_rank_0_mp_rank_00_optim_states.pt"
    refused(
        folder,
        f"{str(rank)!r} says that flat tensor 1 was divided among 2 of 4 ranks, which only the "
        "states of experts are",
    )


def test_experts_of_several_model_parallel_ranks_are_refused(tmp_path: Path) -> None:
    folder = copied("deepspeed/parallel-pipeline", tmp_path) / "global_step3"
    model = models(folder, lambda value: value.update(num_experts=[4]))
    refused(
        folder,
        f"{str(model)!r} is of experts and of several model-parallel ranks; experts are read of "
        "data-parallel ranks alone",
    )


def test_experts_of_a_layer_may_lie_in_several_groups() -> None:
    """DeepSpeed divides large groups by their size."""
    of = "0.deepspeed_moe.experts.deepspeed_experts."
    groups = [[f"{of}{number}.weight" for number in numbers] for numbers in ((0, 1), (2, 3))]
    every = [name for group in groups for name in group]
    experts = Experts(Path("model"), [8])
    results = [experts.names(group, 1, 2, every) for group in groups]
    assert results == [
        {name: f"{of}{4 + 2 * place + number}.weight" for number, name in enumerate(group)}
        for place, group in enumerate(groups)
    ]
