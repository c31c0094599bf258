"""AdamW with quantized moments."""

from __future__ import annotations

import copy
import io
import itertools

import numpy as np
import pytest
import torch
from torch import nn

import qmaps
from qmaps.optim import PRESETS, AdamW, AdamW4bit, AdamW8bit
from tests.optim.families import model, train

CHOICES = {
    **{name: name for name in PRESETS},
    "stochastic": {"exp_avg": "B128/DE-sym@4s+sr", "exp_avg_sq": "B128x8/linear@8u+sr"},
    "fitted": {"exp_avg": "B128/quantile@4s", "exp_avg_sq": "tensor/lloyd@4u"},
    "log": {"exp_avg": None, "exp_avg_sq": "logB128/log2@8u"},
    "odd widths": {"exp_avg": "row/linear0@5s", "exp_avg_sq": "B64&rank1/power2@3u"},
}


def parameters(net: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in net.parameters()]


def equal(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


@pytest.mark.parametrize("maximize", [False, True])
def test_without_quantization_it_is_torch_adamw(maximize: bool) -> None:
    options = {"lr": 1e-2, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}
    ours, theirs = model(), model()
    a = AdamW(ours.parameters(), **options, maximize=maximize, state_quantizers=None)
    b = torch.optim.AdamW(theirs.parameters(), **options, maximize=maximize)
    train(ours, a, range(4))
    train(theirs, b, range(4))
    # Rounding differences of single steps, which the first steps of Adam amplify.
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(p, q, rtol=1e-4, atol=1e-5)
        for name in ("exp_avg", "exp_avg_sq"):
            assert torch.allclose(a.state[p][name], b.state[q][name], rtol=1e-3, atol=1e-6)
        assert a.state[p]["step"] == b.state[q]["step"]


def test_the_rule_is_the_documented_sequence_of_float32_operations() -> None:
    f = np.float32
    p, m, v = (np.random.default_rng(i).normal(size=5000).astype(f) for i in range(3))
    v = v * v
    layer = nn.Parameter(torch.from_numpy(p.copy()))
    optimizer = AdamW([layer], lr=0.01, betas=(0.9, 0.99), eps=1e-6, weight_decay=0.1,
                      state_quantizers=None)  # fmt: skip
    optimizer.state[layer] = {
        "step": torch.tensor(4.0),
        "exp_avg": torch.from_numpy(m.copy()),
        "exp_avg_sq": torch.from_numpy(v.copy()),
    }
    g = np.random.default_rng(9).normal(size=5000).astype(f)
    layer.grad = torch.from_numpy(g)
    optimizer.step()
    p = p * f(1 - 0.01 * 0.1)
    m = m * f(0.9) + g * f(1 - 0.9)
    v = v * f(0.99) + (g * g) * f(1 - 0.99)
    p = p - (m / (np.sqrt(v) / f((1 - 0.99**5) ** 0.5) + f(1e-6))) * f(0.01 / (1 - 0.9**5))
    assert np.array_equal(layer.detach().numpy(), p)
    assert np.array_equal(optimizer.state[layer]["exp_avg_sq"].numpy(), v)


@pytest.mark.parametrize("name", CHOICES)
def test_states_are_the_quantized_exact_moments(name: str) -> None:
    net = model()
    optimizer = AdamW(net.parameters(), state_quantizers=CHOICES[name], seed=7)
    train(net, optimizer, range(1))
    for number, p in enumerate(net.parameters()):
        exact = {"exp_avg": p.grad * (1 - 0.9), "exp_avg_sq": (p.grad * p.grad) * (1 - 0.999)}
        for index, (state, value) in enumerate(exact.items()):
            spec = optimizer.param_groups[0]["state_quantizers"].get(state)
            actual = optimizer.state[p][state]
            if spec is None or p.numel() <= 4096:
                assert torch.equal(actual, value)
                continue
            key = qmaps.RoundingKey(seed=7, step=1, tensor=number, state=index)
            expected = qmaps.quantizer(spec).quantize(value, key=key)
            assert str(actual.quantizer) == spec
            assert torch.equal(actual.packed, expected.packed)
            assert torch.equal(actual.dequantize(), expected.dequantize())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CHOICES)
def test_save_load_and_resume_is_bit_for_bit(name: str, dtype: torch.dtype) -> None:
    def make(net: nn.Module) -> AdamW:
        return AdamW(net.parameters(), lr=3e-3, state_quantizers=CHOICES[name], refit_every=4)

    uninterrupted = model(dtype)
    train(uninterrupted, make(uninterrupted), range(14))

    net = model(dtype)
    optimizer = make(net)
    train(net, optimizer, range(6))
    buffer = io.BytesIO()
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, buffer)
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=True)
    resumed = model(dtype)
    resumed.load_state_dict(saved["net"])
    again = AdamW(resumed.parameters())
    again.load_state_dict(saved["optimizer"])
    assert again.state_nbytes == optimizer.state_nbytes
    train(resumed, again, range(6, 14))
    assert equal(parameters(uninterrupted), parameters(resumed))
    # The saved dict was not written through, and the first optimizer goes on as well.
    train(net, optimizer, range(6, 14))
    assert equal(parameters(uninterrupted), parameters(net))


@pytest.mark.parametrize("name", ["8bit", "4bit", "paper-4bit", "stochastic"])
def test_training_is_close_to_32_bits_and_reproducible(name: str) -> None:
    exact, net, same = model(), model(), model()
    target = train(exact, torch.optim.AdamW(exact.parameters(), lr=3e-3), range(150))
    loss = train(net, AdamW(net.parameters(), lr=3e-3, state_quantizers=CHOICES[name]), range(150))
    assert loss < 1.25 * target
    torch.manual_seed(123)
    train(same, AdamW(same.parameters(), lr=3e-3, state_quantizers=CHOICES[name]), range(150))
    assert equal(parameters(net), parameters(same))


def test_sizes_named_optimizers_and_block_size() -> None:
    net = model()
    for optimizer, bytes_per_element in (
        (AdamW8bit(net.parameters()), 2 * (1 + 4 / 256)),
        (AdamW8bit(net.parameters(), block_size=64), 2 * (1 + 4 / 64)),
        (AdamW4bit(net.parameters(), blocksize=32), 2 * (0.5 + 2 / 32)),
        (AdamW(net.parameters(), state_quantizers="paper-4bit"), 0.5 + 4 / 128 + 0.5),
    ):
        train(net, optimizer, range(1))
        numel = net[0].weight.numel() + net[2].weight.numel()
        small = sum(p.numel() for p in net.parameters()) - numel
        ranks = optimizer.param_groups[0]["state_quantizers"]["exp_avg_sq"] == "rank1/linear@4u"
        scales = 4 * (90 + 80 + 80 + 70) if ranks else 0
        expected = numel * bytes_per_element + scales + 8 * small
        assert optimizer.state_nbytes == pytest.approx(expected, abs=64)
    assert AdamW8bit(net.parameters()).param_groups[0]["state_quantizers"] == {
        "exp_avg": "B256/DE-sym@8s",
        "exp_avg_sq": "B256/geometric@8u+qsr",
    }
    assert AdamW4bit(net.parameters()).param_groups[0]["state_quantizers"] == {
        "exp_avg": "B64xbf16/mu-law10:linear0@5s+qsr",
        "exp_avg_sq": "B64xbf16/geometric@3u+qsr",
    }
    paper = AdamW(net.parameters(), state_quantizers="paper-4bit")
    assert paper.param_groups[0]["state_quantizers"] == {
        "exp_avg": "B128/DE@4s",
        "exp_avg_sq": "rank1/linear@4u",
    }


def test_groups_override_and_small_tensors_stay_exact() -> None:
    net = model()
    optimizer = AdamW(
        [
            {"params": net[0].parameters(), "state_quantizers": None},
            {"params": net[2].parameters(), "min_quantized_size": 0, "lr": 1e-4},
            {"params": net[3].parameters()},
        ],
        state_quantizers="4bit",
    )
    train(net, optimizer, range(2))
    kinds = {
        name: type(optimizer.state[p]["exp_avg"]).__name__ for name, p in net.named_parameters()
    }
    assert kinds == {
        "0.weight": "Tensor", "0.bias": "Tensor", "2.weight": "QuantizedTensor",
        "2.bias": "QuantizedTensor", "3.weight": "Tensor", "3.bias": "Tensor",
    }  # fmt: skip


def test_the_largest_tensor_that_stays_exact() -> None:
    tensors = [nn.Parameter(torch.zeros(4096)), nn.Parameter(torch.zeros(4097))]
    optimizer = AdamW8bit(tensors)
    for p in tensors:
        p.grad = torch.ones_like(p)
    optimizer.step()
    kinds = [type(optimizer.state[p]["exp_avg"]).__name__ for p in tensors]
    assert kinds == ["Tensor", "QuantizedTensor"]


def test_a_scheduler_goes_on_after_a_resume() -> None:
    rates = []
    saved = {}
    for resume in (False, True):
        net = model()
        optimizer = AdamW8bit(net.parameters(), lr=1.0)
        if resume:
            optimizer.load_state_dict(saved)
        last = 2 if resume else -1
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5, last_epoch=last)
        for _ in range(3):
            train(net, optimizer, range(1))
            scheduler.step()
            rates.append(optimizer.param_groups[0]["lr"])
        saved = optimizer.state_dict()
    assert rates[:3] == [0.5, 0.25, 0.125]
    assert rates[3:] == sorted(rates[3:], reverse=True)
    assert rates[3] <= 0.125


def test_a_torch_checkpoint_is_taken_over() -> None:
    net, resumed = model(), model()
    torch_optimizer = torch.optim.AdamW(net.named_parameters(), lr=2e-3, eps=1e-7)
    train(net, torch_optimizer, range(5))
    resumed.load_state_dict(net.state_dict())
    ours = AdamW8bit(resumed.parameters())
    ours.load_state_dict(torch_optimizer.state_dict())
    assert ours.param_groups[0]["lr"] == 2e-3
    assert ours.param_groups[0]["eps"] == 1e-7
    assert "fused" not in ours.param_groups[0]
    for p, q in zip(net.parameters(), resumed.parameters(), strict=True):
        m = torch_optimizer.state[p]["exp_avg"]
        actual = ours.state[q]["exp_avg"]
        if p.numel() > 4096:
            assert torch.equal(actual.packed, qmaps.quantizer("B256/DE-sym@8s").quantize(m).packed)
        else:
            assert torch.equal(actual, m)
    train(resumed, ours, range(5, 8))


def test_codebooks_of_users_survive_a_checkpoint() -> None:
    codebook = qmaps.Codebook(torch.linspace(-1, 1, 9), label="mine")
    pair = {"exp_avg": qmaps.quantizer("B64/mine@4s", [codebook]), "exp_avg_sq": "B64/linear@4u"}
    net = model()
    optimizer = AdamW(net.parameters(), state_quantizers=pair)
    train(net, optimizer, range(3))
    saved = copy.deepcopy(optimizer.state_dict())
    twin = model()
    twin.load_state_dict(net.state_dict())
    again = AdamW(twin.parameters(), state_quantizers=pair)
    again.load_state_dict(saved)
    train(net, optimizer, range(3, 6))
    train(twin, again, range(3, 6))
    assert equal(parameters(net), parameters(twin))


def poison(net: nn.Module) -> None:
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    net[2].weight.grad[3, 4] = float("nan")


@pytest.mark.parametrize("name", CHOICES)
def test_propagate_lets_no_nan_become_finite(name: str) -> None:
    net = model()
    optimizer = AdamW(net.parameters(), state_quantizers=CHOICES[name], refit_every=2)
    train(net, optimizer, range(2))
    poison(net)
    optimizer.step()
    for p in (net[2].weight, *optimizer.state[net[2].weight].values()):
        values = p.dequantize() if isinstance(p, qmaps.QuantizedTensor) else p
        if values.dim():
            assert bool(values[3, 4].isnan())


def test_skip_leaves_everything_as_it_was() -> None:
    net = model()
    optimizer = AdamW8bit(net.parameters(), nonfinite="skip")
    train(net, optimizer, range(2))
    before, state = parameters(net), copy.deepcopy(optimizer.state_dict())
    poison(net)
    optimizer.step()
    assert optimizer.skipped_steps == 1
    assert equal(before, parameters(net))
    assert str(optimizer.state_dict()) == str(state)


def test_raise_names_the_parameter_and_changes_nothing() -> None:
    net = model()
    optimizer = AdamW8bit(net.named_parameters(), nonfinite="raise")
    train(net, optimizer, range(2))
    before = parameters(net)
    poison(net)
    with pytest.raises(qmaps.errors.NonFiniteError) as caught:
        optimizer.step()
    assert str(caught.value) == (
        "the gradient of parameter '2.weight' holds 1 NaN or infinite elements, the first at flat "
        "index 244; nonfinite='raise' allows only finite gradients"
    )
    assert equal(before, parameters(net))


def test_closure_scheduler_and_missing_gradients() -> None:
    net = model()
    net[3].bias.requires_grad_(False)
    optimizer = AdamW8bit(net.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    def closure() -> float:
        optimizer.zero_grad()
        loss = net(torch.ones(2, 90)).square().mean()
        loss.backward()
        return float(loss.detach())

    assert float(optimizer.step(closure)) > 0
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 5e-4
    assert net[3].bias not in optimizer.state


def test_fitted_maps_are_refitted_when_due() -> None:
    net = model()
    optimizer = AdamW(net.parameters(), state_quantizers=CHOICES["fitted"], refit_every=3)
    codebooks = []
    for step in range(7):
        train(net, optimizer, range(step, step + 1))
        codebooks.append(optimizer.state[net[0].weight]["exp_avg"].quantizer.map)
    changed = [a != b for a, b in itertools.pairwise(codebooks)]
    assert changed == [False, False, True, False, False, True]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "lr=-1.0 must be at least 0"),
        ({"betas": (0.9, 1.0)}, "betas[1]=1.0 must be at least 0 and below 1"),
        ({"eps": float("nan")}, "eps=nan must be at least 0"),
        ({"min_quantized_size": -1}, "min_quantized_size=-1 must be an int of at least 0"),
        ({"refit_every": 0}, "refit_every=0 must be an int of at least 1"),
        ({"nonfinite": "stop"}, "nonfinite='stop' must be one of 'propagate', 'skip', 'raise'"),
        ({"seed": -1}, "seed=-1 must be between 0 and 2**32 - 1"),
        ({"state_quantizers": "8bits"},
         "state_quantizers='8bits' is not a preset; allowed are 32bit, 8bit, 4bit, 3bit, 2bit, "
         "paper-8bit, paper-4bit, 'SIGNED + UNSIGNED' of specs, or a dict from state names "
         "to specs; nearest match: 8bit"),
        ({"state_quantizers": {"momentum": "B128/DE@4s"}},
         "state_quantizers names the state 'momentum', but AdamW has exp_avg, exp_avg_sq"),
        ({"state_quantizers": {"exp_avg": "B128/DE@8u"}},
         "state_quantizers sets 'exp_avg' to B128/DE@8u, which is unsigned; exp_avg has "
         "negative values and needs a signed map"),
        ({"state_quantizers": {"exp_avg": "B0/DE@4s"}},
         "spec='B0/DE@4s': block_size=0 must be at least 1"),
        ({"state_quantizers": 8},
         "state_quantizers=8 must be a preset's name, a dict from state names to specs, or None"),
    ],
)  # fmt: skip
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        AdamW(model().parameters(), **options)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: AdamW8bit(p, block_size=0), "block_size=0 must be at least 1"),
        (lambda p: AdamW8bit(p, block_size=64, blocksize=32),
         "block_size=64 and blocksize=32 are the same option; set only one of them"),
        (lambda p: AdamW4bit(p, state_quantizers="8bit"),
         "state_quantizers='8bit' does not fit an optimizer of fixed width; use qmaps.optim.AdamW"),
        (lambda p: AdamW([{"params": p, "lr": -2}]), "lr=-2 must be at least 0"),
    ],
)  # fmt: skip
def test_bad_options_of_named_optimizers(make: object, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        make(list(model().parameters()))  # type: ignore[operator]
    assert str(caught.value) == message


def test_checkpoints_that_do_not_fit() -> None:
    net = model()
    amsgrad = torch.optim.AdamW(net.parameters(), amsgrad=True)
    train(net, amsgrad, range(1))
    smaller = torch.optim.AdamW([net[0].weight])
    train(net, smaller, range(1))
    two = torch.optim.AdamW([{"params": net[0].parameters()}, {"params": net[2].parameters()}])
    for saved, message in (
        (amsgrad, "state_dict has amsgrad=True; only False is supported"),
        (two, "state_dict has 2 parameter groups, but this optimizer has 1"),
    ):
        with pytest.raises(ValueError) as caught:
            AdamW8bit(net.parameters()).load_state_dict(saved.state_dict())
        assert str(caught.value) == message
    with pytest.raises(ValueError, match="has 1 parameters in group 0, but this optimizer has 6"):
        AdamW8bit(net.parameters()).load_state_dict(smaller.state_dict())


def test_sparse_gradients_are_refused() -> None:
    embedding = nn.Embedding(100, 60, sparse=True)
    groups = [{"params": [torch.zeros(2, requires_grad=True)]}, {"params": [embedding.weight]}]
    optimizer = AdamW8bit(groups)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(TypeError, match="the gradient of parameter 0 of group 1 must be dense"):
        optimizer.step()


def test_deep_copy_goes_on_alike() -> None:
    net = model()
    optimizer = AdamW4bit(net.parameters())
    train(net, optimizer, range(2))
    net2, optimizer2 = copy.deepcopy((net, optimizer))
    train(net, optimizer, range(2, 4))
    train(net2, optimizer2, range(2, 4))
    assert equal(parameters(net), parameters(net2))


@pytest.mark.gpu
@pytest.mark.parametrize("name", CHOICES)
def test_cuda_takes_the_same_step(name: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine")
    on_cpu, on_gpu = model(), model().cuda()
    a = AdamW(on_cpu.parameters(), state_quantizers=CHOICES[name])
    b = AdamW(on_gpu.parameters(), state_quantizers=CHOICES[name])
    for seed in range(3):
        for p, q in zip(on_cpu.parameters(), on_gpu.parameters(), strict=True):
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(seed))
            q.grad = p.grad.cuda()
        a.step()
        b.step()
    assert equal(parameters(on_cpu), [p.cpu() for p in parameters(on_gpu)])
