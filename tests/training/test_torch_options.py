"""Options of torch's optimizers are accepted if they change nothing, and refused otherwise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from qmaps import optim
from tests.training.runs import assert_same, every_with, gradients, make, net

pytestmark = pytest.mark.slow

HARMLESS = [
    {"foreach": True},
    {"foreach": False, "fused": True},
    {"capturable": True, "differentiable": False},
    {"foreach": None, "fused": None},
]


@every_with("options", HARMLESS, ["AdamW8bit"])
def test_implementations_of_torch_change_nothing(
    kind: str, options: dict[str, Any], engine: str
) -> None:
    results = []
    for accepted in ({}, options):
        model = net()
        optimizer = make(kind, [{"params": model[0].parameters(), **accepted}], **accepted)
        optimizer.add_param_group({"params": model[2].parameters(), **accepted})
        for number in range(2):
            gradients(model.parameters(), number)
            optimizer.step()
        assert not set(options) & set(optimizer.param_groups[0])
        results.append(optimizer)
    assert_same(*results)


REFUSED = [
    (
        {"differentiable": True},
        ("differentiable=True is not supported: autograd does not record steps"),
    ),
    (
        {"amsgrad": True},
        "amsgrad=True is not supported: qmaps does not keep the largest second moment",
    ),
    ({"fused": "yes"}, "fused='yes' must be True, False or None"),
]


@pytest.mark.parametrize("in_group", [False, True])
@pytest.mark.parametrize(("options", "message"), REFUSED)
@pytest.mark.parametrize("cls", [optim.Adam, optim.AdamW, optim.AdamW4bit, optim.AdamW8bit])
def test_options_that_change_the_rule_are_refused(
    cls: type[optim.QuantizedOptimizer], options: dict[str, Any], message: str, in_group: bool
) -> None:
    p = nn.Parameter(torch.zeros(3))
    with pytest.raises((TypeError, ValueError)) as caught:
        cls([{"params": [p], **options}] if in_group else [p], **({} if in_group else options))
    assert str(caught.value) == message


@pytest.mark.parametrize("in_group", [False, True])
def test_adam_with_decoupled_weight_decay_is_adamw(in_group: bool) -> None:
    options = {"weight_decay": 0.1, "lr": 0.3, "amsgrad": False}
    results = []
    for kind in (optim.Adam, optim.AdamW, torch.optim.Adam):
        chosen = {} if kind is optim.AdamW else {"decoupled_weight_decay": True}
        model = nn.Linear(3, 3)
        nn.init.ones_(model.weight)
        groups = [{"params": [model.weight], **(chosen if in_group else {})}]
        optimizer: Any = kind(groups, **options, **({} if in_group else chosen))
        for number in range(3):
            gradients([model.weight], number)
            optimizer.step()
        results.append(model.weight.detach())
    assert torch.equal(results[0], results[1])
    torch.testing.assert_close(results[0], results[2])


@pytest.mark.parametrize(
    ("cls", "options", "message"),
    [
        (optim.SGD, {"amsgrad": False}, "amsgrad=False is not an option of SGD"),
        (optim.Lion8bit, {"amsgrad": True}, "amsgrad=True is not an option of Lion8bit"),
        (optim.AdamW8bit, {"percentile_clipping": 5}, "percentile_clipping=5 is not an option of "
         "AdamW8bit; bitsandbytes has it. In qmaps: none; use torch.nn.utils.clip_grad_norm_"),
        (optim.AdamW8bit, {"optim_bits": 4}, "optim_bits=4 is not an option of AdamW8bit; "
         "bitsandbytes has it. In qmaps: state_quantizers='8bit', or classes such as AdamW8bit"),
        (optim.AdamW4bit, {"bf16_stochastic_round": True}, "bf16_stochastic_round=True is not "
         "an option of AdamW4bit; torchao has it. In qmaps: stochastic_rounding"),
        (optim.AdamW, {"learning_rate": 1}, "learning_rate=1 is not an option of AdamW"),
    ],
)  # fmt: skip
def test_options_of_nobody_are_refused(
    cls: type[optim.QuantizedOptimizer], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError) as caught:
        cls([nn.Parameter(torch.zeros(3))], **options)
    assert str(caught.value) == message
