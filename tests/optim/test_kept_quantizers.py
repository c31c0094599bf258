"""Warnings for a checkpoint with other quantizers than the optimizer's."""

import copy
import re
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from qmaps import optim
from qmaps.capture.conversion import convert_state_dict
from qmaps.errors import CaptureError
from qmaps.optim import PRESETS, AdamW, AdamW4bit, AdamW8bit


def trained(cls: Any, **options: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    layer = nn.Linear(64, 128)
    optimizer = cls(layer.parameters(), **options)
    layer(torch.randn(2, 64)).square().mean().backward()
    optimizer.step()
    return copy.deepcopy(optimizer.state_dict())


def test_states_stay_as_saved_and_the_message_has_the_command_to_change_them() -> None:
    saved = trained(AdamW8bit)
    optimizer = AdamW4bit(nn.Linear(64, 128).parameters())
    with pytest.warns(UserWarning, match="^state_dict keeps") as caught:
        optimizer.load_state_dict(saved)
    specs = [group["state_quantizers"] for group in saved["param_groups"]]
    stored, asked = (
        ", ".join(cls(nn.Linear(1, 1).parameters()).param_groups[0]["state_quantizers"].values())
        for cls in (AdamW8bit, AdamW4bit)
    )
    assert [str(warning.message) for warning in caught] == [
        f"state_dict keeps states in {stored} and training goes on so; this optimizer asks for "
        f"{asked}. Converting the checkpoint is optional, and loses precision once: qmaps convert "
        "FILE NEW --to qmaps --states 4bit"
    ]
    assert caught[0].filename == __file__
    assert [group["state_quantizers"] for group in optimizer.param_groups] == specs


@pytest.mark.parametrize("states", ["4bit", "32bit"])
def test_a_converted_checkpoint_loads_without_a_warning(states: str) -> None:
    saved, _ = convert_state_dict(trained(AdamW8bit), "qmaps", states=states)
    optimizer = AdamW(nn.Linear(64, 128).parameters(), state_quantizers=states)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.load_state_dict(saved)


@pytest.mark.parametrize(
    ("saved", "cls", "options"),
    [
        (AdamW8bit, AdamW8bit, {}),
        (AdamW8bit, AdamW, {}),  # it leaves the choice to the checkpoint
        (AdamW, AdamW, {"state_quantizers": "32bit"}),
        (torch.optim.AdamW, AdamW4bit, {}),
    ],
)
def test_nothing_else_warns(saved: Any, cls: Any, options: dict[str, Any]) -> None:
    state_dict = trained(saved)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cls(nn.Linear(64, 128).parameters(), **options).load_state_dict(state_dict)


def test_an_explicit_choice_of_32_bits_warns() -> None:
    optimizer = AdamW(nn.Linear(64, 128).parameters(), state_quantizers="32bit")
    with pytest.warns(UserWarning, match=r"asks for 32 bits\. .* is optional: .* --states 32bit$"):
        optimizer.load_state_dict(trained(AdamW8bit))


def message(optimizer: Any, saved: dict[str, Any]) -> str:
    with pytest.warns(UserWarning, match="keeps states in") as caught:
        optimizer.load_state_dict(saved)
    return str(caught[0].message)


@pytest.mark.parametrize("name", ["SOAP", "Prodigy", "SM3", "AdamWFactor"])
def test_no_conversion_is_advised_of_states_that_convert_refuses(name: str) -> None:
    cls = getattr(optim, name)
    saved = trained(cls, state_quantizers="8bit-0.3")
    told = message(cls(nn.Linear(64, 128).parameters(), state_quantizers="4bit"), saved)
    assert "onvert" not in told
    specs = re.findall(r"[^ ,]+/[^ ,]+", told)
    assert len(specs) == len(set(specs))  # not one for each of SOAP's matrices
    with pytest.raises(CaptureError, match="only states of these optimizers can be converted"):
        convert_state_dict(saved, "qmaps", states="4bit")


def test_the_default_of_version_0_3_is_called_so() -> None:
    saved = trained(AdamW, state_quantizers="B256/DE@8s + B256/DE-0@8u")
    assert message(AdamW8bit(nn.Linear(64, 128).parameters()), saved) == (
        "state_dict keeps states in B256/DE@8s, B256/DE-0@8u ('8bit-0.3') and training goes on "
        "so; this optimizer asks for B256/DE-sym@8s, B256/geometric@8u+qsr. Converting the "
        "checkpoint is optional, and loses precision once: qmaps convert FILE NEW --to qmaps "
        "--states 8bit"
    )


def test_the_group_is_named_and_no_command_is_given_where_no_preset_fits() -> None:
    def groups(*specs: str) -> AdamW:
        return AdamW(
            [
                {"params": nn.Linear(64, 128).parameters(), "state_quantizers": spec}
                for spec in specs
            ]
        )

    saved = groups("8bit", "8bit").state_dict()
    expected = "Converting the checkpoint is optional, and loses precision once"
    text = message(groups("8bit", "4bit"), saved)
    specs = ", ".join(str(spec) for spec in PRESETS["8bit"].specs(("m", "v"), {"m"}).values())
    assert text.startswith(f"group 1 of state_dict keeps states in {specs} and")
    assert text.endswith(expected)
    assert message(groups("B64/DE@8s + B64/DE-0@8u", "8bit"), saved).endswith(expected)


@pytest.mark.parametrize(
    ("kind", "weight_decay", "warns"),
    [(torch.optim.Adam, 0.1, True), (torch.optim.Adam, 0, False), (torch.optim.AdamW, 0.1, False)],
)
def test_weight_decay_of_another_kind(kind: Any, weight_decay: float, warns: bool) -> None:
    saved = trained(kind, weight_decay=weight_decay)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        AdamW(nn.Linear(64, 128).parameters()).load_state_dict(saved)
        optim.Adam(nn.Linear(64, 128).parameters()).load_state_dict(saved)
    assert [str(each.message) for each in caught] == [
        "state_dict has decoupled_weight_decay=False, as those of Adam: weight decay was added to "
        "gradients; AdamW applies weight_decay=0.1 to parameters"
    ] * warns
