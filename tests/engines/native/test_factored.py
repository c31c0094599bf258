"""Optimizers with states of other shapes than the parameter's have the reference's bits."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from qmaps.ops.backends import use_backend
from qmaps.optim import SM3, Adafactor, Adafactor8bit, AdamW4bitFactor, AdamWFactor
from qmaps.optim.base import QuantizedOptimizer
from tests.engines.native.test_optimizer import assert_same, stepped  # noqa: F401
from tests.optim.ticklish import ticklish_gradient

SHAPES = (
    (128, 70), (90, 64), (64, 512), (65, 1024), (2, 3, 64, 32), (40, 5, 3, 3), (1, 600), (300, 1),
    (1, 1), (700,), (), (4, 2, 130),
)  # fmt: skip
CASES: dict[str, tuple[type[QuantizedOptimizer], dict[str, Any]]] = {
    "AdamWFactor": (AdamWFactor, {"state_quantizers": None, "weight_decay": 0.1}),
    "AdamW4bitFactor": (AdamW4bitFactor, {"maximize": True}),
    "AdamWFactor, quantized statistics": (
        AdamWFactor,
        {
            "state_quantizers": {
                "exp_avg": "B128/DE@8s+sr",
                "exp_avg_sq_row": "B32/linear@8u+sr",
                "exp_avg_sq_col": "tensor/DE-0@7u",
            },
        },
    ),
    "AdamWFactor, wide": (AdamWFactor, {"state_quantizers": {"exp_avg": "rank1x8/DE@5s"}}),
    "Adafactor": (Adafactor, {}),
    "Adafactor, first moment": (Adafactor, {"beta1": 0.9, "weight_decay": 0.1, "d": 0.5}),
    "Adafactor, fixed": (
        Adafactor,
        {
            "beta2": 0.99,
            "relative_step": False,
            "scale_parameter": False,
            "scale_weight_decay": False,
            "weight_decay": 0.1,
            "eps": (0.0, 1e-3),
            "maximize": True,
        },
    ),
    "Adafactor8bit": (Adafactor8bit, {"beta1": 0.9}),
    "Adafactor8bit, whole": (Adafactor8bit, {"factored": False, "weight_decay": 0.1}),
    "Adafactor8bit, whole, first moment": (Adafactor8bit, {"factored": False, "beta1": 0.5}),
    "SM3": (SM3, {"weight_decay": 0.1}),
    "SM3 without momentum": (SM3, {"momentum": 0.0, "maximize": True}),
    "SM3, 8 bits": (SM3, {"state_quantizers": "8bit"}),
    "SM3, quantized statistics": (
        SM3,
        {
            "state_quantizers": {
                "momentum_buffer": "rank1/DE@4s",
                "accumulator_0": "logB64/log2@8u",
                "accumulator_1": "B32/DE-0@8u+sr",
            },
        },
    ),
}
EVERY = pytest.mark.parametrize("case", CASES)


@functools.cache
def expected(
    case: str, dtype: torch.dtype, shapes: tuple[tuple[int, ...], ...], steps: int
) -> tuple[list[Tensor], QuantizedOptimizer]:
    return trained(case, "reference", dtype, shapes, steps)


def trained(
    case: str,
    backend: str,
    dtype: torch.dtype = torch.float32,
    shapes: tuple[tuple[int, ...], ...] = SHAPES,
    steps: int = 3,
) -> tuple[list[Tensor], QuantizedOptimizer]:
    kind, options = CASES[case]
    generator = torch.Generator().manual_seed(1)
    params = [
        torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes
    ]
    settings = {"min_quantized_size": 50, **options}
    if dtype == torch.bfloat16:
        settings |= {"stochastic_rounding": True, "seed": 7}
    optimizer = kind(params, **settings)
    with use_backend(backend):
        for number in range(steps):
            for place, p in enumerate(params):
                # In the end numbers of all sizes.
                if number < 2:
                    grad = ticklish_gradient(tuple(p.shape), 100 * number + place)
                else:
                    grad = torch.randn(p.shape, generator=generator)
                    grad *= 10 ** torch.randn(p.shape, generator=generator)
                p.grad = grad.to(dtype)
            optimizer.step()
    return params, optimizer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@EVERY
def test_steps(case: str, dtype: torch.dtype, isa: str, threads: int, stepped: list[int]) -> None:  # noqa: F811
    ours = trained(case, "native", dtype)
    assert stepped == [len(SHAPES)] * 3
    assert_same(ours, expected(case, dtype, SHAPES, 3))


@EVERY
def test_tensors_that_threads_share(case: str, isa: str, threads: int) -> None:
    shapes = ((1024, 130), (3, 70, 1024))
    ours = trained(case, "native", shapes=shapes, steps=2)
    assert_same(ours, expected(case, torch.float32, shapes, 2))


@EVERY
def test_zeros_nan_and_infinity(case: str, isa: str) -> None:
    """0 over 0 is 0; NaN and infinity spread as in the reference."""

    def run(backend: str) -> list[Tensor]:
        kind, options = CASES[case]
        params = [torch.ones(64, 40).requires_grad_() for _ in range(4)]
        optimizer = kind(params, **options)
        with use_backend(backend):
            for number in range(2):
                for p in params:
                    p.grad = torch.zeros_like(p)
                if number:
                    params[1].grad[3, 4] = float("nan")
                    params[2].grad[5, 6] = float("inf")
                    params[3].grad[7, 8] = 1e-30
                optimizer.step()
        return params

    for ours, theirs in zip(run("native"), run("reference"), strict=True):
        assert torch.equal(ours.isnan(), theirs.isnan())
        assert torch.equal(ours.nan_to_num(), theirs.nan_to_num())


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Adafactor, {"apollo_rank": 4}),
        (Adafactor, {"fira_margin": 0.1}),
        (Adafactor, {"beta1": 0.9, "beta3": 0.99}),
    ],
    ids=["APOLLO", "Fira", "CAME"],
)
def test_unsupported_options_step_on_the_reference(
    kind: type[QuantizedOptimizer],
    options: dict[str, Any],
    isa: str,
    stepped: list[int],  # noqa: F811
) -> None:
    params = [torch.ones(64, 40).requires_grad_() for _ in range(2)]
    optimizer = kind(params, **options)
    for p in params:
        p.grad = torch.ones_like(p)
    optimizer.step()
    assert stepped == []


def test_options_that_add_and_take_away_states(isa: str, stepped: list[int]) -> None:  # noqa: F811
    def run(backend: str) -> tuple[list[Tensor], QuantizedOptimizer]:
        generator = torch.Generator().manual_seed(0)
        params = [torch.randn(70, 90, generator=generator).requires_grad_() for _ in range(2)]
        optimizer = Adafactor([{"params": [params[0]]}, {"params": [params[1]], "beta1": 0.5}])
        with use_backend(backend):
            for number in range(5):
                optimizer.param_groups[0]["beta1"] = 0.9 if number in {1, 2} else None
                optimizer.param_groups[1]["fira_margin"] = 0.1 if number == 3 else None
                for p in params:
                    p.grad = torch.randn(p.shape, generator=generator)
                optimizer.step()
        return params, optimizer

    ours = run("native")
    assert stepped == [2, 2, 2, 1, 2]
    assert_same(ours, run("reference"))


def test_empty_tensors_are_left_to_the_reference(isa: str, stepped: list[int]) -> None:  # noqa: F811
    for case in ("AdamWFactor", "Adafactor", "SM3"):
        shapes = ((0, 3), (3, 0), (0,), (4, 4))
        ours = trained(case, "native", shapes=shapes, steps=2)
        assert_same(ours, trained(case, "reference", shapes=shapes, steps=2))
