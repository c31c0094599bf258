"""Checkpoints with parameters in another order, or prefixes of wrappers on one side."""

from typing import Any

import pytest
import torch
from torch import nn

from qmaps.errors import BadValueError
from qmaps.optim import AdamW

LAYER = ("layers.0.q.weight", "layers.0.k.weight", "layers.0.v.weight")


def optimizer_of(*groups: list[str]) -> AdamW:
    """An optimizer of parameters of one shape, after a step."""
    optimizer = AdamW([{"params": [(name, nn.Parameter(torch.zeros(4, 4))) for name in names]}
                       for names in groups])  # fmt: skip
    for group in optimizer.param_groups:
        for number, param in enumerate(group["params"]):
            param.grad = torch.full((4, 4), 1.0 + number)
    optimizer.step()
    return optimizer


PREFIXES = {
    "DistributedDataParallel": lambda name: f"module.{name}",
    "torch.compile": lambda name: f"_orig_mod.{name}",
    "both": lambda name: f"_orig_mod.module.{name}",
    "compiled layers": lambda name: name.replace("layers.0.", "layers.0._orig_mod."),
    "checkpointed layers": lambda name: name.replace("q.", "_checkpoint_wrapped_module.q."),
    "PEFT": lambda name: f"base_model.model.{name}",
    "Lightning": lambda name: f"net.{name}",
}


@pytest.mark.parametrize("wrapper", PREFIXES)
@pytest.mark.parametrize("where", ["saved", "own"])
def test_an_order_behind_a_prefix_is_compared(wrapper: str, where: str) -> None:
    wrapped = [PREFIXES[wrapper](name) for name in LAYER]
    swapped = [LAYER[1], LAYER[0], LAYER[2]]
    source, target = (wrapped, [*LAYER]) if where == "saved" else ([*LAYER], wrapped)
    optimizer_of(target).load_state_dict(optimizer_of(source).state_dict())
    wrapped_swapped = [PREFIXES[wrapper](name) for name in swapped]
    source, target = (wrapped_swapped, [*LAYER]) if where == "saved" else (swapped, wrapped)
    with pytest.raises(BadValueError) as caught:
        optimizer_of(target).load_state_dict(optimizer_of(source).state_dict())
    assert str(caught.value) == (
        f"state_dict orders the parameters of group 0 differently: {source[0]!r} is in the place "
        f"of this optimizer's {target[0]!r}"
    )


def test_groups_in_another_order_are_refused() -> None:
    with pytest.raises(BadValueError, match="parameters of group 0 differently: 'k' is in the pl"):
        optimizer_of(["q"], ["k"]).load_state_dict(optimizer_of(["k"], ["q"]).state_dict())


def test_names_in_place_of_numbers_are_compared() -> None:
    saved: dict[str, Any] = optimizer_of(["q", "k"]).state_dict()
    group = saved["param_groups"][0]
    names = group.pop("param_names")
    group["params"] = names
    saved["state"] = dict(zip(names, saved["state"].values(), strict=True))
    optimizer_of(["q", "k"]).load_state_dict(saved)
    with pytest.raises(BadValueError, match="parameters of group 0 differently: 'q' is in the pl"):
        optimizer_of(["k", "q"]).load_state_dict(saved)


@pytest.mark.parametrize("names", [["0.weight", "1.weight"], ["a", "b"]])
def test_renamed_parameters_load(names: list[str]) -> None:
    """Another module before them shifts the numbers of a Sequential."""
    optimizer_of(["1.weight", "2.weight"]).load_state_dict(optimizer_of(names).state_dict())
