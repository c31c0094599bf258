"""CPU offload: the same bits as the optimizer without it, in any training loop."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.errors import BadTypeError, NonFiniteError
from qmaps.nn import StableEmbedding
from qmaps.optim import (
    AdamW4bit,
    AdamW8bit,
    AdamWScheduleFree,
    CPUOffloadOptimizer,
    Lion8bit,
    Prodigy4bit,
    SGD8bit,
)

Loop = Callable[[nn.Module, torch.optim.Optimizer], None]
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.gpu),
]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device")
    return str(request.param)


def net(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(80, 70), nn.Tanh(), nn.Linear(70, 80, bias=False))
    return layers.to(dtype)


def backward(model: nn.Module, number: int) -> None:
    """Add gradients computed from the parameters, with the same bits on every device."""
    generator = torch.Generator().manual_seed(number)
    for param in model.parameters():
        noise = torch.randn(param.shape, generator=generator).to(param.dtype)
        (param * (noise.to(param.device) + param.detach())).sum().backward()


def plain(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for number in range(5):
        backward(model, number)
        optimizer.step()
        optimizer.zero_grad()


def scheduled(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=6)
    for number in range(5):
        backward(model, number)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()


def clipped(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for number in range(5):
        backward(model, number)
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()


def accumulated(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for number in range(6):
        backward(model, number)
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()


def zeroed_in_place(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for number in range(4):
        backward(model, number)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


def zeroed_by_the_model(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for number in range(4):
        model.zero_grad()
        backward(model, number)
        optimizer.step()


def changed_behind_its_back(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    plain(model, optimizer)
    for param in model.parameters():
        param.data.mul_(-0.5)
    plain(model, optimizer)
    for param in model.parameters():
        param.data = param.detach() + 1
    plain(model, optimizer)


def with_and_without_gradients(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    last = list(model.parameters())[-1]
    for number in range(6):
        last.requires_grad_(number % 3 == 1)
        for param in model.parameters():
            if param.requires_grad:
                (param * number).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


LOOPS = [
    plain, scheduled, accumulated, zeroed_in_place, zeroed_by_the_model, changed_behind_its_back,
    with_and_without_gradients,
]  # fmt: skip
OPTIMIZERS = [
    (AdamW8bit, {"lr": 0.01}),
    (AdamW4bit, {"lr": 0.01, "seed": 3, "min_quantized_size": 100}),
    (SGD8bit, {"lr": 0.01, "momentum": 0.9}),
    (Lion8bit, {"lr": 0.01, "betas": (0.8, 0.9)}),
    (torch.optim.AdamW, {"lr": 0.01}),
]


def trained(
    offload: bool,
    loop: Loop,
    cls: type[torch.optim.Optimizer],
    options: dict[str, Any],
    device: str,
    dtype: torch.dtype = torch.float32,
) -> tuple[list[Tensor], dict[str, Any]]:
    model = net(dtype).to(device if offload else "cpu")
    optimizer = (
        CPUOffloadOptimizer(model.parameters(), cls, **options)
        if offload
        else cls(model.parameters(), **options)
    )
    loop(model, optimizer)
    return [param.detach().cpu() for param in model.parameters()], optimizer.state_dict()


def check_same(actual: Any, expected: Any) -> None:
    """Compare nested values bit for bit."""
    if isinstance(expected, Tensor):
        assert torch.equal(actual, expected)
    elif isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        for key, value in expected.items():
            check_same(actual[key], value)
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected)
        for pair in zip(actual, expected, strict=True):
            check_same(*pair)
    else:
        assert actual == expected


@pytest.mark.parametrize("loop", [*LOOPS, clipped], ids=lambda loop: loop.__name__)
@pytest.mark.parametrize(
    ("cls", "options"), OPTIMIZERS, ids=lambda value: getattr(value, "__name__", "")
)
def test_bits_of_the_optimizer_on_the_cpu(
    loop: Loop, cls: type[torch.optim.Optimizer], options: dict[str, Any], device: str
) -> None:
    check_same(
        trained(True, loop, cls, options, device), trained(False, loop, cls, options, device)
    )


def test_gradients_of_a_dtype_of_their_own() -> None:
    if not hasattr(nn.Parameter, "grad_dtype"):
        pytest.skip("this torch has no grad_dtype")
    weights = []
    for cls in (AdamW8bit, CPUOffloadOptimizer):
        param = nn.Parameter(torch.linspace(-1, 1, 5000).bfloat16())
        param.grad_dtype = torch.float32
        optimizer = cls([param])
        for _ in range(2):
            (param.float() * torch.linspace(1, 3, 5000)).sum().backward()
        optimizer.step()
        weights.append(param.detach())
    assert torch.equal(*weights)


@pytest.mark.parametrize("options", [{"master_weights": True}, {"stochastic_rounding": True}])
def test_bfloat16(options: dict[str, Any], device: str) -> None:
    options = {"lr": 0.01, **options}
    actual = trained(True, plain, AdamW8bit, options, device, torch.bfloat16)
    check_same(actual, trained(False, plain, AdamW8bit, options, device, torch.bfloat16))


def test_states_stay_on_the_cpu_and_are_shown(device: str) -> None:
    model = net().to(device)
    optimizer = CPUOffloadOptimizer(model.named_parameters(), overrides={"0.*": "4bit"})
    plain(model, optimizer)
    weight, second = model[0].weight, model[2].weight
    assert isinstance(optimizer.state[weight]["exp_avg"], QuantizedTensor)
    assert optimizer.state[weight]["exp_avg"].quantizer.spec == "B64xbf16/mu-law10:linear0@5s+qsr"
    assert optimizer.state[second]["exp_avg"].quantizer.spec == "B256/DE-sym@8s"
    assert optimizer.state[weight]["exp_avg"].codes().device.type == "cpu"
    rows = optimizer.host_optimizer.memory().rows
    assert [row.parameter for row in rows if row.state == "exp_avg"] == [
        "0.weight", "0.bias", "2.weight"
    ]  # fmt: skip


def test_a_parameter_that_was_frozen_at_first() -> None:
    param = nn.Parameter(torch.ones(5), requires_grad=False)
    unfrozen = nn.Parameter(torch.ones(5))
    optimizer = CPUOffloadOptimizer([param], SGD8bit, lr=0.5)
    param.requires_grad_()
    for thawed in (param, unfrozen):
        thawed.sum().backward()
    optimizer.step()
    SGD8bit([unfrozen], lr=0.5).step()
    assert torch.equal(param, unfrozen)


def test_options_of_a_checkpoint() -> None:
    saved = CPUOffloadOptimizer(net().parameters(), AdamW8bit, lr=0.25).state_dict()
    optimizer = CPUOffloadOptimizer(net().parameters(), AdamW8bit, lr=0.5)
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["lr"] == 0.25
    assert optimizer.state_dict()["param_groups"] == saved["param_groups"]


@pytest.mark.parametrize("starts_offloaded", [True, False])
def test_checkpoints_go_on_with_and_without_offloading(starts_offloaded: bool) -> None:
    def make(model: nn.Module, offload: bool) -> torch.optim.Optimizer:
        if offload:
            return CPUOffloadOptimizer(model.parameters(), AdamW8bit, lr=0.01)
        return AdamW8bit(model.parameters(), lr=0.01)

    expected = net()
    uninterrupted = make(expected, False)
    plain(expected, uninterrupted)
    plain(expected, uninterrupted)
    model = net()
    first = make(model, starts_offloaded)
    plain(model, first)
    second = make(model, not starts_offloaded)
    second.load_state_dict(first.state_dict())
    plain(model, second)
    check_same(list(model.parameters()), list(expected.parameters()))
    check_same(second.state_dict(), uninterrupted.state_dict())


def test_groups_and_their_options() -> None:
    model, grouped = net(), net()
    optimizer = CPUOffloadOptimizer(
        [{"params": model[0].parameters(), "lr": 0.1, "quantize": False}], AdamW8bit, lr=0.01
    )
    optimizer.add_param_group({"params": [model[2].weight], "betas": (0.5, 0.9)})
    reference = AdamW8bit(
        [
            {"params": grouped[0].parameters(), "lr": 0.1, "quantize": False},
            {"params": [grouped[2].weight], "betas": (0.5, 0.9)},
        ],
        lr=0.01,
    )
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.01]
    plain(model, optimizer)
    plain(grouped, reference)
    check_same(list(model.parameters()), list(grouped.parameters()))


def test_a_refused_group_leaves_no_trace() -> None:
    model = net()
    optimizer = CPUOffloadOptimizer(model[0].parameters(), AdamW8bit)
    with pytest.raises(BadTypeError, match="optim_bits"):
        optimizer.add_param_group({"params": [model[2].weight], "optim_bits": 4})
    assert len(optimizer.param_groups) == 1
    plain(model, optimizer)
    assert model[2].weight.grad is not None  # another optimizer may need it


def test_a_parameter_that_is_listed_twice_steps_twice() -> None:
    actual, expected = nn.Parameter(torch.ones(5)), nn.Parameter(torch.ones(5))
    actual.grad = expected.grad = torch.ones(5)
    with pytest.warns(UserWarning, match="duplicate parameters"):
        CPUOffloadOptimizer([actual, actual], SGD8bit, lr=0.1, momentum=0.9).step()
    with pytest.warns(UserWarning, match="duplicate parameters"):
        SGD8bit([expected, expected], lr=0.1, momentum=0.9).step()
    assert torch.equal(actual, expected)


def test_marked_parameters_stay_in_32_bits() -> None:
    embedding = StableEmbedding(100, 64)
    optimizer = CPUOffloadOptimizer(embedding.parameters(), AdamW8bit)
    assert {row.why for row in optimizer.host_optimizer.memory()} == {"module StableEmbedding"}


def test_a_step_that_raises_changes_nothing() -> None:
    model = net()
    optimizer = CPUOffloadOptimizer(model.parameters(), AdamW8bit, nonfinite="raise")
    backward(model, 0)
    model[0].weight.grad[3] = torch.nan
    before = copy.deepcopy(list(model.parameters()))
    with pytest.raises(NonFiniteError):
        optimizer.step()
    check_same(list(model.parameters()), before)


def test_closures() -> None:
    model = net()
    optimizer = CPUOffloadOptimizer(model.parameters(), AdamW8bit)

    def closure() -> float:
        optimizer.zero_grad()
        backward(model, 0)
        return 4.5

    before = model[0].weight.detach().clone()
    assert optimizer.step(closure) == 4.5
    assert not torch.equal(before, model[0].weight)


def test_a_frozen_parameter_is_not_copied() -> None:
    frozen = nn.Parameter(torch.ones(5, 5), requires_grad=False)
    trained = nn.Parameter(torch.ones(5, 5))
    optimizer = CPUOffloadOptimizer([frozen, trained], AdamW8bit, weight_decay=0.5, lr=0.5)
    trained.grad = torch.ones(5, 5)
    optimizer.step()
    assert torch.equal(frozen, torch.ones(5, 5))
    assert optimizer.state_dict()["state"].keys() == {1}


@pytest.mark.parametrize(
    ("cls", "shown"),
    [
        (int, "<class 'int'>"),
        ("adamw", "'adamw'"),
        (CPUOffloadOptimizer, "<class 'qmaps.optim.offload.CPUOffloadOptimizer'>"),
    ],
)
def test_only_classes_of_optimizers(cls: Any, shown: str) -> None:
    with pytest.raises(BadTypeError) as caught:
        CPUOffloadOptimizer([nn.Parameter(torch.ones(1))], cls)
    assert str(caught.value) == (
        f"optimizer_class must be a class of optimizers, such as qmaps.optim.AdamW8bit, got {shown}"
    )


@pytest.mark.parametrize("cls", [Prodigy4bit, AdamWScheduleFree])
def test_optimizers_that_change_options_are_refused(cls: type[torch.optim.Optimizer]) -> None:
    with pytest.raises(BadTypeError) as caught:
        CPUOffloadOptimizer([nn.Parameter(torch.ones(1))], cls)
    assert str(caught.value) == (
        f"CPUOffloadOptimizer does not support {cls.__name__}, whose methods change options of the "
        "parameter groups"
    )


def test_other_errors() -> None:
    param = nn.Parameter(torch.ones(1))
    with pytest.raises(BadTypeError) as caught:
        CPUOffloadOptimizer([param], offload_gradients=True)
    assert str(caught.value) == (
        "offload_gradients=True is not an option of AdamW8bit; torchao has it. In qmaps: none; "
        "release_gradients frees gradients while training"
    )
    with pytest.raises(BadTypeError, match="minimal_size=4096 is not an option of AdamW8bit"):
        CPUOffloadOptimizer([param], minimal_size=4096)
    optimizer = CPUOffloadOptimizer([param])
    for copying in (copy.deepcopy, pickle.dumps):
        with pytest.raises(BadTypeError) as caught:
            copying(optimizer)
        assert str(caught.value) == (
            "a CPUOffloadOptimizer cannot be copied or pickled; use its state_dict"
        )


def test_fully_shard_offloads_by_itself() -> None:
    dist = pytest.importorskip("torch.distributed")
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not (dist.is_available() and hasattr(fsdp, "fully_shard")):
        pytest.skip("this torch has no torch.distributed.fsdp.fully_shard")
    expected = net()
    plain(expected, AdamW8bit(expected.parameters(), lr=0.01))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = dist.init_device_mesh("cpu", (1,))
        model = fsdp.fully_shard(
            net(), mesh=mesh, offload_policy=fsdp.CPUOffloadPolicy(pin_memory=False)
        )
        with pytest.raises(BadTypeError) as caught:
            CPUOffloadOptimizer(model.parameters())
        assert str(caught.value) == (
            "params has a sharded parameter (DTensor); call fully_shard with "
            "offload_policy=CPUOffloadPolicy() and construct the optimizer without "
            "CPUOffloadOptimizer"
        )
        optimizer = AdamW8bit(model.parameters(), lr=0.01)
        for number in range(5):
            model(torch.ones(2, 80)).sum().backward()
            generator = torch.Generator().manual_seed(number)
            for param in model.parameters():
                noise = torch.randn(param.shape, generator=generator)
                local = param.to_local().detach()
                param.grad.to_local().copy_(noise + local)
            optimizer.step()
            optimizer.zero_grad()
        results = [param.full_tensor().detach() for param in model.parameters()]
    finally:
        dist.destroy_process_group()
    check_same(results, [param.detach() for param in expected.parameters()])
