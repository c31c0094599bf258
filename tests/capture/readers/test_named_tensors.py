"""Safetensors files of other packages, whose tensors are named by parameter and state."""

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from qmaps.capture import load
from qmaps.errors import CaptureError

TENSORS = {
    "layer.weight.exp_avg": torch.arange(6.0).view(2, 3),
    "layer.weight.exp_avg_sq": torch.arange(6.0).view(2, 3) ** 2,
    "layer.weight.step": torch.tensor(7.0),
    "state.bias.exp_avg": torch.ones(3, dtype=torch.bfloat16),
}


@pytest.mark.parametrize("prefix", ["", "state.", "optim.state.", "optimizer.state."])
def test_names_say_what_tensors_are(prefix: str, tmp_path: Path) -> None:
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
    assert str(model.value) == f"{str(path)!r} is a safetensors file without qmaps metadata"
    save_file(TENSORS, path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CaptureError) as truncated:
        load(path)
    assert str(truncated.value) == (
        f"{str(path)!r} is corrupt or truncated (Error while deserializing header: incomplete "
        "metadata, file not fully covered)"
    )
