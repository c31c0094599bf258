"""State_dicts in one flat dict, as torchtitan and an option of torch write them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

import qmaps
from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.algebra.saved import from_plain, tensors_only, to_plain
from qmaps.capture import load
from qmaps.capture.conversion import convert_file, convert_state_dict
from qmaps.capture.flattened import split
from qmaps.capture.lint import lint_file
from qmaps.distributed.rows import by_rows
from qmaps.optim import AdamW, param_groups

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

OWN = qmaps.normalize.BlockWise(64) / qmaps.Codebook([-1, -0.5, -0.1, 0, 0.1, 0.5, 1], label="own")
CHOICES: dict[str, Any] = {
    "4bit": "4bit",
    "low-rank": {"exp_avg": "lowrank4(B64/DE@8s)+B64/DE@4s", "exp_avg_sq": "rank1/linear@4u+qsr"},
    "codebook": {"exp_avg": OWN},
}
FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


def trained(choice: Any, steps: int = 3) -> tuple[nn.Module, AdamW]:
    """A model with two groups and dots in its names."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(96, 64), nn.Linear(64, 80, bias=False))
    optimizer = AdamW(param_groups(model, weight_decay=0.1), lr=1e-2, state_quantizers=choice)
    for step in range(steps):
        torch.manual_seed(step)
        optimizer.zero_grad()
        model(torch.randn(4, 96)).square().mean().backward()
        optimizer.step()
    return model, optimizer


def torchtitan(optimizer: AdamW) -> dict[str, Any]:
    """The layout of torchtitan 0.3: flat dicts, lists and numbers as they are, no param_names."""

    def leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
        if not isinstance(value, dict):
            yield key, value
            return
        for name, member in value.items():
            yield from leaves(member, f"{key}.{name}")

    saved = optimizer.state_dict()
    flat: dict[str, Any] = {}
    for group in saved["param_groups"]:
        for number, name in zip(group["params"], group["param_names"], strict=True):
            flat |= leaves(saved["state"].get(number, {}), f"state.{name}")
            for option in group.keys() - {"params", "param_names"}:
                flat[f"param_groups.{name}.{option}"] = group[option]
    return flat


def assert_same(states: Any, model: nn.Module, optimizer: AdamW) -> None:
    """Captured states are those of the optimizer, bit for bit."""
    assert sorted(states.parameters()) == sorted(dict(model.named_parameters()))
    for name, param in model.named_parameters():
        for state in ("exp_avg", "exp_avg_sq"):
            value = optimizer.state[param][state]
            decoded = value.dequantize() if isinstance(value, QuantizedTensor) else value
            assert states.tensor(name, state).equal(decoded), (name, state)
        assert states.hyperparameters(name)["weight_decay"] == (0.1 if param.dim() == 2 else 0.0)
    assert (states.step, states.skipped) == (3, [])


@pytest.mark.parametrize("name", CHOICES)
def test_states_hold_tensors_and_numbers_only(name: str) -> None:
    def leaves(value: Any) -> Iterator[Any]:
        for member in value.values():
            yield from leaves(member) if isinstance(member, dict) else (member,)

    _, optimizer = trained(CHOICES[name])
    for state in optimizer.state_dict()["state"].values():
        assert {type(leaf) for leaf in leaves(state)} <= {Tensor, int, bool}


@pytest.mark.parametrize("name", CHOICES)
def test_states_with_text_of_older_versions_are_read_bit_for_bit(name: str, tmp_path: Path) -> None:
    model, optimizer = trained(CHOICES[name])
    saved = optimizer.state_dict()
    params = [param for group in optimizer.param_groups for param in group["params"]]
    for param, state in zip(params, saved["state"].values(), strict=True):
        for key, value in optimizer.state[param].items():
            if isinstance(value, QuantizedTensor):
                state[key] = to_plain(value)
    saved["qmaps"]["format"] = 1
    torch.save(saved, tmp_path / "old.pt")
    assert_same(load(tmp_path / "old.pt"), model, optimizer)
    twin, restored = trained(CHOICES[name], steps=0)
    twin.load_state_dict(model.state_dict())
    restored.load_state_dict(torch.load(tmp_path / "old.pt", weights_only=True))
    for param, same in zip(model.parameters(), twin.parameters(), strict=True):
        for key, value in optimizer.state[param].items():
            loaded = restored.state[same][key]
            if isinstance(value, QuantizedTensor):
                assert loaded.quantizer == value.quantizer
                assert loaded.packed.equal(value.packed)


def test_text_of_several_lengths_has_one_size() -> None:
    """torch.distributed.checkpoint reads a tensor only into one of the same size."""
    short, long = (
        tensors_only(to_plain(qmaps.quantizer(spec).quantize(torch.ones(64))), torch.device("cpu"))
        for spec in ("B64/DE@4s", "B64&rank1/linear@8s+qsr")
    )
    assert short["spec"].shape == long["spec"].shape == (64,)
    assert from_plain(long).quantizer.spec == "B64&rank1/linear@8s+qsr"


@pytest.mark.parametrize("name", CHOICES)
def test_the_option_of_torch_saves_and_loads(name: str, tmp_path: Path) -> None:
    model, optimizer = trained(CHOICES[name])
    dcp.save({"o": get_optimizer_state_dict(model, optimizer, options=FLAT)},
             checkpoint_id=tmp_path, no_dist=True)  # fmt: skip
    assert_same(load(tmp_path), model, optimizer)
    twin, restored = trained(CHOICES[name], steps=0)
    twin.load_state_dict(model.state_dict())
    state = {"o": get_optimizer_state_dict(twin, restored, options=FLAT)}
    dcp.load(state, checkpoint_id=tmp_path, no_dist=True)
    set_optimizer_state_dict(twin, restored, state["o"], options=FLAT)
    for net, stepped in ((model, optimizer), (twin, restored)):
        torch.manual_seed(9)
        stepped.zero_grad()
        net(torch.randn(4, 96)).square().mean().backward()
        stepped.step()
    for expected, same in zip(model.parameters(), twin.parameters(), strict=True):
        assert expected.equal(same)


@pytest.mark.parametrize("rows", [False, True], ids=["whole", "rows"])
@pytest.mark.parametrize("folder", [False, True], ids=["file", "folder"])
def test_the_container_of_torchtitan_is_read(folder: bool, rows: bool, tmp_path: Path) -> None:
    """`load`, `convert` and `lint` read it, saved by torch.save or by dcp.save."""
    model, optimizer = trained("4bit")
    path = tmp_path / "saved"
    if rows:
        with by_rows():
            flat = torchtitan(optimizer)
    else:
        flat = torchtitan(optimizer)
    if folder:
        dcp.save({"optimizer": flat}, checkpoint_id=path, no_dist=True)
    else:
        torch.save({"optimizer": flat}, path)
    assert_same(load(path), model, optimizer)
    (report,) = convert_file(path, tmp_path / "new.pt", to="qmaps")
    assert (report.source, report.lossless) == ("qmaps", True)
    converted = torch.load(tmp_path / "new.pt", weights_only=True)
    converted = converted.get("optimizer", converted)
    expected = optimizer.state[model[0].weight]["exp_avg"]
    assert from_plain(converted["state"]["0.weight"]["exp_avg"]).packed.equal(expected.packed)
    assert converted["param_groups"][0]["state_quantizers"]["exp_avg"] == expected.quantizer.spec
    if not folder:
        assert {finding.check for finding in lint_file(path)} <= {"float16", "stalled"}


def test_a_flat_dict_in_memory_is_converted() -> None:
    _, optimizer = trained("8bit")
    flat, report = convert_state_dict(torchtitan(optimizer), "torch")
    expected, _ = convert_state_dict(optimizer.state_dict(), "torch")
    assert report.source == "qmaps"
    for number, name in enumerate(["0.weight", "1.weight", "0.bias"]):
        for key, value in expected["state"][number].items():
            assert flat["state"][name][key].equal(value)


def test_keys_are_split_without_a_search_through_all_names() -> None:
    class Names(set[str]):
        def __iter__(self) -> Iterator[str]:
            raise AssertionError("reading would take the square of the number of parameters")

    names = Names({"a", "a.b", "c.d"})
    assert split("a.b.exp_avg", names) == ("a.b", "exp_avg")
    assert split("a.exp_avg.codes", names) == ("a", "exp_avg.codes")
    assert split("c.d.Q.0", names) == ("c.d", "Q.0")
    assert split("unknown.x.exp_avg", names) == ("unknown.x", "exp_avg")
