"""Without a quantizer an optimizer is a 32-bit one; classes of one width keep theirs."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import qmaps
from qmaps import optim
from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.optim import AdamW, AdamW4bit, AdamW8bit, QuantizedOptimizer, param_groups
from qmaps.optim.base import FixedWidth
from tests.optim.families import CASES, Family, Options, floats, label, model, run, train

RULES: list[type[QuantizedOptimizer]] = [
    cls
    for cls in (getattr(optim, name) for name in optim.__all__)
    if inspect.isclass(cls) and issubclass(cls, QuantizedOptimizer) and cls.state_names
]
FULL = [cls for cls in RULES if not issubclass(cls, FixedWidth)]
OF_ONE_WIDTH = [cls for cls in RULES if issubclass(cls, FixedWidth)]
WITH_REFERENCE = [case for case in CASES if case[0].reference is not None]


def options_of(cls: type[QuantizedOptimizer]) -> dict[str, Any]:
    """Options for a rule with a first moment, if it has one."""
    full = next(base for base in cls.__mro__ if not issubclass(base, FixedWidth))
    parameters = inspect.signature(full).parameters
    chosen = {"lr": 1e-3, "momentum": 0.9, "beta1": 0.9}
    return {name: value for name, value in chosen.items() if name in parameters}


def stepped(cls: type[QuantizedOptimizer], **options: Any) -> tuple[nn.Module, QuantizedOptimizer]:
    net = model()
    named = [
        (name, param) for name, param in net.named_parameters() if not cls.unsupported_reason(param)
    ]
    optimizer = cls(named, **options_of(cls), **options)
    train(net, optimizer, range(3))
    return net, optimizer


def quantizers_of(optimizer: QuantizedOptimizer) -> dict[str, str | None]:
    """Quantizers of the first parameter's states, a matrix."""
    state = optimizer.state[optimizer.param_groups[0]["params"][0]]
    return {
        name: value.quantizer.spec if isinstance(value, QuantizedTensor) else None
        for name, value in state.items()
        if name != "step"
    }


def test_names_say_which_classes_quantize() -> None:
    assert {cls.__name__ for cls in OF_ONE_WIDTH} == {
        cls.__name__ for cls in RULES if "bit" in cls.__name__
    }
    assert {"AdamW", "AdamWFactor", "Adafactor", "LARS", "SM3"} <= {cls.__name__ for cls in FULL}


@pytest.mark.parametrize("cls", FULL)
def test_no_state_is_quantized_by_default(cls: type[QuantizedOptimizer]) -> None:
    net, optimizer = stepped(cls)
    assert optimizer.param_groups[0]["state_quantizers"] == {}
    values = [value for state in optimizer.state.values() for value in state.values()]
    assert all(isinstance(value, Tensor) for value in values)
    assert {row.quantizer for row in optimizer.memory()} == {None}
    assert {row.why.split(" for ")[0] for row in optimizer.memory()} == {"no quantizer"}
    assert optimizer.memory().nbytes == optimizer.memory().nbytes_in_32_bits
    same, explicit = stepped(cls, state_quantizers="32bit")
    assert all(map(torch.equal, net.parameters(), same.parameters()))
    assert explicit.state_nbytes == optimizer.state_nbytes


@pytest.mark.parametrize(("family", "options"), WITH_REFERENCE, ids=label)
def test_it_steps_as_torchs(family: Family, options: Options) -> None:
    ours, optimizer, _ = run(family.full, {**options, "lr": 0.05}, shapes=((90, 80), (5000,)))
    theirs, reference, _ = run(
        family.reference, {**options, "lr": 0.05}, shapes=((90, 80), (5000,))
    )
    states = optimizer.state_dict()["state"]
    for number, (p, q) in enumerate(zip(ours, theirs, strict=True)):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-5)
        for name, value in reference.state[q].items():
            assert isinstance(states[number][name], Tensor)
            if name != "step":
                torch.testing.assert_close(states[number][name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cls", OF_ONE_WIDTH)
def test_classes_of_one_width_quantize(cls: type[QuantizedOptimizer]) -> None:
    _, optimizer = stepped(cls)
    specs = [spec for spec in quantizers_of(optimizer).values() if spec is not None]
    assert specs
    bits = {qmaps.quantizer(spec).map.bits for spec in specs}
    paired = (
        {3, 5} if "exp_avg_sq" in quantizers_of(optimizer) else {5}
    )  # 4 bits for each state in the mean
    assert bits in ([{4}, paired] if "4bit" in cls.__name__ else [{8}])


def test_groups_and_overrides_quantize_the_states_they_name() -> None:
    net = model()
    for optimizer in (
        AdamW([
            {"params": list(net[2].named_parameters("2")), "state_quantizers": "8bit"},
            {"params": list(net[0].named_parameters("0"))},
        ]),
        AdamW(net.named_parameters(), overrides={"2.weight": "8bit"}),
        AdamW(param_groups(net, overrides={"2.*": "8bit"})),
    ):  # fmt: skip
        train(net, optimizer, range(1))
        results = {row.parameter: row.quantizer for row in optimizer.memory()
                 if row.state == "exp_avg"}  # fmt: skip
        assert results["2.weight"] == "B256/DE-sym@8s"
        assert results["0.weight"] is None
        late = nn.Parameter(torch.zeros(5000))
        optimizer.add_param_group({"params": [("late", late)]})
        assert optimizer.quantizer_of("exp_avg", late, optimizer.param_groups[-1]) is None


def test_a_checkpoint_in_32_bits_loads() -> None:
    for saved in (stepped(AdamW)[1], torch_adamw()):
        net = model()
        optimizer = AdamW(net.named_parameters())
        optimizer.load_state_dict(saved.state_dict())
        assert quantizers_of(optimizer) == {"exp_avg": None, "exp_avg_sq": None}
        theirs = saved.param_groups[0]["params"][0]
        for name in ("exp_avg", "exp_avg_sq"):
            ours = optimizer.state[net[0].weight][name]
            assert torch.equal(ours, saved.state[theirs][name])
        train(net, optimizer, range(3, 4))


def torch_adamw() -> torch.optim.Optimizer:
    net = model()
    optimizer = torch.optim.AdamW(net.named_parameters())
    train(net, optimizer, range(3))
    return optimizer


@pytest.mark.parametrize("version", ["this", "0.1", "before overrides"])
def test_a_checkpoint_of_an_8_bit_run_goes_on_in_8_bits(version: str) -> None:
    """Checkpoints of every version have the quantizers of their groups."""
    net, before = stepped(AdamW, state_quantizers="8bit")
    saved = before.state_dict()
    if version != "this":
        del saved["qmaps"]
    if version == "before overrides":
        for name in ("overrides", "quantize", "param_names"):
            saved["param_groups"][0].pop(name)
    resumed = model()
    resumed.load_state_dict(net.state_dict())
    optimizer = AdamW(resumed.named_parameters())
    optimizer.load_state_dict(saved)
    eight = {"exp_avg": "B256/DE-sym@8s", "exp_avg_sq": "B256/geometric@8u+qsr"}
    assert optimizer.param_groups[0]["state_quantizers"] == eight
    for trained, its in ((net, before), (resumed, optimizer)):
        train(trained, its, range(3, 6))
        assert quantizers_of(its) == eight
    assert all(map(torch.equal, net.parameters(), resumed.parameters()))


def test_a_checkpoint_of_an_earlier_4_bit_run_goes_on_with_its_quantizers() -> None:
    """Until version 0.2 the 4-bit classes had the quantizers of the paper."""
    net, before = stepped(AdamW, state_quantizers="paper-4bit")
    saved = before.state_dict()
    saved["qmaps"]["optimizer"] = "AdamW4bit"
    resumed = model()
    resumed.load_state_dict(net.state_dict())
    optimizer = AdamW4bit(resumed.named_parameters())
    optimizer.load_state_dict(saved)
    for trained, its in ((net, before), (resumed, optimizer)):
        train(trained, its, range(3, 6))
        assert quantizers_of(its) == {"exp_avg": "B128/DE@4s", "exp_avg_sq": "rank1/linear@4u"}
    assert all(map(torch.equal, net.parameters(), resumed.parameters()))


def test_quantized_states_whose_groups_name_no_quantizer_are_decoded_in_the_next_step() -> None:
    _, before = stepped(AdamW8bit)
    saved = before.state_dict()
    for group in saved["param_groups"]:
        del group["state_quantizers"]
    net = model()
    optimizer = AdamW(net.named_parameters())
    optimizer.load_state_dict(saved)
    assert quantizers_of(optimizer) == {
        "exp_avg": "B256/DE-sym@8s",
        "exp_avg_sq": "B256/geometric@8u+qsr",
    }
    row = optimizer.memory().rows[0]
    assert row.why == "32 bits from the next step: no quantizer for exp_avg"
    decoded = floats(optimizer.state[net[0].weight]["exp_avg"]).clone()
    net[0].weight.grad = torch.zeros_like(net[0].weight)
    optimizer.step()
    assert quantizers_of(optimizer) == {"exp_avg": None, "exp_avg_sq": None}
    torch.testing.assert_close(optimizer.state[net[0].weight]["exp_avg"], 0.9 * decoded)
