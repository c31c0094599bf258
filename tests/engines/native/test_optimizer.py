"""Optimizer steps have the reference's bits, on every instruction set."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pytest
import torch

from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.engines.native.plan import NativePlan
from qmaps.engines.plan import memory_of as parts
from qmaps.ops.backends import use_backend
from qmaps.optim import LAMB, LARS, AdamW, QuantizedOptimizer, RMSprop
from tests.helpers import about
from tests.optim.families import FUSED, Family, label

SHAPES = ((5,), (70, 90), (3, 40, 50), (16, 33, 3, 3), (9000,), (128, 128), (1,), (), (0,))
QUANTIZERS = {
    "8bit": "8bit",
    "4bit": "4bit",
    "paper-4bit": "paper-4bit",
    "32bit": "32bit",
    "stochastic": {"exp_avg": "B128/DE@4s+sr", "exp_avg_sq": "rank1/linear@4u+sr"},
    "eight-bit scales": {"exp_avg": "B32x8/DE@5s", "exp_avg_sq": "B64x8&rank1/linear@6u"},
    "log2": {"exp_avg": "tensor/DE@8s", "exp_avg_sq": "logB256/log2@8u"},
    "mixed widths": {"exp_avg": None, "exp_avg_sq": "col/linear@3u+sr"},
    "FlashOptim": "B32xf16/softsign@8s + B32xf16sq/sqrt@8u",
    "MX": {"exp_avg": "B32xe8m0/e2m1@4s+sr", "exp_avg_sq": "B32xe8m0/e4m3@8u"},
    "NVFP4": {"exp_avg": "B16xe4m3/e2m1@4s+sr", "exp_avg_sq": "B64xe4m3&rank1xe4m3/DE-0@4u"},
    "formats of scales that span": {
        "exp_avg": "rank1xbf16/DE@4s",
        "exp_avg_sq": "colxf16sq/sqrt@8u",
    },
    "formats in two passes": {"exp_avg": "B4096xe8m0/DE@8s", "exp_avg_sq": "B384xbf16/DE-0@8u"},
    "bfloat16": "bf16 + bf16",
    "float16": {"exp_avg": "fp16", "exp_avg_sq": "bf16+sr"},
    "no scales": {"exp_avg": "unscaled/DE@8s+sr", "exp_avg_sq": "unscaled/e4m3@8u"},
    "no scales beside two passes": {"exp_avg": "unscaled/e2m1@4s", "exp_avg_sq": "rank1/linear@4u"},
    "odd blocks": {"exp_avg": "B7/DE@8s", "exp_avg_sq": "B100/DE-0@8u"},
    "blocks that do not line up": {"exp_avg": "B4096/DE@8s", "exp_avg_sq": "B384/DE-0@8u"},
    "fitted": {"exp_avg": "B64/quantile@8s", "exp_avg_sq": "B64/lloyd@4u"},
}


def train(backend: str, quantizers, dtype: torch.dtype, steps: int = 5, make=AdamW, **options):
    generator = torch.Generator().manual_seed(3)
    with use_backend(backend):
        params = [
            torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in SHAPES
        ]
        settings = {"lr": 1e-2, "min_quantized_size": 0, "refit_every": 3, **options}
        optimizer = make(params, state_quantizers=quantizers, **settings)
        for _ in range(steps):
            step(optimizer, params, generator)
    return params, optimizer


def step(optimizer, params, generator: torch.Generator) -> None:
    for p in params:
        spread = 10 ** torch.randn(p.shape, generator=generator)
        p.grad = (torch.randn(p.shape, generator=generator) * spread).to(p.dtype)
    optimizer.step()


def assert_same(ours, theirs) -> None:
    for a, b in zip(ours[0], theirs[0], strict=True):
        assert torch.equal(a, b)
        left, right = ours[1].state[a], theirs[1].state[b]
        assert list(left) == list(right)
        for name in left:
            for x, y in zip(parts(left[name]), parts(right[name]), strict=True):
                assert torch.equal(x, y), (name, tuple(a.shape))
            assert getattr(left[name], "key", None) == getattr(right[name], "key", None)


@pytest.fixture
def stepped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts of parameters stepped natively, one for each step."""
    counts: list[int] = []
    run = NativePlan.run

    def counted(self, *arguments) -> None:
        counts.append(len(self._params))
        run(self, *arguments)

    monkeypatch.setattr(NativePlan, "run", counted)
    return counts


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("quantizers", QUANTIZERS.values(), ids=QUANTIZERS)
def test_steps(quantizers, dtype: torch.dtype, each_isa, threads: int, stepped: list[int]) -> None:
    expected = train("reference", quantizers, dtype)
    fitted = quantizers == QUANTIZERS["fitted"]
    every = len(SHAPES)
    for isa in each_isa():
        stepped.clear()
        ours = train("native", quantizers, dtype)
        with about(isa):
            # Fits, at steps 1 and 4, are left to the reference, but an empty tensor needs none.
            assert stepped == ([1, every, every, 1, every] if fitted else [every] * 5)
            assert_same(ours, expected)


def test_scales_of_a_large_tensor(threads: int) -> None:
    def run(backend: str):
        generator = torch.Generator().manual_seed(3)
        params = [torch.randn(1 << 20, generator=generator, requires_grad=True)]
        pair = "B32x8/DE@4s + B16xe4m3/DE-0@4u"
        with use_backend(backend):
            optimizer = AdamW(params, lr=1e-2, state_quantizers=pair)
            for _ in range(2):
                step(optimizer, params, generator)
        return params, optimizer

    assert_same(run("native"), run("reference"))


@pytest.mark.parametrize(
    "quantizers",
    [
        *("8bit", "4bit", "stochastic", "eight-bit scales", "odd blocks", "FlashOptim", "MX"),
        *("NVFP4", "bfloat16", "float16", "no scales"),
    ],
)
def test_tensors_that_threads_share(quantizers: str, each_isa, threads: int) -> None:
    def run(backend: str):
        generator = torch.Generator().manual_seed(0)
        params = [torch.randn(401, 503, generator=generator).requires_grad_()]
        optimizer = AdamW(params, state_quantizers=QUANTIZERS[quantizers])
        with use_backend(backend):
            for _ in range(2):
                step(optimizer, params, generator)
        return params, optimizer

    expected = run("reference")
    for isa in each_isa():
        with about(isa):
            assert_same(run("native"), expected)


@pytest.mark.parametrize("make", [LAMB, LARS], ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("size", [4095, 4096, 4097, 201_703])
def test_norms_of_tensors_that_threads_share(
    make: type[QuantizedOptimizer], size: int, each_isa, threads: int, stepped: list[int]
) -> None:
    def run(backend: str):
        generator = torch.Generator().manual_seed(0)
        params = [torch.randn(n, generator=generator).requires_grad_() for n in (size, 9000)]
        optimizer = make(params, lr=0.5, state_quantizers="8bit")
        with use_backend(backend):
            for _ in range(2):
                step(optimizer, params, generator)
        return params, optimizer

    expected = run("reference")
    for isa in each_isa():
        stepped.clear()
        ours = run("native")
        with about(isa):
            assert stepped == [2, 2]
            assert_same(ours, expected)


def test_options_and_groups(isa: str) -> None:
    options = {"maximize": True, "weight_decay": 0.3, "eps": 1e-3, "betas": (0.5, 0.7), "seed": 9}
    ours, theirs = (
        train(backend, QUANTIZERS["stochastic"], torch.float32, **options)
        for backend in ("native", "reference")
    )
    assert_same(ours, theirs)


def test_saved_and_resumed_on_either_engine(isa: str) -> None:
    uninterrupted = train("native", QUANTIZERS["stochastic"], torch.float32, steps=5)
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
        assert_same((params, again), uninterrupted)


def test_a_copy_has_states_of_its_own(isa: str) -> None:
    params, optimizer = train("native", "8bit", torch.float32, steps=2)
    twin_params, twin = copy.deepcopy((params, optimizer))
    step(twin, twin_params, torch.Generator().manual_seed(1))
    before = [[part.clone() for part in parts(optimizer.state[p]["exp_avg"])] for p in params]
    step(twin, twin_params, torch.Generator().manual_seed(2))
    for p, expected in zip(params, before, strict=True):
        for x, y in zip(parts(optimizer.state[p]["exp_avg"]), expected, strict=True):
            assert torch.equal(x, y)


def test_unsupported_layouts_step_on_the_reference(stepped: list[int], isa: str) -> None:
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
    assert stepped == [1, 1, 1]
    assert_same(ours, run("reference"))


@pytest.mark.parametrize("quantizers", ["8bit", "4bit", "paper-4bit"])
def test_bfloat16_parameters_that_round_stochastically(
    quantizers, stepped: list[int], each_isa, threads: int
) -> None:
    options = {"stochastic_rounding": True, "seed": 3}
    quantizers = QUANTIZERS[quantizers]
    expected = train("reference", quantizers, torch.bfloat16, **options)
    for isa in each_isa():
        stepped.clear()
        ours = train("native", quantizers, torch.bfloat16, **options)
        with about(isa):
            assert stepped == [len(SHAPES)] * 5
            assert_same(ours, expected)


def test_rounding_that_comes_in_the_middle_of_a_run(stepped: list[int], isa: str) -> None:
    def run(backend: str):
        params, optimizer = train(backend, "8bit", torch.bfloat16, steps=2)
        optimizer.param_groups[0]["stochastic_rounding"] = True
        with use_backend(backend):
            step(optimizer, params, torch.Generator().manual_seed(0))
        return params, optimizer

    ours, theirs = run("native"), run("reference")
    assert stepped == [len(SHAPES)] * 3
    assert_same(ours, theirs)
    nearest = train("reference", "8bit", torch.bfloat16, steps=2)
    step(nearest[1], nearest[0], torch.Generator().manual_seed(0))
    assert any(not torch.equal(a, b) for a, b in zip(ours[0], nearest[0], strict=True))


KINDS = ("8bit", "4bit", "paper-4bit", "mixed", "wide", "second wide")
"""Quantizers that take one pass and two, packed and not."""


def quantizers_of(family: Family, kind: str) -> object:
    """Quantizers of one of `KINDS` for an optimizer's states."""
    names, signed = family.full.state_names, family.full.signed_states
    sign = {name: "s" if name in signed else "u" for name in names}
    mixed = zip(names, ("rank1/linear@5{}+sr", None, "B64x8/DE@6{}"), strict=False)
    of_states = {
        "mixed": {name: spec and spec.format(sign[name]) for name, spec in mixed},
        "wide": {name: f"tensor/linear@7{sign[name]}" for name in names},
        "second wide": {name: f"tensor/linear@8{sign[name]}" for name in names[1:2]},
    }
    return of_states.get(kind, kind)


def of_every_rule() -> Iterator[Any]:
    """All options of a rule, each with one kind of quantizers; the first also with the others."""
    for _, cases in groupby(FUSED, key=lambda case: case[0].name):
        for number, (family, options) in enumerate(cases):
            yield pytest.param(family, options, KINDS[number % len(KINDS)])
            if not number:
                for kind in KINDS[1:]:
                    yield pytest.param(family, options, kind, marks=pytest.mark.slow)


@pytest.mark.parametrize(("family", "options", "kind"), of_every_rule(), ids=label)
def test_every_rule(
    family: Family, options: dict[str, object], kind: str, stepped: list[int], each_isa
) -> None:
    settings = {"make": family.full, "steps": 3, **options}
    late = options.get("initial_accumulator_value", 0) != 0
    quantizers = quantizers_of(family, kind)
    dtype = torch.float32 if kind in {"8bit", "mixed"} else torch.bfloat16
    expected = train("reference", quantizers, dtype, **settings)
    for isa in each_isa():
        stepped.clear()
        ours = train("native", quantizers, dtype, **settings)
        with about(isa):
            assert stepped == [len(SHAPES)] * (2 if late else 3)
            assert_same(ours, expected)


def test_groups_with_different_states_in_one_step(stepped: list[int], isa: str) -> None:
    def run(backend: str):
        generator = torch.Generator().manual_seed(0)
        params = [torch.randn(80, 70, generator=generator).requires_grad_() for _ in range(4)]
        groups = [
            {"params": [params[0]], "momentum": 0.9, "centered": True},
            {"params": [params[1]], "momentum": 0.9},
            {"params": [params[2]], "centered": True, "weight_decay": 0.1},
            {"params": [params[3]]},
        ]
        optimizer = RMSprop(groups, state_quantizers="8bit")
        with use_backend(backend):
            for number in range(5):
                # A group takes up momentum, and drops it again.
                optimizer.param_groups[3]["momentum"] = 0.5 * (number in {2, 3})
                step(optimizer, params, generator)
        return params, optimizer

    ours = run("native")
    assert stepped == [4] * 5
    assert_same(ours, run("reference"))


@pytest.mark.parametrize("change", ["parameter", "state", "counter", "gradient", "settings"])
def test_changes_between_steps_are_seen(change: str, stepped: list[int], isa: str) -> None:
    def run(backend: str):
        params, optimizer = train(backend, "8bit", torch.float32, steps=2)
        p = params[1]
        state = optimizer.state[p]
        if change == "parameter":
            p.data = p.data.clone() * 2
        elif change == "state":
            state["exp_avg"] = state["exp_avg"].quantizer.quantize(torch.ones_like(p))
        elif change == "counter":
            state["step"] = torch.tensor(7.0)
        elif change == "settings":
            optimizer.param_groups[0]["seed"] = 5
            optimizer.param_groups[0]["state_quantizers"]["exp_avg_sq"] = "B128/linear@4u+sr"
        generator = torch.Generator().manual_seed(0)
        with use_backend(backend):
            step(optimizer, params, generator)
            if change == "gradient":
                params[1].grad = params[1].grad.t().contiguous().t()
                params[2].grad = None
            optimizer.step()
            step(optimizer, params, generator)
        return params, optimizer

    ours = run("native")
    assert_same(ours, run("reference"))
    # The reference converts states to other quantizers; an empty one has nothing to convert.
    third, fourth = {"settings": (1, 9), "gradient": (9, 8)}.get(change, (9, 9))
    assert stepped == [9, 9, third, fourth, 9]


def test_a_gradient_it_does_not_take_changes_nothing(isa: str) -> None:
    params, optimizer = train("native", "8bit", torch.float32, steps=2)
    before = [p.detach().clone() for p in params]
    params[1].grad = torch.ones(70, 90).to_sparse()
    with pytest.raises(TypeError, match="the gradient of parameter 1 of group 0 must be dense"):
        optimizer.step()
    assert all(torch.equal(p, expected) for p, expected in zip(params, before, strict=True))
    assert float(optimizer.state[params[0]]["step"]) == 2


def test_counters_of_a_saved_optimizer_are_numbers_of_their_own(isa: str) -> None:
    params, optimizer = train("native", "8bit", torch.float32, steps=2)
    saved = copy.deepcopy(optimizer.state_dict())
    step(optimizer, params, torch.Generator().manual_seed(0))
    assert {float(state["step"]) for state in saved["state"].values()} == {2.0}
    assert {float(state["step"]) for state in optimizer.state.values()} == {3.0}


@pytest.mark.parametrize("rounding", ["", "+sr"])
@pytest.mark.parametrize("map_", ["fp16@16", "DE@8"])
def test_states_without_scales_saturate(map_: str, rounding: str, each_isa) -> None:
    """Moments above the format's end, then zeros with a scale of 0, then other values."""
    spec = " + ".join(f"unscaled/{map_}{sign}{rounding}" for sign in "su")

    def run(backend: str):
        params = [torch.linspace(-2, 2, 5000).requires_grad_()]
        optimizer = AdamW(params, state_quantizers=spec, betas=(0.0, 0.0), min_quantized_size=0)
        scales = []
        with use_backend(backend):
            for size in (1e7, 1e-3, 0.0, 1.0):
                params[0].grad = torch.linspace(-size, size, 5000)
                optimizer.step()
                scales += [
                    t.scales[0].item()
                    for t in optimizer.state[params[0]].values()
                    if isinstance(t, QuantizedTensor)
                ]
        return (params, optimizer), scales

    expected, scales = run("reference")
    assert scales == [1, 1, 1, 1, 0, 0, 1, 1]
    for isa in each_isa():
        with about(isa):
            ours, actual = run("native")
            assert actual == scales
            assert_same(ours, expected)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    "quantizers",
    [
        *("8bit", "paper-4bit", "eight-bit scales", "bfloat16", "float16", "no scales", "log2"),
    ],
)
def test_non_finite_gradients_propagate_as_in_the_reference(
    quantizers: str, bad: float, isa: str
) -> None:
    def run(backend: str):
        params, optimizer = train(backend, QUANTIZERS[quantizers], torch.float32, steps=1)
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
