"""DeepSpeed's universal checkpoints, made by its own ``ds_to_universal``."""

import re
import shutil
from pathlib import Path

import pytest
import torch

from qmaps.capture import load
from qmaps.errors import CaptureError
from tests.capture.fixtures import HERE, PARAMETERS, copied, expect
from tests.outside import CALLS, NAME, Outside

SAVED = ("zero1", "zero3")


@pytest.mark.parametrize("name", SAVED)
def test_universal(name: str) -> None:
    folder = HERE / f"deepspeed/{name}-universal"
    states = load(folder)
    expect(states, f"deepspeed/{name}-universal")
    assert (states.step, states.skipped, states.naming) == (3, [], "the checkpoint")
    decay = [states.hyperparameters(name)["weight_decay"] for name in PARAMETERS]
    assert decay == [0.01, 0.01, 0.0, 0.0]
    before = load(HERE / "deepspeed" / name)
    assert states.fingerprint() == before.fingerprint()
    assert load(folder / "global_step3").fingerprint() == before.fingerprint()


def test_without_the_file_of_the_model(tmp_path: Path) -> None:
    folder = copied("deepspeed/zero1-universal", tmp_path) / "global_step3"
    (folder / "mp_rank_00_model_states.pt").unlink()
    states = load(folder)
    expect(states, "deepspeed/zero1-universal")
    assert states.hyperparameters("0.weight") == {}


def refused(folder: Path, message: str, *, reads: bool = False) -> None:
    """Loading fails with this message; with `reads`, reading the tensors does."""
    states = load(folder) if reads else None
    with pytest.raises(CaptureError, match=f"^{re.escape(message)}$"):
        load(folder) if states is None else list(states.items())


def test_missing_and_truncated_files_are_refused(tmp_path: Path) -> None:
    folder = copied("deepspeed/zero3-universal", tmp_path)
    place = folder / "global_step3/zero/0.weight"
    path = place / "exp_avg.pt"
    torch.save(torch.zeros(20), path)
    refused(
        folder,
        f"{str(path)!r} has 20 elements, but the model's file says that the parameter's shape is "
        "(5, 6)",
    )
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    refused(
        folder,
        f"{str(path)!r} is not a checkpoint that torch can load; it is corrupt, truncated, or a "
        "file of another kind",
    )
    torch.save({"tensor": torch.zeros(5, 6)}, path)
    refused(folder, f"{str(path)!r} must have the entry 'param', a state of one parameter")
    shutil.rmtree(place)
    refused(
        folder,
        f"{str(place)!r} does not exist; the model's file has a parameter of this name",
    )


@pytest.mark.parametrize("name", SAVED)
def test_a_missing_state_is_refused(name: str, tmp_path: Path) -> None:
    folder = copied(f"deepspeed/{name}-universal", tmp_path)
    path = folder / "global_step3/zero/0.weight/exp_avg_sq.pt"
    path.unlink()
    refused(
        folder,
        f"{str(path)!r} does not exist; other parameters of its group have this state",
    )


def test_files_of_two_parameters_are_refused(tmp_path: Path) -> None:
    folder = copied("deepspeed/zero1-universal", tmp_path)
    place = folder / "global_step3/zero"
    path = place / "0.weight/exp_avg_sq.pt"
    shutil.copy(place / "2.weight/exp_avg.pt", path)
    refused(
        folder,
        f"{str(path)!r} has the shape (3, 5), but 'fp32.pt' beside it has (5, 6); files of two "
        "parameters are mixed",
    )
    shutil.copy(place / "0.weight/step.pt", path)
    refused(
        folder,
        f"{str(path)!r} has 1 elements, but the model's file says that the parameter's shape is "
        "(5, 6)",
    )


def test_files_that_would_run_code_are_refused(tmp_path: Path) -> None:
    folder = copied("deepspeed/zero1-universal", tmp_path)
    for name in ("optimizer_state.pt", "2.bias/exp_avg_sq.pt"):
        path = folder / "global_step3/zero" / name
        content = path.read_bytes()
        torch.save({"param": torch.zeros(3), "other": Outside()}, path)
        refused(
            folder,
            f"{str(path)!r} would have to run code to load ({NAME}); save the optimizer's "
            "state_dict() with plain tensors and numbers",
        )
        path.write_bytes(content)
    torch.save({}, path.parents[1] / "optimizer_state.pt")
    options = path.parents[1] / "optimizer_state.pt"
    refused(folder, f"{str(options)!r} must have param_groups, the groups of the optimizer")
    assert not CALLS
