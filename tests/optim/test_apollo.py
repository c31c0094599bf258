"""APOLLO: Adafactor on random projections of gradients."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from qmaps.algebra.philox import RoundingKey, normal, philox4x32
from qmaps.optim import Adafactor, Adafactor8bit
from qmaps.optim.apollo import Projection
from tests.optim.adafactor_reference import adafactor, assert_close
from tests.optim.families import give, run

pytestmark = pytest.mark.slow

SHAPES = ((30, 20), (20, 30), (16, 16), (4, 5, 6), (40, 2, 3), (11,))


def matrices(shape: tuple[int, ...], number: int, steps: int, gap: int, rank: int) -> list[Any]:
    projection = Projection(shape, rank)
    drawn = [
        projection.matrix(9, draw, number, torch.device("cpu")).double().numpy()
        for draw in range(1 + (steps - 1) // gap)
    ]
    return [drawn[step // gap] for step in range(steps)]


OPTIONS: list[dict[str, Any]] = [
    {},
    {"apollo_scale_type": "tensor", "apollo_scale": 2.0, "weight_decay": 0.1},
    {"apollo_factorize": True, "maximize": True},
    {"beta1": 0.9, "beta2": 0.99, "relative_step": False, "lr": 0.02},
    {"beta1": 0.9, "apollo_factorize": True, "apollo_scale": 3.0, "d": 0.8},
    {"fira_margin": 0.3, "scale_parameter": False},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("rank", [4, 100])
def test_40_steps_are_those_of_the_papers(options: dict[str, Any], rank: int) -> None:
    apollo = {"apollo_rank": rank, "apollo_update_proj_gap": 12, "seed": 9}
    start, _, _ = run(Adafactor, options, 0, SHAPES)
    params, _, grads = run(Adafactor, {**options, **apollo}, 40, SHAPES)
    for number, (before, p, history) in enumerate(zip(start, params, grads, strict=True)):
        origin = before.detach().double().numpy()
        drawn = matrices(tuple(p.shape), number, len(history), 12, rank) if p.dim() > 1 else None
        exact = adafactor(origin, [g.double().numpy() for g in history], drawn, **options)
        assert_close(p.detach().numpy(), exact, origin)


@pytest.mark.parametrize(
    ("shape", "low"),
    [((30, 20), (30, 4)), ((20, 30), (4, 30)), ((4, 5, 6), (4, 30)), ((3, 9), (3, 9)),
     ((40, 2, 3), (40, 4))],
)  # fmt: skip
def test_states_of_a_projection(shape: tuple[int, ...], low: tuple[int, int]) -> None:
    p = nn.Parameter(torch.ones(shape))
    p.grad = torch.ones(shape)
    for options, expected in (
        ({}, {"low_variance": low}),
        ({"apollo_factorize": True}, {"low_row_var": (low[0], 1), "low_col_var": (1, low[1])}),
        ({"beta1": 0.9}, {"low_exp_avg": low, "low_variance": low}),
    ):
        optimizer = Adafactor([p], apollo_rank=4, **options)
        optimizer.step()
        results = {name: tuple(value.shape) for name, value in optimizer.state[p].items()}
        assert results == {"step": (), **expected, "update_norm": ()}
    optimizer = Adafactor([p], apollo_rank=4, fira_margin=math.inf)
    optimizer.step()
    assert "update_norm" not in optimizer.state[p]


def test_projections_are_normal_and_depend_on_nothing_else() -> None:
    projection = Projection((300, 200), 50)
    cpu = torch.device("cpu")
    torch.manual_seed(1)
    state = torch.get_rng_state()
    drawn = projection.matrix(3, 2, 1, cpu)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(projection.matrix(3, 2, 1, cpu), drawn)
    for changed in ((4, 2, 1), (3, 1, 1), (3, 2, 0)):
        assert not torch.equal(projection.matrix(*changed, cpu), drawn)
    x = drawn.double() * 50**0.5
    assert x.shape == (50, 200)
    assert abs(float(x.mean())) < 0.03
    assert abs(float(x.square().mean()) - 1) < 0.05
    assert abs(float(x.pow(4).mean()) - 3) < 0.3
    # Lengths are kept on average.
    g = torch.randn(300, 200, generator=torch.Generator().manual_seed(5))
    ratio = projection.project(g, drawn).norm(dim=1) / g.norm(dim=1)
    assert abs(float(ratio.mean()) - 1) < 0.05


def test_normal_numbers_are_box_and_muller_of_philox() -> None:
    """Of all 32 bits after ten rounds, as since the first version: checkpoints rely on it."""
    key = RoundingKey(seed=7, purpose=8, step=3, tensor=2)
    counters = torch.tensor([[0, 0, 2, 3], [1, 0, 2, 3]])
    raw = philox4x32(counters, (7, 8), rounds=10).flatten().tolist()
    expected = []
    for a, b in zip(raw[::2], raw[1::2], strict=True):
        radius = math.sqrt(-2 * math.log((a + 1) / 2**32))
        expected += [radius * math.cos(2 * math.pi * b / 2**32),
                     radius * math.sin(2 * math.pi * b / 2**32)]  # fmt: skip
    for count in (0, 1, 7, 8):
        np.testing.assert_allclose(normal(count, key).numpy(), expected[:count], rtol=1e-6)


def test_a_projection_lasts_for_its_gap() -> None:
    """With equal gradients only a new projection changes the factor."""
    p = nn.Parameter(torch.zeros(20, 10))
    optimizer = Adafactor([p], apollo_rank=2, apollo_update_proj_gap=3, beta2=0.0, fira_margin=1e9,
                          scale_parameter=False, relative_step=False, lr=1.0, d=1e9)  # fmt: skip
    g = torch.randn(20, 10, generator=torch.Generator().manual_seed(0))
    moves = []
    for _ in range(7):
        before = p.detach().clone()
        p.grad = g.clone()
        optimizer.step()
        moves.append(p.detach() - before)
    same = [torch.allclose(a, b, rtol=1e-3) for a, b in itertools.pairwise(moves)]
    assert same == [True, True, False, True, True, False]


def test_the_same_seed_gives_the_same_step_in_any_state_of_torch() -> None:
    results = []
    for seed, torch_seed in ((3, 0), (3, 1), (4, 0)):
        torch.manual_seed(torch_seed)
        options = {"apollo_rank": 3, "seed": seed, "min_quantized_size": 0}
        params, _, _ = run(Adafactor8bit, options, 5, ((30, 20),))
        results.append(params[0])
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_zero_gradients_move_nothing() -> None:
    p = nn.Parameter(torch.ones(6, 5))
    for options in ({}, {"apollo_scale_type": "tensor"}, {"beta1": 0.9, "eps": (0.0, 1e-3)}):
        optimizer = Adafactor([p], apollo_rank=2, **options)
        p.grad = torch.zeros(6, 5)
        p.grad[2] = 1.0
        optimizer.step()
        give([p], torch.Generator().manual_seed(1))
        p.grad = torch.zeros(6, 5)
        optimizer.step()
        assert torch.equal(p[:2], torch.ones(2, 5))
        assert bool(p.isfinite().all())
