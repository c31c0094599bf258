"""MLX: safetensors files of its optimizers' states."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from qmaps.capture import load
from qmaps.errors import CaptureError
from tests.capture.fixtures import HERE, expect

NAMES = sorted(path.name for path in (HERE / "mlx").iterdir() if path.is_dir())

pytestmark = pytest.mark.filterwarnings("ignore:.*has no betas")


@pytest.mark.parametrize("name", NAMES)
def test_values_are_those_of_mlx(name: str) -> None:
    folder = HERE / "mlx" / name
    states = load(folder / "optimizer.safetensors")
    expect(states, f"mlx/{name}")
    assert (states.step, states.naming) == (3, "the checkpoint")
    assert load(folder).fingerprint() == states.fingerprint()
    assert "channels last" in states.note


def test_v_is_the_first_moment_of_rules_without_m() -> None:
    weight = "layers.0.weight"
    first = {name: load(HERE / "mlx" / name).states(weight) for name in ("lion", "muon", "sgd")}
    assert first == {
        "lion": ["exp_avg"],
        "muon": ["momentum_buffer"],
        "sgd": ["momentum_buffer"],
    }
    assert load(HERE / "mlx/rmsprop").states(weight) == ["square_avg"]


def test_members_of_a_multi_optimizer_have_groups() -> None:
    states = load(HERE / "mlx/multi")
    rates = {name: states.hyperparameters(name)["lr"] for name in states.parameters()}
    assert rates == {"layers.0.weight": 1e-3, "layers.1.weight": 1e-3, "layers.0.bias": 2e-3}


def changed(tmp_path: Path, **tensors: torch.Tensor) -> Path:
    path = tmp_path / "optimizer.safetensors"
    saved = load_file(HERE / "mlx/adamw/optimizer.safetensors")
    save_file({key.replace("__", "."): value for key, value in (saved | tensors).items()}, path)
    return path


def test_unknown_states_are_refused(tmp_path: Path) -> None:
    path = changed(tmp_path, layers__0__bias__w=torch.ones(3))
    with pytest.raises(CaptureError, match=r"states of MLX that are read are PARAMETER\.exp_avg"):
        load(path)


def test_a_parameter_of_two_members_is_refused(tmp_path: Path) -> None:
    saved = load_file(HERE / "mlx/multi/optimizer.safetensors")
    saved["states.1.layers.0.weight.m"] = torch.ones(3, 4)
    saved["states.1.layers.0.weight.v"] = torch.ones(3, 4)
    path = tmp_path / "optimizer.safetensors"
    save_file(saved, path)
    with pytest.raises(CaptureError, match=r"has states of 'layers\.0\.weight' twice$"):
        load(path)


def test_the_other_names_of_safetensors_are_read_as_before(tmp_path: Path) -> None:
    path = tmp_path / "o.safetensors"
    save_file({"w.exp_avg": torch.ones(2), "w.step": torch.tensor(3.0)}, path)
    assert load(path).step == 3
