"""Checkpoints of other rules with the state names of Adam, Lion or SGD."""

from typing import Any

import pytest
import torch
from torch import nn

from qmaps import optim
from qmaps.capture.conversion import convert_state_dict
from qmaps.errors import CaptureError

ADAM = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}
LION = {"lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 0.0}
DECOUPLED = {"weight_decouple": True, "fixed_decay": False, "foreach": False}

TWO_MOMENTS: dict[str, dict[str, Any]] = {
    # pytorch-optimizer 4.1.0
    "ADOPT": {**ADAM, **DECOUPLED, "step": 3},
    "Grams": {**ADAM, "weight_decouple": True, "foreach": False, "step": 3},
    "EXAdam": {**ADAM, **DECOUPLED, "step": 3},
    "Yogi": {**ADAM, **DECOUPLED, "initial_accumulator": 1e-6, "step": 3},
    "AdaBound": {**ADAM, **DECOUPLED, "final_lr": 0.1, "gamma": 1e-3, "ams_bound": False,
                 "step": 3},
    "AdamP": {**ADAM, **DECOUPLED, "delta": 0.1, "wd_ratio": 0.1, "nesterov": False, "step": 3},
    "MSVAG": {"lr": 0.1, "beta": 0.9, "foreach": False, "step": 3},
    # torch-optimizer 0.3.0
    "torch-optimizer's AdaBound": {**ADAM, "final_lr": 0.1, "gamma": 1e-3, "amsbound": False},
    "torch-optimizer's AdamP": {**ADAM, "delta": 0.1, "wd_ratio": 0.1, "nesterov": False},
    "torch-optimizer's Yogi": {**ADAM, "initial_accumulator": 1e-6},
    "torch-optimizer's RAdam": {**ADAM, "buffer": [[None, None, None]] * 10},
    # optimi 0.3.3
    "RAdam of optimi": {"lr": 1e-3, "beta1": 0.9, "beta2": 0.99, "eps": 1e-6, "decouple_wd": False,
                        "decouple_lr": False, "kahan_sum": None, "step": torch.tensor(3)},
    # timm 1.0.31
    "ADOPT of timm": {**ADAM, "clip_exp": 0.333, "decoupled": False, "caution": False},
}  # fmt: skip
ONE_MOMENT: dict[str, dict[str, Any]] = {
    "Tiger": {"lr": 1e-3, "beta": 0.965, "weight_decay": 0.01, **DECOUPLED, "step": 3},
    "Lion of pytorch-optimizer": {**LION, **DECOUPLED, "step": 3},
}


def saved(group: dict[str, Any], *names: str) -> dict[str, Any]:
    state: dict[str, Any] = {name: torch.ones(4, 4) for name in names}
    if "step" not in group:
        state["step"] = 3
    return {"state": {0: state}, "param_groups": [{**group, "params": [0]}]}


@pytest.mark.parametrize("name", TWO_MOMENTS)
def test_they_are_not_taken_for_adam(name: str) -> None:
    state_dict = saved(TWO_MOMENTS[name], "exp_avg", "exp_avg_sq")
    for to in ("qmaps", "torch", "bitsandbytes"):
        with pytest.raises(CaptureError, match=r"^the checkpoint has the states of adam, but '\w"):
            convert_state_dict(state_dict, to)
        with pytest.raises(CaptureError, match=r"set optimizer to adam$"):
            convert_state_dict(state_dict, to, optimizer="lion")


@pytest.mark.parametrize("name", ONE_MOMENT)
def test_they_are_not_taken_for_lion(name: str) -> None:
    with pytest.raises(CaptureError, match=r"states of lion, but .weight_decouple"):
        convert_state_dict(saved(ONE_MOMENT[name], "exp_avg"), "qmaps")


def test_the_whole_message() -> None:
    with pytest.raises(CaptureError) as caught:
        convert_state_dict(saved(TWO_MOMENTS["ADOPT"], "exp_avg", "exp_avg_sq"), "qmaps")
    assert str(caught.value) == (
        "the checkpoint has the states of adam, but 'weight_decouple' in a group, as in "
        "pytorch-optimizer's ADOPT, Grams, EXAdam, Yogi, AdaBound, AdamP and Tiger; if its "
        "rule is that of adam, set optimizer to adam"
    )


def test_the_user_may_know_better() -> None:
    state_dict = saved(ONE_MOMENT["Lion of pytorch-optimizer"], "exp_avg")
    converted, report = convert_state_dict(state_dict, "qmaps", optimizer="lion", states="32bit")
    assert report.optimizer == "lion"
    assert report.notes == (
        "groups have fixed_decay, weight_decouple, unknown to lion: if these are no tags but "
        "options of another rule, its next update differs",
    )
    assert converted["state"][0]["step"] == 3


@pytest.mark.parametrize("name", ["RAdam", "NAdam", "Adam", "AdamW", "SGD", "RMSprop", "Adagrad"])
def test_of_the_optimizers_of_torch_only_radam_is_refused(name: str) -> None:
    p = nn.Parameter(torch.ones(4, 4))
    options = {"momentum": 0.9} if name in ("SGD", "RMSprop") else {}
    optimizer = getattr(torch.optim, name)([p], lr=0.1, **options)
    torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    p.grad = torch.ones(4, 4)
    optimizer.step()
    if name == "RAdam":
        with pytest.raises(CaptureError, match="no 'amsgrad' in a group, as in torch's RAdam"):
            convert_state_dict(optimizer.state_dict(), "qmaps")
        return
    for to in ("qmaps", "torch"):
        converted, report = convert_state_dict(optimizer.state_dict(), to, states="32bit")
        assert report.notes == ()
        assert convert_state_dict(converted, "torch")[1].notes == ()


@pytest.mark.parametrize(
    ("cls", "key"),
    [("AdamW", key) for key in ("beta", "buffer", "final_lr", "nu", "partial")] + [("SGD", "nu")],
)
def test_tags_in_groups_of_torch_are_noted(cls: str, key: str) -> None:
    p = nn.Parameter(torch.ones(4, 4))
    options = {"momentum": 0.9} if cls == "SGD" else {}
    optimizer = getattr(torch.optim, cls)([{"params": [p], key: 1}], lr=0.1, **options)
    p.grad = torch.ones(4, 4)
    optimizer.step()
    (note,) = convert_state_dict(optimizer.state_dict(), "qmaps")[1].notes
    assert note.startswith(f"groups have {key}, unknown to ")


def test_entries_of_schedulers_and_names_of_groups_are_no_options() -> None:
    p = nn.Parameter(torch.ones(4, 4))
    optimizer = torch.optim.AdamW([{"params": [p], "name": "decoder", "warmup_lr": 0.1}])
    torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.05)
    p.grad = torch.ones(4, 4)
    optimizer.step()
    assert convert_state_dict(optimizer.state_dict(), "qmaps")[1].notes == ()


def test_options_of_unknown_rules_are_noted_and_neutral_ones_are_not() -> None:
    neutral = {**ADAM, "bias_correction": True, "initial_lr": 0.1, "amsgrad": False}
    for group, note in (
        (neutral, ()),
        ({**neutral, "bias_correction": False, "heads": 8, "lr_scale": 0.5}, (
            "groups have bias_correction, heads, unknown to adam: if these are no tags but "
            "options of another rule, its next update differs",
        )),
    ):  # fmt: skip
        _, report = convert_state_dict(saved(group, "exp_avg", "exp_avg_sq"), "torch")
        assert report.notes == note


@pytest.mark.parametrize(("name", "cls"), [("ADOPT", optim.AdamW), ("Tiger", optim.Lion)])
def test_loading_them_into_a_class_warns(name: str, cls: Any) -> None:
    two = name in TWO_MOMENTS
    group = TWO_MOMENTS[name] if two else ONE_MOMENT[name]
    optimizer = cls([nn.Parameter(torch.ones(4, 4))])
    with pytest.warns(UserWarning, match=f"its states are loaded as those of {cls.__name__}$"):
        optimizer.load_state_dict(saved(group, *["exp_avg", "exp_avg_sq"][: 1 + two]))
