"""Codes of more than 8 bits at every limit of even and nearly even codebooks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor

import qmaps
from qmaps.maps import Codebook, Linear, Linear0, Map
from qmaps.normalize import PerTensor
from qmaps.ops.backends import use_backend

EVEN = [
    kind(bits=bits, signed=signed)
    for kind in (Linear, Linear0)
    for bits in (9, 12, 16)
    for signed in (True, False)
]


def moved(at: int, share: float) -> Codebook:
    """1000 evenly spaced values; one is moved by a share of the way to the next."""
    values = torch.linspace(-1, 1, 1000, dtype=torch.float64)
    values[at] += share * (values[1] - values[0])
    return Codebook(values, label="moved")


NEARLY = [
    *(moved(at, share) for at in (0, 400, 997) for share in (0.45, 0.9)),
    Codebook([-1.0, *torch.linspace(0.2, 1, 600).tolist()], label="gap"),
    Codebook(torch.linspace(-1, 1, 700).pow(3), label="cubes"),
    Codebook(torch.linspace(-1, -0.25, 300), label="negative"),
    Codebook([*torch.linspace(-1e-38, 1e-38, 513).tolist(), 1.0], label="tiny"),
]


def expected(values: Tensor, x: Tensor) -> Tensor:
    """The nearest code in float64, where every midpoint is exact; a tie takes the lower one."""
    exact = values.double()
    return torch.searchsorted((exact[1:] + exact[:-1]) / 2, x.double())


def around(values: Tensor) -> Tensor:
    """Floats at and beside all values and midpoints, and the ends of the range."""
    exact = values.double()
    points = torch.cat([exact, (exact[1:] + exact[:-1]) / 2]).float()
    up, down = (torch.nextafter(points, torch.tensor(end)) for end in (math.inf, -math.inf))
    ends = torch.tensor([-1.0, 1.0, 0.0, -0.0, 1e-40, -1e-40])
    return torch.cat([points, up, down, ends]).clamp(-1, 1)


@pytest.mark.parametrize("map_", [*EVEN, *NEARLY], ids=lambda map_: repr(map_)[:60])
def test_codes_at_every_limit(map_: Map, each_isa: Callable[[], Iterable[str]]) -> None:
    values = map_.codebook()
    x = around(values) if map_.signed else around(values).abs()
    x[-1] = 1.0  # so that the scale is 1
    q = PerTensor() / map_
    wanted = expected(values, x)
    for isa in each_isa():
        with use_backend("native"):
            actual = q.quantize(x).codes()
        assert torch.equal(actual.long(), wanted), isa


@pytest.mark.parametrize("bits", [10, 12, 16])
def test_stochastic_codes_stay_between_neighbours(
    bits: int, each_isa: Callable[[], Iterable[str]]
) -> None:
    q = qmaps.quantizer(f"tensor/linear0@{bits}s+sr")
    values = q.map.codebook()
    x = around(values)
    x[-1] = 1.0
    with use_backend("reference"):
        wanted = q.quantize(x, key=qmaps.RoundingKey(seed=3)).codes()
    for isa in each_isa():
        with use_backend("native"):
            actual = q.quantize(x, key=qmaps.RoundingKey(seed=3)).codes()
        assert torch.equal(actual, wanted), isa
    decoded = values[wanted.long()]
    assert (decoded - x).abs().max() < 1.001 * (values[1] - values[0])


@pytest.mark.parametrize("rounding", [qmaps.Rounding.NEAREST, qmaps.Rounding.STOCHASTIC])
@pytest.mark.parametrize("map_", [*EVEN, *NEARLY], ids=lambda map_: repr(map_)[:60])
def test_packed_codes_and_values_are_those_of_the_reference(
    map_: Map, rounding: qmaps.Rounding, each_isa: Callable[[], Iterable[str]]
) -> None:
    x = around(map_.codebook()).flip(0) * 3
    x = (x if map_.signed else x.abs())[
        : -(x.numel() % 8 == 0) or None
    ]  # the last byte is not full
    q = qmaps.Quantizer(PerTensor(), map_, rounding=rounding)

    def codes_and_values(backend: str) -> tuple[Tensor, Tensor]:
        with use_backend(backend):
            quantized = q.quantize(x, key=qmaps.RoundingKey(seed=3))
            return quantized.packed, quantized.dequantize()

    packed, values = codes_and_values("reference")
    for isa in each_isa():
        ours = codes_and_values("native")
        assert torch.equal(ours[0], packed), isa
        assert torch.equal(ours[1].view(torch.int32), values.view(torch.int32)), isa
