"""Step counts in the groups of a checkpoint, or nowhere."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qmaps import optim
from qmaps.capture import StateRecorder, load
from qmaps.capture.conversion import convert_state_dict
from qmaps.errors import BadValueError, CaptureError

COUNTS: dict[str, dict[str, Any]] = {
    "pytorch-optimizer": {"step": 3000},
    "optimi": {"step": torch.tensor(3000)},
    "heavyball": {"step": None, "step_count": torch.tensor(3000)},
    "Prodigy": {"k": 3000, "d": 1e-6},
    "schedulefree": {"k": 3000, "weight_sum": 0.3},
}
"""Entries of groups, as these packages write them."""


def saved(steps: int = 30, without: tuple[int, ...] = (0, 1), **group: Any) -> dict[str, Any]:
    """A checkpoint of torch's AdamW without some steps, and with further entries in its group."""
    torch.manual_seed(0)
    layer = nn.Linear(8, 4)
    adam = torch.optim.AdamW(layer.parameters())
    for _ in range(steps):
        adam.zero_grad()
        layer(torch.randn(4, 8)).square().mean().backward()
        adam.step()
    state_dict = copy.deepcopy(adam.state_dict())
    for number in without:
        del state_dict["state"][number]["step"]
    state_dict["param_groups"][0].update(group)
    return state_dict


def file(state_dict: dict[str, Any], folder: Path) -> Path:
    torch.save(state_dict, folder / "saved.pt")
    return folder / "saved.pt"


@pytest.mark.parametrize("name", COUNTS)
def test_counts_of_groups_are_read(name: str, tmp_path: Path) -> None:
    state_dict = saved(**COUNTS[name])
    for to in ("torch", "qmaps", "bitsandbytes"):
        converted, _ = convert_state_dict(state_dict, to, states="32bit")
        assert [state["step"] for state in converted["state"].values()] == [3000, 3000]
        assert not {"step", "step_count"} & converted["param_groups"][0].keys()
    layer = nn.Linear(8, 4)
    optimizer = optim.AdamW(layer.parameters())
    optimizer.load_state_dict(state_dict)
    assert [state["step"] for state in optimizer.state.values()] == [3000, 3000]
    assert not {"step", "step_count"} & optimizer.param_groups[0].keys()
    states = load(file(state_dict, tmp_path))
    assert states.step == 3000
    assert states.scalars(states.parameters()[0])["step"] == 3000


def test_the_next_update_is_that_of_the_right_step() -> None:
    """With a step of 1 instead of 3000 the bias corrections make it 0.24 times as long."""
    moved: list[Tensor] = []
    right = saved(without=())
    for state in right["state"].values():
        state["step"] = torch.tensor(3000.0)
    for state_dict in (right, saved(step=3000)):
        layer = nn.Linear(8, 4)
        nn.init.zeros_(layer.weight)
        optimizer = optim.AdamW(layer.parameters())
        optimizer.load_state_dict(state_dict)
        layer.weight.grad = torch.ones(4, 8)
        optimizer.step()
        moved.append(layer.weight.detach())
    assert moved[0].equal(moved[1])


def test_a_count_in_the_state_comes_first(tmp_path: Path) -> None:
    state_dict = saved(without=(), step=7)
    assert load(file(state_dict, tmp_path)).step == 30
    converted, _ = convert_state_dict(state_dict, "torch")
    assert converted["state"][0]["step"] == 30


@pytest.mark.parametrize("group", [{}, {"k": 6}, {"k": 6, "alpha": 0.5}, {"step": None}], ids=str)
def test_rules_with_bias_correction_need_a_count(group: dict[str, Any], tmp_path: Path) -> None:
    """The `k` of Lookahead and Ranger is a period."""
    state_dict = saved(**group)
    with pytest.raises(CaptureError) as refused:
        convert_state_dict(state_dict, "qmaps")
    assert str(refused.value) == (
        "the checkpoint has no step, neither in its states nor in its groups (step, step_count, "
        "k); the update of adam depends on it"
    )
    optimizer = optim.AdamW(nn.Linear(8, 4).parameters())
    with pytest.raises(BadValueError) as bad:
        optimizer.load_state_dict(state_dict)
    assert str(bad.value) == (
        "state_dict has no step, neither in its states nor in its groups (step, step_count, k); "
        "the update of AdamW depends on it"
    )
    assert not optimizer.state
    with pytest.raises(CaptureError, match=r"saved.pt' has no step of 'group0.param0', neither in"):
        load(file(state_dict, tmp_path))


@pytest.mark.parametrize(
    ("cls", "state"), [("SGD", "momentum_buffer"), ("Lion", "exp_avg"), ("RMSprop", "square_avg")]
)
def test_rules_without_bias_correction_need_none(cls: str, state: str, tmp_path: Path) -> None:
    layer = nn.Linear(8, 4)
    optimizer = getattr(optim, cls)(layer.parameters(), lr=0.1)
    states = {number: {state: torch.ones_like(p)} for number, p in enumerate(layer.parameters())}
    state_dict = {"state": states, "param_groups": [{"lr": 0.1, "params": [0, 1]}]}
    if cls == "SGD":
        state_dict["param_groups"][0]["momentum"] = 0.9
        optimizer = optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    optimizer.load_state_dict(state_dict)
    assert [state_of_param["step"] for state_of_param in optimizer.state.values()] == [1, 1]
    convert_state_dict(state_dict, "qmaps")
    assert load(file(state_dict, tmp_path)).step == 0


def test_soap_corrects_biases_without_step_scalars() -> None:
    layer = nn.Linear(8, 4)
    soap = optim.SOAP(layer.parameters())
    layer(torch.randn(4, 8)).square().mean().backward()
    soap.step()
    state_dict = copy.deepcopy(soap.state_dict())
    for state in state_dict["state"].values():
        del state["step"]
    with pytest.raises(BadValueError, match=r"the update of SOAP depends on it$"):
        optim.SOAP(layer.parameters()).load_state_dict(state_dict)


def test_a_parameter_without_step_beside_others_is_refused(tmp_path: Path) -> None:
    state_dict = saved(without=(1,))
    with pytest.raises(CaptureError) as refused:
        convert_state_dict(state_dict, "qmaps")
    assert str(refused.value) == (
        "parameter 'group0.param1' has no step, and other parameters have one"
    )
    with pytest.raises(BadValueError) as bad:
        optim.AdamW(nn.Linear(8, 4).parameters()).load_state_dict(state_dict)
    assert str(bad.value) == (
        "state_dict has no step for parameter 1 of group 0, and a step for other parameters"
    )
    with pytest.raises(CaptureError, match=r"has no step of 'group0\.param1', and one of"):
        load(file(state_dict, tmp_path))


def test_a_parameter_without_states_needs_no_step(tmp_path: Path) -> None:
    state_dict = saved(without=())
    state_dict["state"][1] = {}
    optim.AdamW(nn.Linear(8, 4).parameters()).load_state_dict(state_dict)
    convert_state_dict(state_dict, "qmaps")
    assert load(file(state_dict, tmp_path)).step == 30


def test_a_count_that_is_not_the_number_of_steps_is_noted(tmp_path: Path) -> None:
    p = nn.Parameter(torch.ones(4, 4))
    ours = optim.Prodigy([p])
    p.grad = torch.ones(4, 4)
    ours.step()
    state_dict = copy.deepcopy(ours.state_dict())
    del state_dict["qmaps"], state_dict["state"][0]["step"]
    # The entries of pytorch-optimizer 4.1.0 after 3 steps.
    group = {"d": 1e-6, "d_max": 1e-6, "d_coef": 1.0, "weight_decouple": True, "step": 4}
    state_dict["param_groups"] = [{"lr": 1.0, "betas": (0.9, 0.999), **group, "params": [0]}]
    message = "step=4 in a group of pytorch-optimizer's Prodigy is not the number of steps"
    with pytest.warns(UserWarning, match=message):
        optim.Prodigy([p]).load_state_dict(state_dict)
    with pytest.warns(UserWarning, match=message):
        assert load(file(state_dict, tmp_path)).step == 4


class Counted(torch.optim.Optimizer):
    """Counts its steps in the group, like pytorch-optimizer."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for p in group["params"]:
                self.state[p].setdefault("exp_avg", torch.zeros_like(p)).add_(p.grad)


def test_a_recorder_goes_on_from_the_count_of_the_group(tmp_path: Path) -> None:
    layer = nn.Linear(8, 4)
    optimizer = Counted(layer.parameters())
    layer(torch.randn(4, 8)).square().mean().backward()
    for _ in range(5):
        optimizer.step()
    with StateRecorder(optimizer, tmp_path / "states", every=1):
        optimizer.step()
    assert load(tmp_path / "states").steps == [6]
