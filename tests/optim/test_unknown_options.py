"""Keys of parameter groups: other code's keys stay, misspelled options are refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from qmaps import optim
from qmaps.errors import BadTypeError
from qmaps.optim.other_libraries import INSTEAD, TAGS

CLASSES: list[Any] = [
    cls
    for name in optim.__all__
    if isinstance(cls := getattr(optim, name), type)
    and issubclass(cls, optim.QuantizedOptimizer)
    and cls is not optim.QuantizedOptimizer
]
OF_OTHERS = {  # torch's schedulers and SWA, timm, Lightning, transformers, GaLore, PARQ
    "initial_lr": 0.1, "max_lr": 1.0, "min_lr": 0.0, "swa_lr": 0.05, "base_momentum": 0.8,
    "max_momentum": 0.9, "lr_scale": 0.5, "lr_mult": 2, "wd_mult": 0, "decay_mult": 0, "name": "x",
    "names": ["x"], "group_name": "head", "layer_id": 3, "lr_adapt": True, "rank": 4, "scale": 0.25,
    "update_proj_gap": 200, "proj_type": "std", "quant_bits": 4, "use_muon": True, "args": [],
    "fix_step": False, "is_expert": True, "no_decay": True, "T_max": 10, "gamma": 0.9, 7: "number",
    "override_key": "'*'", "step_count": 1, "last_lr": 0.1, "dampening": 0, "algorithm": "lion",
}  # fmt: skip


@pytest.mark.parametrize("cls", CLASSES)
def test_keys_of_other_code_are_kept(cls: Any) -> None:
    defaults = cls([nn.Parameter(torch.zeros(3, 3))]).defaults
    keys: dict[Any, Any] = {key: value for key, value in OF_OTHERS.items() if key not in defaults}
    optimizer = cls([{"params": [nn.Parameter(torch.zeros(3, 3))], **keys}])
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3, 3))], **keys})
    for group in optimizer.param_groups:
        assert {key: group[key] for key in keys} == keys
    again = copy.deepcopy(optimizer)
    again.load_state_dict(optimizer.state_dict())
    assert all(again.param_groups[1][key] == value for key, value in keys.items())


def test_checkpoints_with_any_key_go_on_loading() -> None:
    optimizer = optim.AdamW8bit([nn.Parameter(torch.zeros(3))])
    saved = optimizer.state_dict()
    odd = {"optim_bits": 8, "state_quantizer": "4bit", "percentile_clipping": 100}
    saved["param_groups"][0] |= odd
    optimizer.load_state_dict(saved)
    assert odd.items() <= optimizer.param_groups[0].items()
    torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=5)


END = "is not an option of a parameter group of AdamW8bit"
IN_GROUPS = [
    ({"state_quantizer": "4bit"}, f"state_quantizer='4bit' {END}; nearest match: state_quantizers"),
    ({"StateQuantizers": "4bit"}, f"StateQuantizers='4bit' {END}; nearest match: state_quantizers"),
    ({"quantizer": "4bit"}, f"quantizer='4bit' {END}; nearest match: state_quantizers"),
    ({"quantized": False}, f"quantized=False {END}; nearest match: quantize"),
    ({"wieght_decay": 0.0}, f"wieght_decay=0.0 {END}; nearest match: weight_decay"),
    ({"weight-decay": 0.0}, f"weight-decay=0.0 {END}; nearest match: weight_decay"),
    ({"beta": (0.9, 0.9)}, f"beta=(0.9, 0.9) {END}; nearest match: betas"),
    ({"min_quantize_size": 1}, f"min_quantize_size=1 {END}; nearest match: min_quantized_size"),
    ({"optim_bits": 32}, f"optim_bits=32 {END}; bitsandbytes has it. In qmaps: "
     "'state_quantizers': '8bit', or 'quantize': False for 32 bits"),
    ({"block_wise": False}, f"block_wise=False {END}; bitsandbytes has it. In qmaps: the "
     "normalizer of a spec: B256, or tensor for one scale"),
    ({"block_size": 64}, f"block_size=64 {END}; a spec in the group's state_quantizers has the "
     "block size, such as B128/DE@4s"),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "message"), IN_GROUPS, ids=[next(iter(k)) for k, _ in IN_GROUPS])
def test_mistaken_options_in_groups_are_refused(keys: dict[str, Any], message: str) -> None:
    first, second = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))
    with pytest.raises(BadTypeError) as caught:
        optim.AdamW8bit([{"params": [first], **keys}])
    assert str(caught.value) == message
    optimizer = optim.AdamW8bit([first])
    with pytest.raises(BadTypeError) as caught:
        optimizer.add_param_group({"params": [second], **keys})
    assert str(caught.value) == message
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("name", sorted(set(INSTEAD) - TAGS))
def test_no_option_of_another_library_is_ignored_in_a_group(name: str) -> None:
    with pytest.raises(BadTypeError, match=r"has it\. In qmaps: "):
        optim.Lion([{"params": [nn.Parameter(torch.zeros(3))], name: 1}])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"state_quantizer": "4bit"}, "state_quantizer='4bit' is not an option of AdamW; nearest "
         "match: state_quantizers"),
        ({"weight_deacy": 0.1}, "weight_deacy=0.1 is not an option of AdamW; nearest match: "
         "weight_decay"),
        ({"block_size": 64}, "block_size=64 is not an option of AdamW; classes of one width have "
         "it, such as AdamW8bit, and specs, such as B256/DE@8s"),
    ],
)  # fmt: skip
def test_misspelt_arguments_have_a_suggestion(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadTypeError) as caught:
        optim.AdamW([nn.Parameter(torch.zeros(3))], **options)
    assert str(caught.value) == message
