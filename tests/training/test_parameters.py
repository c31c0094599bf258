"""Parameters of models: frozen, unused, strided, tied, empty; some are refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import qmaps
from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.optim import AdamW8bit
from tests.helpers import Wrapped
from tests.training.runs import EVERY, assert_same, every_with, gradients, make, net

pytestmark = pytest.mark.slow


@EVERY
def test_frozen_parameters_stay_and_thaw(kind: str, engine: str) -> None:
    model = net()
    model[0].weight.requires_grad_(False)
    optimizer = make(kind, model.parameters())
    before = model[0].weight.clone()
    # The frozen one keeps its number, so random numbers do not depend on frozen parameters.
    twin = net()
    expected = make(kind, twin.parameters())
    for number in range(4):
        if number == 2:
            model[0].weight.requires_grad_(True)
            assert torch.equal(model[0].weight, before)
            assert model[0].weight not in optimizer.state
        for trained in (model, twin):
            gradients(trained.parameters(), number)
        if number < 2:
            model[0].weight.grad = twin[0].weight.grad = None
        optimizer.step()
        expected.step()
    assert not torch.equal(model[0].weight, before)
    assert_same(optimizer, expected)


@EVERY
def test_parameters_without_gradient_keep_value_and_state(kind: str, engine: str) -> None:
    model, twin = net(), net()
    optimizer, expected = make(kind, model.parameters()), make(kind, twin.parameters())
    for number in range(4):
        gradients(model.parameters(), number)
        gradients(twin.parameters(), number)
        if number == 2:
            value = model[2].weight.detach().clone()
        if number >= 2:
            model[2].weight.grad = None
        optimizer.step()
        expected.step()
    assert torch.equal(model[2].weight, value)
    assert float(optimizer.state[model[2].weight]["step"]) == 2
    # The others go on as if it had one.
    assert not torch.equal(twin[2].weight, value)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert p is model[2].weight or torch.equal(p, q)


@EVERY
def test_a_step_without_any_gradient_does_nothing(kind: str) -> None:
    optimizer = make(kind, net().parameters())
    optimizer.step()
    assert not optimizer.state


@every_with("dtype", [torch.float32, torch.bfloat16])
def test_strides_change_nothing(kind: str, dtype: torch.dtype, engine: str) -> None:
    shapes = [(20, 30), (6, 4, 3, 3), (4, 5, 6)]
    generator = torch.Generator().manual_seed(1)
    dense = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    strided = [
        dense[0].t().contiguous().t(),
        dense[1].to(memory_format=torch.channels_last),
        torch.stack([dense[2], dense[2]], -1)[..., 0],
    ]
    assert not any(x.is_contiguous() for x in strided)
    ours, theirs = ([nn.Parameter(x.clone()) for x in tensors] for tensors in (strided, dense))
    # A clone has no gaps.
    ours[2].data = strided[2]
    rounding = {"stochastic_rounding": True, "seed": 3}
    optimizer, plain = make(kind, ours, **rounding), make(kind, theirs, **rounding)
    for number in range(3):
        gradients(theirs, number)
        for p, q in zip(ours, theirs, strict=True):
            # Gradients with the strides of their parameter, as autograd makes them.
            p.grad = torch.empty_like(p).copy_(q.grad)
        optimizer.step()
        plain.step()
    assert [p.stride() for p in ours] == [x.stride() for x in strided]
    assert_same(optimizer, plain)


@EVERY
def test_a_channels_last_model_trains(kind: str, engine: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 1, 3))
    model = model.to(memory_format=torch.channels_last)
    optimizer = make(kind, model.parameters())
    x = torch.randn(4, 3, 8, 8).to(memory_format=torch.channels_last)
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        loss = (model(x) - x[:, :1, 2:-2, 2:-2]).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert losses[-1] < losses[0]


@EVERY
def test_tied_weights_are_one_parameter(kind: str, engine: str) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.embedding = nn.Embedding(30, 16)
            self.head = nn.Linear(16, 30, bias=False)
            self.head.weight = self.embedding.weight

    model = Tied()
    optimizer = make(kind, model.named_parameters())
    assert optimizer.param_groups[0]["param_names"] == ["embedding.weight"]
    weight = nn.Parameter(model.embedding.weight.detach().clone())
    plain = make(kind, [weight])
    words = torch.arange(20)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(model.head(model.embedding(words)), words + 1).backward()
        optimizer.step()
        plain.zero_grad()
        F.cross_entropy(F.linear(F.embedding(words, weight), weight), words + 1).backward()
        plain.step()
    assert model.head.weight is model.embedding.weight
    assert_same(optimizer, plain)


@EVERY
def test_empty_parameters_take_steps(kind: str, engine: str) -> None:
    full = [nn.Parameter(torch.ones(6, 5)) for _ in range(2)]
    empty = [nn.Parameter(torch.empty(shape)) for shape in ((0,), (0, 5), (4, 0))]
    optimizer = make(kind, [full[0], *empty])
    plain = make(kind, full[1:])
    for number in range(2):
        gradients([full[0]], number)
        gradients(full[1:], number)
        for p in empty:
            p.grad = torch.zeros_like(p)
        optimizer.step()
        plain.step()
    assert torch.equal(full[0], full[1])
    assert all(float(optimizer.state[p]["step"]) == 2 for p in empty)
    again = make(kind, [full[0], *empty])
    again.load_state_dict(optimizer.state_dict())
    assert_same(again, optimizer)


@EVERY
def test_embeddings_train_densely_and_sparse_ones_are_refused(kind: str, engine: str) -> None:
    weight = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    dense, sparse = (
        nn.Embedding.from_pretrained(weight.clone(), freeze=False, sparse=s) for s in (False, True)
    )
    words = torch.tensor([3, 7, 7, 49])
    optimizer = make(kind, dense.parameters())
    dense(words).square().sum().backward()
    by_hand = nn.Parameter(weight.clone())
    by_hand.grad = torch.zeros_like(weight)
    for word in words.tolist():
        by_hand.grad[word] += 2 * weight[word]
    plain = make(kind, [by_hand])
    optimizer.step()
    plain.step()
    assert_same(optimizer, plain)

    optimizer = make(kind, sparse.named_parameters())
    sparse(words).sum().backward()
    with pytest.raises(TypeError) as caught:
        optimizer.step()
    assert str(caught.value) == (
        "the gradient of parameter 'weight' must be dense, got a sparse gradient; embeddings with "
        "sparse=False have dense gradients"
    )
    assert torch.equal(sparse.weight, weight)
    assert not any(optimizer.state.values())


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128, torch.float64], ids=str)
def test_other_dtypes_are_refused(dtype: torch.dtype) -> None:
    model = net()
    odd = nn.Parameter(torch.zeros(3, 3, dtype=dtype))
    name = str(dtype).removeprefix("torch.")
    for named, called in ((True, "'odd'"), (False, "4 of group 0")):
        pairs = [*model.named_parameters(), ("odd", odd)]
        with pytest.raises(TypeError) as caught:
            AdamW8bit(pairs if named else [p for _, p in pairs])
        message = f"the dtype of parameter {called} must be one of float32, bfloat16, float16, got"
        assert str(caught.value) == f"{message} {name}"
    optimizer = AdamW8bit(model.named_parameters())
    with pytest.raises(TypeError):
        optimizer.add_param_group({"params": [("odd", odd)]})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float64], ids=str)
def test_a_parameter_thawed_in_another_dtype_is_refused_at_its_first_gradient(
    dtype: torch.dtype,
) -> None:
    plain = nn.Parameter(torch.ones(3))
    odd = nn.Parameter(torch.zeros(3, dtype=dtype), requires_grad=False)
    packed = nn.Parameter(torch.zeros(3, dtype=torch.uint8), requires_grad=False)
    optimizer = AdamW8bit([plain, odd, packed])
    plain.grad = torch.ones(3)
    optimizer.step()
    before = plain.detach().clone()
    odd.requires_grad_(True)
    odd.grad = torch.zeros_like(odd)
    with pytest.raises(TypeError) as caught:
        optimizer.step()
    name = str(dtype).removeprefix("torch.")
    assert str(caught.value) == (
        f"parameter 1 of group 0 is {name} and its gradient is {name}; the parameter must be one "
        "of float32, bfloat16, float16, and the gradient must be floating-point"
    )
    assert torch.equal(plain, before)


@EVERY
def test_tensors_without_elements_at_their_address_step_on_the_reference(
    kind: str, engine: str
) -> None:
    twin = net()
    model = [Wrapped(p.detach().clone()) if p.dim() > 1 else p.detach() for p in net().parameters()]
    optimizer, expected = make(kind, model), make(kind, twin.parameters())
    for number in range(2):
        gradients(model, number)
        gradients(twin.parameters(), number)
        optimizer.step()
        expected.step()
    for p, q in zip(model, twin.parameters(), strict=True):
        assert torch.equal(p.inner if isinstance(p, Wrapped) else p, q)


def test_quantizers_read_tensors_without_elements_at_their_address(engine: str) -> None:
    x = torch.linspace(-1, 1, 600)
    q = qmaps.quantizer("B64/DE@4s")
    expected = q.quantize(x)
    quantized = q.quantize(Wrapped(x))
    assert torch.equal(quantized.packed, expected.packed)
    out = Wrapped(torch.zeros(600), requires_grad=False)
    assert expected.dequantize(out=out) is out
    assert torch.equal(out.inner, expected.dequantize())
    assert q.error(Wrapped(x)) == pytest.approx(q.error(x), rel=1e-12)
    exact = qmaps.quantiles.exact(x, num=16)
    assert torch.equal(qmaps.quantiles.exact(Wrapped(x), num=16), exact)


def test_groups_of_a_frozen_base_and_a_trained_head(engine: str) -> None:
    model = net()
    for p in model[0].parameters():
        p.requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = AdamW8bit([{"params": trained}, {"params": model[0].parameters(), "lr": 1e-4}])
    model(torch.ones(2, 24)).square().mean().backward()
    optimizer.step()
    assert set(optimizer.state) == set(trained)
    assert not any(isinstance(x, QuantizedTensor) for x in optimizer.state[trained[0]].values())
