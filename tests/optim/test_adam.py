"""Adam with quantized moments."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from qmaps.optim import Adam, Adam4bit, Adam8bit, AdamW
from tests.optim.one_step import assert_bits, random_arrays, step

STATES = {"exp_avg": "m", "exp_avg_sq": "v"}


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_the_documented_operations(decay: float, maximize: bool) -> None:
    f = np.float32
    x = random_arrays("m", "V")
    actual = step(Adam, x, 4, STATES, lr=0.01, betas=(0.9, 0.99), eps=1e-6, weight_decay=decay,
                 maximize=maximize)  # fmt: skip
    p, g, m, v = (x[name] for name in "pgmv")
    g = -g if maximize else g
    if decay:
        g = g + f(0.1) * p
    m = f(0.9) * m + f(1 - 0.9) * g
    v = f(0.99) * v + f(1 - 0.99) * (g * g)
    denominator = np.sqrt(v) / f((1 - 0.99**5) ** 0.5) + f(1e-6)
    p = p - f(0.01 / (1 - 0.9**5)) * (m / denominator)
    assert_bits(actual, p=p, m=m, v=v)


def test_weight_decay_is_coupled_and_that_of_adamw_is_not() -> None:
    x = random_arrays("m", "V")
    options = {"lr": 0.01, "weight_decay": 0.1}
    adam, adamw = (step(cls, x, 4, STATES, **options) for cls in (Adam, AdamW))
    plain = step(Adam, x, 4, STATES, lr=0.01)
    assert np.array_equal(adamw["m"], plain["m"])
    assert not np.allclose(adam["m"], plain["m"])


def test_presets_of_fixed_widths() -> None:
    for cls, first, second in (
        (Adam8bit, "B256/DE-sym@8s", "B256/geometric@8u+qsr"),
        (Adam4bit, "B64xbf16/mu-law10:linear0@5s+qsr", "B64xbf16/geometric@3u+qsr"),
    ):
        assert cls([torch.zeros(1)]).param_groups[0]["state_quantizers"] == {
            "exp_avg": first, "exp_avg_sq": second,
        }  # fmt: skip


def test_checkpoints_of_other_rules_are_refused() -> None:
    saved = torch.optim.Adam([torch.zeros(1)], amsgrad=True).state_dict()
    with pytest.raises(ValueError) as caught:
        Adam([torch.zeros(1)]).load_state_dict(saved)
    assert str(caught.value) == "state_dict has amsgrad=True; only False is supported"


def test_a_checkpoint_brings_its_kind_of_weight_decay_along() -> None:
    saved = torch.optim.Adam([torch.zeros(1)], decoupled_weight_decay=True).state_dict()
    optimizer = Adam([torch.zeros(1)])
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["decoupled_weight_decay"] is True
    assert optimizer.state_dict()["param_groups"][0]["decoupled_weight_decay"] is True


def test_adamw_takes_a_checkpoint_of_adam_as_torch_does() -> None:
    saved = torch.optim.Adam([torch.zeros(1)], lr=0.5).state_dict()
    optimizer = AdamW([torch.zeros(1)])
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eps": -1e-8}, "eps=-1e-08 must be at least 0"),
        ({"betas": (-0.1, 0.9)}, "betas[0]=-0.1 must be at least 0 and below 1"),
        ({"betas": (0.9, 1.0)}, "betas[1]=1.0 must be at least 0 and below 1"),
    ],
)
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        Adam([torch.zeros(1)], **options)
    assert str(caught.value) == message
