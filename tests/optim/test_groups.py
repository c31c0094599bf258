"""Parameter groups by names and module types."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from qmaps.errors import BadTypeError, BadValueError
from qmaps.optim import AdamW, AdamW8bit, muon_groups, param_groups
from tests.optim.test_choice import (
    EIGHT,
    FLOATS,
    FOUR,
    LISTED,
    Net,
    reasons,
    step,
    stored,
)


def test_groups_by_names_and_module_types() -> None:
    net = Net()
    groups = param_groups(
        net, overrides={"body.1.*": "4bit", nn.Embedding: None, nn.Linear: "8bit"}
    )
    assert [(group["param_names"], group["override_key"]) for group in groups] == [
        (["tokens.weight"], "Embedding"),
        (["body.0.weight", "body.0.bias", "head.weight", "head.bias"], "Linear"),
        (["body.1.weight", "body.1.bias"], "'body.1.*'"),
    ]
    optimizer = AdamW(groups, state_quantizers="paper-8bit", min_quantized_size=0)
    step(net, optimizer)
    actual = stored(optimizer)
    assert actual["tokens.weight"] == FLOATS
    assert actual["head.bias"] == actual["body.0.weight"] == EIGHT
    assert actual["body.1.bias"] == FOUR
    why = reasons(optimizer)
    assert why["tokens.weight"] == "override Embedding"
    assert why["body.1.weight"] == "override 'body.1.*'"
    again = AdamW(param_groups(net))
    with pytest.raises(BadValueError) as caught:
        again.load_state_dict(optimizer.state_dict())
    assert str(caught.value) == "state_dict has 3 parameter groups, but this optimizer has 1"
    again = AdamW(param_groups(net, overrides=dict.fromkeys(["tokens.*", "body.1.*", "*"])))
    again.load_state_dict(optimizer.state_dict())
    assert str(again.memory()) == str(optimizer.memory())


def test_modules_of_a_type_include_their_children() -> None:
    net = Net()
    groups = param_groups(net, overrides={nn.ModuleList: None})
    assert [group["param_names"] for group in groups] == [
        ["tokens.weight", "head.weight", "head.bias"],
        ["body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias"],
    ]


def test_weight_decay_leaves_biases_and_norms_out() -> None:
    net = nn.Sequential(nn.Linear(64, 80), nn.LayerNorm(80), nn.Linear(80, 3))
    net[2].weight.requires_grad_(False)
    groups = param_groups(net, weight_decay=0.1, overrides={"0.*": None})
    assert [(g["param_names"], g["weight_decay"], "state_quantizers" in g) for g in groups] == [
        (["0.weight"], 0.1, True),
        (["0.bias"], 0.0, True),
        (["1.weight", "1.bias", "2.bias"], 0.0, False),
    ]
    assert "weight_decay" not in param_groups(net)[0]
    assert [group["weight_decay"] for group in AdamW8bit(groups).param_groups] == [0.1, 0.0, 0.0]


def test_a_tied_parameter_has_all_its_names() -> None:
    net = nn.ModuleDict({"tokens": nn.Embedding(100, 64), "head": nn.Linear(64, 100, bias=False)})
    net["head"].weight = net["tokens"].weight
    for key in ("head.weight", "tokens.*", nn.Linear, nn.Embedding):
        groups = param_groups(net, overrides={key: None})
        assert [group["param_names"] for group in groups] == [["tokens.weight"]]
        assert len(groups[0]["params"]) == 1


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        ("heads.*", BadValueError,
         f"overrides names 'heads.*', which matches no parameter; there are {LISTED}; "
         "nearest match: head.bias"),
        (nn.LayerNorm, BadValueError,
         "overrides names LayerNorm, but no such module holds a trainable parameter; the "
         "model's modules are Embedding, Linear, ModuleList, Net"),
        (int, BadTypeError,
         "overrides has the key <class 'int'>; a key must be a parameter's name, a pattern "
         "of names, or a module type"),
    ],
)  # fmt: skip
def test_bad_keys_of_groups(key, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        param_groups(Net(), overrides={key: None})
    assert str(caught.value) == message


class Experts(nn.Module):
    """The experts of a layer, with a matrix and biases for each, as in gpt-oss."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(16, 4)
        self.gate_up_proj = nn.Parameter(torch.zeros(4, 16, 32))
        self.gate_up_proj_bias = nn.Parameter(torch.zeros(4, 32))
        self.bias_k = nn.Parameter(torch.zeros(4, 1, 16))
        self.scale = nn.Parameter(torch.zeros(1, 16))
        self.column = nn.Parameter(torch.zeros(4, 1))
        self.biased = nn.Parameter(torch.zeros(4, 16))


@pytest.mark.parametrize("stacks", [[], ["experts.gate_up_proj"], ["experts.*"]], ids=str)
def test_muon_gets_no_biases_and_no_vectors(stacks: list[str]) -> None:
    model = nn.ModuleDict({"experts": Experts()})
    matrices, remaining = muon_groups(model, stacks=stacks)
    expected = ["experts.gate_up_proj", "experts.biased", "experts.router.weight"]
    assert [name for name, _ in matrices] == expected[0 if stacks else 1 :]
    assert len(matrices) + len(remaining) == len(list(model.parameters()))


def test_muon_gets_no_tied_parameter_that_is_a_bias_elsewhere() -> None:
    model = nn.ModuleDict({"a": nn.Linear(4, 4, bias=False), "b": nn.Module()})
    model["b"].bias = model["a"].weight
    assert [name for name, _ in muon_groups(model)[0]] == []
