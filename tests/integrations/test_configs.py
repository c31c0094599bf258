"""Optimizers from YAML with hydra: a path and scalars."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import nn

from qmaps import optim
from tests.training.runs import assert_same, gradients, net

pytestmark = pytest.mark.slow

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")


def instantiate(text: str, *args: Any) -> Any:
    """Build an object like ``hydra.utils.instantiate``."""
    options = yaml.safe_load(text)["optimizer"]
    module, name = options.pop("_target_").rsplit(".", 1)
    return getattr(importlib.import_module(module), name)(*args, **options)


CONFIGS = {
    """
    optimizer:
      _target_: qmaps.optim.AdamW8bit
      lr: 2.0e-5
      fused: True
    """: lambda p: optim.AdamW8bit(p, lr=2e-5),
    """
    optimizer:
      _target_: qmaps.optim.AdamW
      lr: 0.01
      betas: [0.9, 0.95]
      weight_decay: 0
      state_quantizers: B128/DE@4s+sr + rank1/linear@4u
      min_quantized_size: 0
      seed: 7
    """: lambda p: optim.AdamW(
        p, lr=0.01, betas=(0.9, 0.95), weight_decay=0, min_quantized_size=0, seed=7,
        state_quantizers={"exp_avg": "B128/DE@4s+sr", "exp_avg_sq": "rank1/linear@4u"},
    ),
    """
    optimizer:
      _target_: qmaps.optim.SGD
      lr: 0.1
      momentum: 0.9
      nesterov: true
      state_quantizers: paper-4bit
      min_quantized_size: 0
    """: lambda p: optim.SGD(
        p, lr=0.1, momentum=0.9, nesterov=True, min_quantized_size=0,
        state_quantizers={"momentum_buffer": "B128/DE@4s"},
    ),
    """
    optimizer:
      _target_: qmaps.optim.AdamW
      lr: 0.01
      state_quantizers: 32-bit + B64/linear@8u
      overrides: {"0.*": null}
      min_quantized_size: 0
      master_weights: true
    """: lambda p: optim.AdamW(
        p, lr=0.01, overrides={"0.*": None}, min_quantized_size=0, master_weights=True,
        state_quantizers={"exp_avg": None, "exp_avg_sq": "B64/linear@8u"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", CONFIGS, ids=lambda text: text.split()[2])
def test_the_optimizer_is_the_one_written_in_python(text: str) -> None:
    models = [net(torch.bfloat16) for _ in range(2)]
    ours = instantiate(text, models[0].named_parameters())
    theirs = CONFIGS[text](models[1].named_parameters())
    for number in range(2):
        for model, optimizer in zip(models, (ours, theirs), strict=True):
            gradients(model.parameters(), number)
            optimizer.step()
    assert type(ours) is type(theirs)
    for actual, expected in zip(ours.param_groups, theirs.param_groups, strict=True):
        skip = {"params", "betas"}
        assert {k: v for k, v in actual.items() if k not in skip} == {
            k: v for k, v in expected.items() if k not in skip
        }
    assert_same(ours, theirs)
    again = instantiate(text, models[0].named_parameters())
    again.load_state_dict(ours.state_dict())
    assert_same(again, ours)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "{lr: 2e-5}",
            ("lr='2e-5' must be a number; YAML reads 1e-3 as text, but 1.0e-3 as a number"),
        ),
        (
            "{state_quantizers: B128/DE@4s + B128/DE@4s + 32-bit}",
            "pair='B128/DE@4s + B128/DE@4s + 32-bit' has 3 parts; expected 'FIRST + SECOND' "
            "with spaces around '+' and 32-bit for a moment that is not quantized",
        ),
        (
            "{state_quantizers: B128/DE@4u + B128/DE@4s}",
            "state_quantizers sets 'exp_avg' to B128/DE@4u, which is unsigned; exp_avg has "
            "negative values and needs a signed map",
        ),
        (
            "{state_quantizers: B128/DE@4s}",
            "state_quantizers='B128/DE@4s' is not a preset; allowed are 32bit, 8bit, "
            "4bit, 3bit, 2bit, "
            "paper-8bit, paper-4bit, 'SIGNED + UNSIGNED' of specs, or a dict from state names to "
            "specs",
        ),
        ("{max_grad_norm: 1}", "max_grad_norm=1 is not an option of AdamW"),
    ],
)
def test_bad_options_of_a_file_are_named(options: str, message: str) -> None:
    text = "optimizer: {_target_: qmaps.optim.AdamW, " + options[1:]
    with pytest.raises((ValueError, TypeError)) as caught:
        instantiate(text, [nn.Parameter(torch.zeros(3))])
    assert str(caught.value) == message
