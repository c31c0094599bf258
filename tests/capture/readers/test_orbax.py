"""Orbax: folders of its own checkpointers, with optax trees."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
import torch

from qmaps.capture import load
from qmaps.capture.readers import reader_of
from qmaps.capture.readers.optax import state_dicts_of
from qmaps.errors import CaptureError
from tests.capture.fixtures import HERE, copied, expect

tensorstore = pytest.importorskip("tensorstore", reason="the extra jax is not installed")

NAMES = sorted(path.name for path in (HERE / "orbax").iterdir() if path.is_dir())
STEPS = {"multi-steps": 2, "rmsprop": 0, "nnx": 1}
MASKED = ["dense.bias", "dense.kernel"]

pytestmark = pytest.mark.filterwarnings("ignore:.*has no betas")


@pytest.mark.parametrize("name", NAMES)
def test_values_are_those_of_optax(name: str) -> None:
    states = load(HERE / "orbax" / name)
    expect(states, f"orbax/{name}")
    assert (states.step, states.naming) == (STEPS.get(name, 4), "the checkpoint")
    assert "(in, out)" in states.note


def test_nodes_at_any_depth() -> None:
    partition = load(HERE / "orbax/partition")
    assert partition.states("mu.nu") == ["exp_avg"]
    assert partition.states("dense.kernel") == ["exp_avg", "exp_avg_sq"]
    assert load(HERE / "orbax/masked").parameters() == MASKED
    assert load(HERE / "orbax/rmsprop").states("mu.nu") == ["square_avg", "trace"]


def test_injected_options_are_read() -> None:
    assert load(HERE / "orbax/chain").hyperparameters("dense.bias") == {
        "lr": 1e-3,
        "betas": [0.9, 0.95],
        "eps": 1e-8,
        "weight_decay": 1e-4,
    }
    with pytest.raises(
        CaptureError, match=r"^betas=\(0.9, 0.99\) is not that of .*; leave it out$"
    ):
        load(HERE / "orbax/chain", betas=(0.9, 0.99))


def test_the_last_step_of_a_manager_and_its_item_with_an_optimizer(tmp_path: Path) -> None:
    folder = copied("orbax/manager", tmp_path)
    assert load(folder).source == str(folder)
    fingerprint = load(folder / "10/state").fingerprint()
    assert load(folder).fingerprint() == load(folder / "10").fingerprint() == fingerprint
    assert load(folder / "9").step == 2
    (folder / "11.orbax-checkpoint-tmp-7").mkdir()
    assert load(folder).step == 4


def test_parts_are_read_from_the_rows_that_hold_them() -> None:
    states = load(HERE / "orbax/zarr3")
    full = states.tensor("dense.kernel", "exp_avg").reshape(-1)
    part = states.opened("dense.kernel", "exp_avg")
    for begin, end in ((0, 12), (3, 9), (4, 8), (5, 5), (11, 12)):
        assert part(begin, end).equal(full[begin:end])


def test_without_tensorstore(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorstore", None)
    folder = HERE / "orbax/masked"
    message = (
        f"{str(folder)!r} is read by tensorstore, which is not installed; pip install "
        '"torch-qmaps[jax]"'
    )
    with pytest.raises(CaptureError, match=f"^{re.escape(message)}$"):
        load(folder)


def edited(folder: Path, change: str, into: str) -> Path:
    metadata = folder / "_METADATA"
    text = metadata.read_text()
    assert change in text
    metadata.write_text(text.replace(change, into))
    return folder


def test_arrays_outside_the_folder_are_refused(tmp_path: Path) -> None:
    folder = edited(copied("orbax/zarr", tmp_path), '"kernel"', '"/../../kernel"')
    with pytest.raises(CaptureError, match=r"names the array '.*', not in its folder$"):
        load(folder)


@pytest.mark.parametrize("part", ["shape", "chunks"])
def test_sizes_beyond_the_files_are_refused(part: str, tmp_path: Path) -> None:
    folder = copied("orbax/zarr", tmp_path)
    for path in folder.glob("*kernel/.zarray"):
        metadata = json.loads(path.read_text())
        path.write_text(json.dumps(metadata | {part: [2**20, 2**18]}))
    with pytest.raises(CaptureError, match=r"in a folder of only [0-9]+ bytes$"):
        load(folder)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    folder = copied("orbax/zarr", tmp_path)
    path = next(folder.glob("*kernel/.zarray"))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(CaptureError, match=r"cannot be read \(it is not a regular file\)$"):
        load(folder)


@pytest.mark.parametrize("text", ["{}", "[]", '{"tree_metadata": {"a": {}}}', "{", "null"])
def test_metadata_of_another_form_is_refused(text: str, tmp_path: Path) -> None:
    folder = copied("orbax/masked", tmp_path)
    (folder / "_METADATA").write_text(text)
    with pytest.raises(CaptureError):
        load(folder)


def test_a_tree_without_an_optimizer_is_refused(tmp_path: Path) -> None:
    folder = HERE / "orbax/manager/10/losses"
    assert reader_of(folder) is not None
    with pytest.raises(CaptureError) as error:
        load(folder)
    assert str(error.value) == (
        f"{str(folder)!r} must hold a state of optax, such as 'count', 'mu' and 'nu' side by side, "
        "but holds loss"
    )


def test_layers_named_as_fields_are_no_nodes() -> None:
    model = {("params", "mu", "w"): 1, ("params", "nu", "w"): 1, ("params", "count"): 1}
    with pytest.raises(CaptureError, match="must hold a state of optax"):
        state_dicts_of(model, Path("x"))
    node = {("opt", "count"): 3, ("opt", "mu", "mu", "w"): 1, ("opt", "nu", "mu", "w"): 2}
    (state_dict,) = state_dicts_of(model | node, Path("x"))
    assert state_dict["state"] == {"mu.w": {"exp_avg": 1, "exp_avg_sq": 2, "step": 3}}


def test_two_optimizers_of_one_parameter() -> None:
    generator = {("g", "count"): 1, ("g", "mu", "w"): 1}
    leaves = generator | {("d", "count"): 2, ("d", "mu", "w"): 5}
    assert [
        state_dict["state"]["w"]["exp_avg"] for state_dict in state_dicts_of(leaves, Path("x"))
    ] == [5, 1]


def test_bfloat16_is_kept() -> None:
    kinds = {lazy.dtype for _, state, lazy in load(HERE / "orbax/masked").lazies()}
    assert kinds == {torch.float32, torch.bfloat16}
