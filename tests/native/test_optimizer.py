"""Whole optimizer steps have the reference's bits, on every instruction set."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import Tensor

from qmaps.backends import use_backend
from qmaps.native import optimizer as native_optimizer
from qmaps.optim import AdamW
from qmaps.quantizer import QuantizedTensor

SHAPES = ((5,), (70, 90), (3, 40, 50), (16, 33, 3, 3), (9000,), (128, 128), (1,), (), (0,))
QUANTIZERS = {
    "8bit": "8bit",
    "4bit": "4bit",
    "32bit": "32bit",
    "stochastic": {"exp_avg": "B128/DE@4s+sr", "exp_avg_sq": "rank1/linear@4u+sr"},
    "eight-bit scales": {"exp_avg": "B32x8/DE@5s", "exp_avg_sq": "B64x8&rank1/linear@6u"},
    "log2": {"exp_avg": "tensor/DE@8s", "exp_avg_sq": "logB256/log2@8u"},
    "mixed widths": {"exp_avg": None, "exp_avg_sq": "col/linear@3u+sr"},
    "odd blocks": {"exp_avg": "B7/DE@8s", "exp_avg_sq": "B100/DE-0@8u"},
    "blocks that do not line up": {"exp_avg": "B4096/DE@8s", "exp_avg_sq": "B384/DE-0@8u"},
    "fitted": {"exp_avg": "B64/quantile@8s", "exp_avg_sq": "B64/lloyd@4u"},
}


def train(backend: str, quantizers, dtype: torch.dtype, steps: int = 5, **options):
    generator = torch.Generator().manual_seed(3)
    with use_backend(backend):
        params = [
            torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in SHAPES
        ]
        settings = {"lr": 1e-2, "min_quantized_size": 0, "refit_every": 3, **options}
        optimizer = AdamW(params, state_quantizers=quantizers, **settings)
        for _ in range(steps):
            step(optimizer, params, generator)
    return params, optimizer


def step(optimizer, params, generator: torch.Generator) -> None:
    for p in params:
        spread = 10 ** torch.randn(p.shape, generator=generator)
        p.grad = (torch.randn(p.shape, generator=generator) * spread).to(p.dtype)
    optimizer.step()


def parts(value: Tensor | QuantizedTensor) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else [value.packed, *value.scales]


def assert_same(ours, theirs) -> None:
    for a, b in zip(ours[0], theirs[0], strict=True):
        assert torch.equal(a, b)
        left, right = ours[1].state[a], theirs[1].state[b]
        assert list(left) == list(right)
        for name in left:
            for x, y in zip(parts(left[name]), parts(right[name]), strict=True):
                assert torch.equal(x, y), (name, tuple(a.shape))


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many parameters each step took natively."""
    counts: list[int] = []
    run = native_optimizer.FusedStep._run

    def counted(self, entries) -> None:
        counts.append(len(entries))
        run(self, entries)

    monkeypatch.setattr(native_optimizer.FusedStep, "_run", counted)
    return counts


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("quantizers", QUANTIZERS.values(), ids=QUANTIZERS)
def test_steps(quantizers, dtype: torch.dtype, isa: str, threads: int, taken: list[int]) -> None:
    ours = train("native", quantizers, dtype)
    fitted = quantizers == QUANTIZERS["fitted"]
    # Fits, at steps 1 and 4, are left to the reference, but an empty tensor needs none.
    every = len(SHAPES)
    assert taken == ([1, every, every, 1, every] if fitted else [every] * 5)
    assert_same(ours, train("reference", quantizers, dtype))


def test_options_and_groups(isa: str) -> None:
    options = {"maximize": True, "weight_decay": 0.3, "eps": 1e-3, "betas": (0.5, 0.7), "seed": 9}
    ours, theirs = (
        train(backend, QUANTIZERS["stochastic"], torch.float32, **options)
        for backend in ("native", "reference")
    )
    assert_same(ours, theirs)


def test_saved_and_resumed_on_either_engine(isa: str) -> None:
    whole = train("native", QUANTIZERS["stochastic"], torch.float32, steps=5)
    for first, second in (("native", "reference"), ("reference", "native")):
        params, optimizer = train(first, QUANTIZERS["stochastic"], torch.float32, steps=3)
        generator = torch.Generator().manual_seed(3)
        for shape in SHAPES:
            torch.randn(shape, generator=generator)
        for _ in range(3):
            for shape in SHAPES:
                torch.randn(shape, generator=generator)
                torch.randn(shape, generator=generator)
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        params = [p.detach().clone().requires_grad_() for p in params]
        again = AdamW(params, lr=1e-2, min_quantized_size=0, refit_every=3)
        again.load_state_dict(torch.load(file, weights_only=True))
        with use_backend(second):
            for _ in range(2):
                step(again, params, generator)
        assert_same((params, again), whole)


def test_a_copy_has_states_of_its_own(isa: str) -> None:
    params, optimizer = train("native", "8bit", torch.float32, steps=2)
    twin_params, twin = copy.deepcopy((params, optimizer))
    step(twin, twin_params, torch.Generator().manual_seed(1))
    before = [[part.clone() for part in parts(optimizer.state[p]["exp_avg"])] for p in params]
    step(twin, twin_params, torch.Generator().manual_seed(2))
    for p, kept in zip(params, before, strict=True):
        for x, y in zip(parts(optimizer.state[p]["exp_avg"]), kept, strict=True):
            assert torch.equal(x, y)


def test_what_it_cannot_follow_is_left_to_the_reference(taken: list[int], isa: str) -> None:
    def run(backend: str):
        generator = torch.Generator().manual_seed(0)
        params = [
            torch.randn(60, 80, generator=generator).t().requires_grad_(),  # not contiguous
            torch.randn(60, 80, generator=generator).requires_grad_(),
        ]
        optimizer = AdamW(params, state_quantizers="8bit")
        with use_backend(backend):
            for _ in range(3):
                step(optimizer, params, generator)
        return params, optimizer

    ours = run("native")
    assert taken == [1, 1, 1]
    assert_same(ours, run("reference"))


def test_bfloat16_parameters_that_round_stochastically_are_left_too(
    taken: list[int], isa: str
) -> None:
    options = {"stochastic_rounding": True, "seed": 3}
    ours = train("native", "8bit", torch.bfloat16, **options)
    assert taken == []
    assert_same(ours, train("reference", "8bit", torch.bfloat16, **options))
    train("native", "8bit", torch.float32, **options)
    assert taken == [len(SHAPES)] * 5
    # The option may come in the middle of a run.
    params, optimizer = train("native", "8bit", torch.bfloat16)
    assert len(taken) == 10
    optimizer.param_groups[0]["stochastic_rounding"] = True
    with use_backend("native"):
        step(optimizer, params, torch.Generator().manual_seed(0))
    assert len(taken) == 10


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_gradients_propagate_as_in_the_reference(bad: float, isa: str) -> None:
    def run(backend: str):
        params, optimizer = train(backend, "8bit", torch.float32, steps=1)
        params[1].grad[3, 4] = bad
        with use_backend(backend):
            optimizer.step()
        return params, optimizer

    (ours, a), (theirs, b) = run("native"), run("reference")
    assert not bool(ours[1][3, 4].isfinite())
    for x, y in zip(ours, theirs, strict=True):
        assert torch.equal(x.isnan(), y.isnan())
        assert torch.equal(x.nan_to_num(), y.nan_to_num())
        for name in ("exp_avg", "exp_avg_sq"):
            left, right = (parts(s.state[t][name])[0] for s, t in ((a, x), (b, y)))
            assert torch.equal(left, right)
