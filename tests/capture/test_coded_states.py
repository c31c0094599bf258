"""Quantized states of other packages decode to the packages' own values."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor

import qmaps
from qmaps.capture import StateRecorder, load
from qmaps.capture.conversion import convert_state_dict
from qmaps.errors import CaptureError
from tests.capture.fixtures import HERE

FILES = sorted((HERE / "coded_states").glob("*.pt"))
SHAPES = (24, 40), (45,)


def content(name: str) -> tuple[dict[str, Any], dict[int, dict[str, Tensor]]]:
    saved = torch.load(HERE / "coded_states" / f"{name}.pt", weights_only=True)
    return saved["optimizer"], saved["expected"]


def saved(state_dict: dict[str, Any], folder: Path) -> Path:
    torch.save(state_dict, folder / "optimizer.pt")
    return folder / "optimizer.pt"


def fails(name: str, folder: Path, change: dict[str, Any], state: str = "exp_avg") -> str:
    """The error of reading a state with some parts of the first parameter replaced."""
    state_dict, _ = content(name)
    state_dict["state"][0].update(change)
    states = load(saved(state_dict, folder))
    with pytest.raises(CaptureError) as error:
        states.tensor("group0.param0", state)
    return str(error.value).replace(str(folder), "FOLDER")


def test_all_packages_are_here() -> None:
    names = {path.stem for path in FILES}
    assert {n.split("-")[0] for n in names} == {
        *("adafactor8bit", "flashoptim", "gefen", "pytorch", "torch", "turboadam")
    }
    assert len(names) == 21


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_values_are_those_of_the_package(path: Path) -> None:
    _, expected = content(path.stem)
    states = load(path)
    assert states.step == (0 if "lion" in path.stem else 5)
    assert all(": error_bits (int" in code for code in states.codes)
    assert len(states.codes) == (2 if path.stem.endswith(("-24", "-32")) else 0)
    assert any(expected.values())
    for label, values in zip(states.parameters(), expected.values(), strict=True):
        for name, value in values.items():
            assert states.shape(label, name) == tuple(value.shape)
            assert states.tensor(label, name).equal(value.float()), (label, name)
            assert not value.equal(torch.zeros_like(value))
        assert (label in states.quantized()) == (
            path.stem.split("-")[0] != "torch" and (label[-1] == "0" or "large" not in path.stem)
        )


def test_shapes_are_those_of_parameters_where_a_file_has_them() -> None:
    for path in FILES:
        states = load(path)
        names = states.parameters()
        is_flat = path.stem.startswith("gefen") or "apollo" in path.stem
        first = [s for s in states.values(names[0]) if s in ("exp_avg", "m", "m_low")]
        for state in first:
            assert (states.shape(names[0], state) == SHAPES[0]) != is_flat


def test_shape_that_gefen_has_for_some_parameters(tmp_path: Path) -> None:
    state_dict, expected = content("gefen-adam")
    state_dict["state"][0]["parameter_shape"] = SHAPES[0]
    states = load(saved(state_dict, tmp_path))
    name = states.parameters()[0]
    assert states.tensor(name, "exp_avg").equal(expected[0]["exp_avg"].view(SHAPES[0]))
    assert states.tensor(name, "exp_avg_sq").equal(expected[0]["exp_avg_sq"].view(SHAPES[0]))


def test_lower_bits_of_parameters_are_integers() -> None:
    pattern = (torch.arange(45) % 7 - 3).to(torch.int16)
    for name, dtype in (("adamw-24", torch.int8), ("adamw-32", torch.int16)):
        states = load(HERE / "coded_states" / f"flashoptim-{name}.pt")
        error_bits = {p: lazy for p, state, lazy in states.lazies() if state == "error_bits"}
        bits = error_bits["group0.param1"].read()
        assert bits.equal(pattern.to(dtype))
        assert bits.dtype == dtype


def test_conversion_decodes() -> None:
    for name in ("flashoptim-adamw", "turboadam-both", "torch-optstate-int8"):
        state_dict, expected = content(name)
        converted, report = convert_state_dict(state_dict, "torch")
        assert report.optimizer == "adam"
        for number, values in expected.items():
            for state, value in values.items():
                assert converted["state"][number][state].equal(value)


def test_pairs_are_measured() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("flashoptim-adamw", "gefen-adam", "turboadam-both"):
            path = HERE / "coded_states" / f"{name}.pt"
            frame = qmaps.sweep.run(path, "8bit", min_quantized_size=40)
            assert set(frame["state"]) == {"exp_avg", "exp_avg_sq", "update"}


def test_recorder_decodes(tmp_path: Path) -> None:
    state_dict, expected = content("gefen-adam")
    params = [torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
    optimizer = torch.optim.SGD(params, lr=0)
    for number, p in enumerate(params):
        optimizer.state[p] = state_dict["state"][number]
    optimizer._gefen_codebook = state_dict["gefen_codebook"]  # type: ignore[attr-defined]
    with StateRecorder(optimizer, tmp_path) as recorder:
        recorder.record()
    states = load(tmp_path)
    for label, shape, values in zip(states.parameters(), SHAPES, expected.values(), strict=True):
        for name, value in values.items():
            assert states.tensor(label, name).equal(value.view(shape))


class Live:
    """A state of FlashOptim in memory."""

    shape = (24, 40)

    def is_quantized(self) -> bool:
        return True

    def materialize(self) -> Tensor:
        return torch.ones(self.shape)


def test_recorder_reads_objects_of_flashoptim(tmp_path: Path) -> None:
    p = torch.nn.Parameter(torch.zeros(SHAPES[0]))
    optimizer = torch.optim.SGD([p], lr=0)
    optimizer.state[p] = {"exp_avg": Live(), "step": torch.tensor(3)}
    with StateRecorder(optimizer, tmp_path) as recorder:
        recorder.record()
    states = load(tmp_path)
    assert states.tensor("group0.param0", "exp_avg").equal(torch.ones(SHAPES[0]))
    assert not states.skipped


def test_parts_that_do_not_fit(tmp_path: Path) -> None:
    where = "of parameter 'group0.param0' in 'FOLDER/optimizer.pt' is damaged: "
    short = torch.ones(7, dtype=torch.float16)
    assert fails("flashoptim-adamw", tmp_path, {"exp_avg::scales": short}) == (
        f"state 'exp_avg' {where}960 codes do not fit 7 scales of 32 each"
    )
    assert fails("flashoptim-adamw", tmp_path, {"exp_avg::quantized": torch.zeros(960)}) == (
        f"state 'exp_avg' {where}codes of torch.float32 and scales of torch.float16 are not "
        "FlashOptim's"
    )
    kind = {"m_quant_type": "x"}
    assert fails("adafactor8bit-uf8", tmp_path, kind, "m") == (
        f"state 'm' {where}m_quant_type='x' is not known; known are uf8, uf4, d8, d4"
    )
    scales = {"m_scale": torch.ones(7)}
    assert fails("adafactor8bit-uf8", tmp_path, scales, "m") == (
        f"state 'm' {where}1024 codes do not fit 7 scales"
    )
    state_dict, _ = content("turboadam-both")
    ustate = {**state_dict["state"][0]["ustate"], "codes": torch.zeros(3, dtype=torch.uint8)}
    assert fails("turboadam-both", tmp_path, {"ustate": ustate}) == (
        f"state 'exp_avg' {where}3 bytes do not hold 1024 codes of 2 bits"
    )


@pytest.mark.parametrize("name", ["gefen-adam", "turboadam-both", "flashoptim-adamw-32"])
def test_folders_of_torch(name: str, tmp_path: Path) -> None:
    state_dict, expected = content(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of saving by one process
        dcp.save({"optimizer": state_dict}, checkpoint_id=tmp_path, no_dist=True)
    states = load(tmp_path)
    for label, values in zip(states.parameters(), expected.values(), strict=True):
        for state, value in values.items():
            assert states.tensor(label, state).equal(value)


def test_gefen_without_its_codebook(tmp_path: Path) -> None:
    state_dict, _ = content("gefen-adam")
    del state_dict["gefen_codebook"]
    states = load(saved(state_dict, tmp_path))
    with pytest.raises(CaptureError) as error:
        states.tensor("group0.param0", "exp_avg")
    assert str(error.value).endswith(
        "is damaged: the codebook of gefen, gefen_codebook, is missing in the state_dict"
    )
