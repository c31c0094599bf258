"""Statements of docs/bitsandbytes-and-torchao.md on bitsandbytes' 8-bit AdamW on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import qmaps
from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.ops.backends import use_backend
from qmaps.optim import AdamW

bitsandbytes = pytest.importorskip("bitsandbytes")

LR = 1e-3
SIZE = 4096
DYNAMIC = "B256/DE@8s + B256/DE@8u"
TABLE = "B256/DE-table@8s + B256/DE-table@8u"
DEFAULT = "B256/DE@8s + B256/DE-0@8u"


def train(make: Callable[..., torch.optim.Optimizer], steps: int) -> tuple[Tensor, list[Tensor]]:
    """Parameters, and 8-bit second moments, of a net with inputs over four decades."""
    generator = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 64))
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(0.1 * torch.randn(p.shape, generator=generator))
    optimizer = make(net.parameters())
    for _ in range(steps):
        x = torch.randn(32, 128, generator=generator) * torch.logspace(0, -4, 128)
        y = torch.randn(32, 64, generator=generator)
        optimizer.zero_grad()
        (net(x) - y).square().mean().backward()
        optimizer.step()
    moments = [
        state["exp_avg_sq"].dequantize()
        for state in optimizer.state.values()
        if isinstance(state.get("exp_avg_sq"), QuantizedTensor)
    ]
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()]), moments


def theirs(params: object) -> torch.optim.Optimizer:
    return bitsandbytes.optim.AdamW8bit(params, lr=LR, min_8bit_size=SIZE)


def ours(pair: str) -> Callable[..., AdamW]:
    # Of 4096 elements on, as theirs.
    return lambda params: AdamW(params, lr=LR, state_quantizers=pair, min_quantized_size=SIZE - 1)


@pytest.mark.parametrize("backend", ["reference", "native"])
@pytest.mark.parametrize("steps", [2, 12])
def test_the_table_takes_their_steps_where_the_nearest_value_does_not(
    steps: int, backend: str
) -> None:
    expected, _ = train(theirs, steps)
    exact, _ = train(lambda params: torch.optim.AdamW(params, lr=LR), steps)
    with use_backend(backend):
        results = {pair: train(ours(pair), steps) for pair in (DYNAMIC, TABLE, DEFAULT)}
    apart = {pair: float((p - expected).abs().max()) for pair, (p, _) in results.items()}
    zeros = {pair: any(bool((v == 0).any()) for v in vs) for pair, (_, vs) in results.items()}
    assert zeros == {DYNAMIC: True, TABLE: False, DEFAULT: False}
    # m / eps is many steps at once; codes beside theirs are a part of one.
    assert apart[DYNAMIC] > 20 * LR
    assert apart[TABLE] < 0.5 * LR * steps
    assert apart[TABLE] < apart[DEFAULT]
    assert float((expected - exact).abs().max()) < LR * steps


@pytest.mark.parametrize("sign", ["s", "u"])
def test_the_table_has_the_values_that_theirs_reaches(sign: str) -> None:
    codebook = bitsandbytes.functional.create_dynamic_map(signed=sign == "s")
    n = torch.linspace(-1 if sign == "s" else 0, 1, 255 * 1000)
    near = torch.cat([torch.zeros(1), torch.logspace(-9, -4, 254)])
    x = torch.cat([n, near, -near if sign == "s" else near]).view(-1, 255)
    x = torch.cat([torch.ones(len(x), 1), x], dim=1)  # blocks with a largest value of 1
    codes, _ = torch.ops.bitsandbytes.quantize_blockwise(x, codebook.clone(), 256)
    reached = codebook[codes.reshape(-1).long()]
    q = qmaps.quantizer(f"B256/DE-table@8{sign}")
    values = q.map.codebook()
    assert torch.allclose(reached.unique(), values, rtol=1e-6, atol=0)
    # Theirs is nearest to the middle of a cell of width 3e-5.
    actual = q.quantize(x).dequantize().reshape(-1)
    unequal = ~torch.isclose(actual, reached, rtol=1e-6, atol=0)
    assert bool(((actual - x.reshape(-1)).abs() <= (reached - x.reshape(-1)).abs() + 1e-7).all())
    assert float(unequal.float().mean()) < 0.01
    tiny = x.reshape(-1).abs() < 2.9e-5
    assert torch.allclose(actual[tiny].abs(), reached[tiny].abs(), rtol=1e-6, atol=0)
