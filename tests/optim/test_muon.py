"""Muon, beside torch's and step by step."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from torch import Tensor, nn

import qmaps
from qmaps.errors import BadTypeError, BadValueError
from qmaps.optim import AdamW8bit, Muon, Muon4bit, Muon8bit, SOAP8bit, muon_groups
from qmaps.optim.muon import orthogonal

SHAPES = ((48, 48), (96, 32), (32, 96))


def trained(make, steps: int = 100, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(0)
    params = [nn.Parameter(torch.randn(shape).to(dtype)) for shape in SHAPES]
    optimizer = make(params)
    for _ in range(steps):
        for param in params:
            param.grad = (torch.randn(param.shape) + 0.1 * param.detach()).to(dtype)
        optimizer.step()
    return [param.detach() for param in params]


@pytest.mark.slow
@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"adjust_lr_fn": "match_rms_adamw", "momentum": 0.8},
        {"ns_coefficients": (2.0, -1.5, 0.5), "ns_steps": 8, "weight_decay": 0.0},
        {"momentum": 0.0, "eps": 1e-3},
    ],
)
def test_32_bits_go_where_torchs_go(nesterov: bool, options: dict[str, object]) -> None:
    options = {"lr": 0.02, "nesterov": nesterov, **options}
    theirs = trained(lambda params: torch.optim.Muon(params, **options))
    ours = trained(lambda params: Muon(params, **options))
    faster = trained(lambda params: Muon(params, **{**options, "lr": 0.0202}))
    for a, b, c in zip(ours, theirs, faster, strict=True):
        # Where a product is rounded otherwise, bfloat16 sees another number now and then.
        gap = (a - b).norm() / (c - b).norm()
        assert gap < 0.2
        assert (a - b).abs().max() < 0.01


def test_one_step_with_the_same_gradient_is_torchs() -> None:
    param = nn.Parameter(torch.randn(64, 40))
    twin = copy.deepcopy(param)
    param.grad = twin.grad = torch.randn(64, 40)
    Muon([param], momentum=0.5).step()  # products with 0.5 are exact
    torch.optim.Muon([twin], momentum=0.5).step()
    torch.testing.assert_close(param, twin, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "spec", ["B64/DE-sym@8s", "B128/DE-sym@4s+sr", "rank1/linear@4s", "B32x8/DE@3s"]
)
def test_a_quantized_momentum_is_decoded_updated_and_encoded(spec: str) -> None:
    torch.manual_seed(1)
    param = nn.Parameter(torch.randn(72, 80))
    exact = param.detach().clone()
    optimizer = Muon([param], lr=0.1, state_quantizers={"momentum_buffer": spec})
    q = qmaps.quantizer(spec)
    momentum = torch.zeros(72, 80)
    for _ in range(4):
        grad = torch.randn(72, 80)
        param.grad = grad.clone()
        optimizer.step()
        stored = optimizer.state[param]["momentum_buffer"]
        momentum = momentum * 0.95 + grad * (1 - 0.95)
        update = grad * (1 - 0.95) + momentum * 0.95
        o = orthogonal(update, (3.4445, -4.7750, 2.0315), 5, 1e-7).float()
        exact = exact * (1 - 1e-3 * 100 * 0.1) - o * 0.1
        if "+sr" not in spec:
            assert torch.equal(stored.dequantize(), q.quantize(momentum).dequantize())
        momentum = stored.dequantize()
        torch.testing.assert_close(param.detach(), exact, rtol=1e-5, atol=1e-5)


def test_singular_values_end_near_1() -> None:
    for shape in SHAPES:
        matrix = torch.randn(shape)
        before = matrix.clone()
        actual = orthogonal(matrix, (3.4445, -4.7750, 2.0315), 5, 1e-7)
        assert actual.shape == shape
        assert actual.dtype == torch.bfloat16
        assert torch.equal(matrix, before)
        values = torch.linalg.svdvals(actual.float())
        assert values.min() > 0.2 and values.max() < 1.4  # noqa: PT018
    assert orthogonal(torch.zeros(4, 3), (2.0, -1.5, 0.5), 5, 1e-7).abs().max() == 0


@pytest.mark.parametrize("cls", [Muon, Muon8bit, Muon4bit])
def test_a_saved_run_goes_on_bit_for_bit(cls: type[Muon]) -> None:
    def steps(optimizer: Muon, param: nn.Parameter, first: int, last: int) -> None:
        for step in range(first, last):
            param.grad = torch.randn(param.shape, generator=torch.Generator().manual_seed(step))
            optimizer.step()

    start = torch.randn(80, 96)
    uninterrupted = nn.Parameter(start.clone())
    steps(cls([uninterrupted]), uninterrupted, 0, 6)
    param = nn.Parameter(start.clone())
    optimizer = cls([param])
    steps(optimizer, param, 0, 3)
    again = nn.Parameter(param.detach().clone())
    resumed = cls([again])
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    steps(resumed, again, 3, 6)
    assert torch.equal(again, uninterrupted)


def test_torchs_checkpoint_is_taken() -> None:
    param = nn.Parameter(torch.randn(80, 96))
    theirs = torch.optim.Muon([param])
    param.grad = torch.randn(80, 96)
    theirs.step()
    ours = Muon8bit([param])
    ours.load_state_dict(theirs.state_dict())
    stored = ours.state[param]["momentum_buffer"]
    assert stored.quantizer.spec == "B256/DE-sym@8s"
    exact = theirs.state[param]["momentum_buffer"]
    assert (stored.dequantize() - exact).abs().max() < 0.02 * exact.abs().max()
    ours.step()


def test_groups_of_a_model() -> None:
    model = nn.ModuleDict(
        {"embed": nn.Embedding(50, 16), "body": nn.Linear(16, 16), "head": nn.Linear(16, 50)}
    )
    model["body"].weight.requires_grad_(True)
    model["head"].bias.requires_grad_(False)
    matrices, remaining = muon_groups(model)
    assert [name for name, _ in matrices] == ["body.weight", "head.weight"]
    assert [name for name, _ in remaining] == ["embed.weight", "body.bias"]
    matrices, remaining = muon_groups(model, exclude=["head.*"])
    assert [name for name, _ in matrices] == ["body.weight"]
    model["head"].weight = model["embed"].weight  # tied: an embedding by one of its names
    matrices, remaining = muon_groups(model, exclude=[])
    assert [name for name, _ in matrices] == ["body.weight"]
    Muon8bit(matrices)
    AdamW8bit(remaining)
    for exclude in (["heads.*"], [nn.Conv2d]):
        with pytest.raises(BadValueError, match="exclude names"):
            muon_groups(model, exclude=exclude)
    with pytest.raises(BadTypeError, match="exclude has the key 3"):
        muon_groups(model, exclude=[3])  # type: ignore[list-item]
    with pytest.raises(BadTypeError) as caught:
        muon_groups(model, exclude="head.*")
    assert str(caught.value) == (
        "exclude='head.*' must be a list of names, patterns or module types"
    )


def test_experts_are_steps_of_many_matrices() -> None:
    start, grads = torch.randn(5, 24, 40), torch.randn(3, 5, 24, 40)
    stack = nn.Parameter(start.clone())
    experts = [nn.Parameter(matrix.clone()) for matrix in start]
    quantizers = {"momentum_buffer": "B32/DE@8s"}
    options = {"lr": 0.1, "adjust_lr_fn": "match_rms_adamw", "state_quantizers": quantizers}
    optimizers = [Muon(p, min_quantized_size=0, **options) for p in ([stack], experts)]
    for grad in grads:
        stack.grad = grad.clone()
        for expert, of_expert in zip(experts, grad, strict=True):
            expert.grad = of_expert.clone()
        for optimizer in optimizers:
            optimizer.step()
    assert torch.equal(stack, torch.stack(experts))


def test_groups_with_experts() -> None:
    model = nn.ModuleDict({"experts": nn.ParameterList([torch.zeros(4, 8, 8)])})
    model["conv"] = nn.Conv1d(8, 8, 3, bias=False)
    assert muon_groups(model)[0] == []
    matrices, remaining = muon_groups(model, stacks=["experts.*"])
    assert [name for name, _ in matrices] == ["experts.0"]
    assert [name for name, _ in remaining] == ["conv.weight"]
    with pytest.raises(BadTypeError) as caught:
        muon_groups(model, stacks="experts.*")
    assert str(caught.value) == (
        "stacks='experts.*' must be a list of names, patterns or module types"
    )


def test_embedding_bags_are_embeddings() -> None:
    matrices, remaining = muon_groups(nn.Sequential(nn.EmbeddingBag(50, 16), nn.Linear(16, 16)))
    assert [name for name, _ in matrices] == ["1.weight"]
    assert [name for name, _ in remaining] == ["0.weight", "1.bias"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"momentum": 1.0}, "momentum=1.0 must be "),
        ({"ns_steps": 100}, "ns_steps=100 must be at most 99"),
        ({"ns_steps": 0}, "ns_steps=0"),
        ({"adjust_lr_fn": "moonshot"}, "adjust_lr_fn='moonshot' is unknown; allowed are None, "),
        ({"ns_coefficients": (1.0, 2.0)}, "ns_coefficients=(1.0, 2.0) must be three numbers"),
        ({"eps": -1.0}, "eps=-1.0 must be at least 0"),
    ],
)
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises((BadValueError, BadTypeError), match=re.escape(message)):
        Muon([nn.Parameter(torch.zeros(3, 3))], **options)  # type: ignore[arg-type]


def test_parameters_that_are_no_matrices() -> None:
    layer = nn.Linear(8, 8)
    with pytest.raises(BadValueError) as caught:
        Muon(layer.named_parameters())
    assert str(caught.value) == (
        "parameter 'bias' has shape (8,), and Muon steps matrices only, or stacks of them in three "
        "dimensions; give it to AdamW (qmaps.optim.muon_groups separates them)"
    )
    optimizer = Muon([layer.weight])
    with pytest.raises(BadValueError, match="steps matrices only"):
        optimizer.add_param_group({"params": [layer.bias]})
    assert len(optimizer.param_groups) == 1


def test_a_process_outside_a_mesh_has_nothing_of_its_parameters() -> None:
    dist = pytest.importorskip("torch.distributed")
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    if not dist.is_available():
        pytest.skip("this torch is built without torch.distributed")
    from torch.distributed.tensor import DeviceMesh, Shard, distribute_tensor

    dist.init_process_group("fake", store=fake.FakeStore(), rank=1, world_size=2)
    try:
        mesh = DeviceMesh("cpu", [0])
        elsewhere = nn.Parameter(distribute_tensor(torch.ones(8, 64), mesh, [Shard(0)]))
        local = nn.Parameter(torch.ones(8, 64))
        for kind in (AdamW8bit, Muon8bit, SOAP8bit):
            assert kind([elsewhere, local]).memory().nbytes == kind([local]).memory().nbytes
    finally:
        dist.destroy_process_group()
