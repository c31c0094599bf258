from __future__ import annotations

import math

import numpy as np
import torch

from qmaps import float32


def ulp(reference: np.ndarray) -> np.ndarray:
    return np.spacing(np.maximum(np.abs(reference), 1).astype(np.float32)).astype(np.float64)


def positives() -> torch.Tensor:
    g = torch.Generator().manual_seed(0)
    bits = torch.randint(1, 0x7F800000, (200_000,), generator=g, dtype=torch.int32)
    near_one = 1 + torch.randn(20_000, generator=g) * 1e-3
    return torch.cat([bits.view(torch.float32), near_one])


def test_log2_is_accurate_and_exact_at_powers_of_two() -> None:
    x = positives()
    exact = np.log2(x.double().numpy())
    error = np.abs(float32.log2(x).double().numpy() - exact)
    assert np.all(error <= 2 * ulp(exact))
    powers = torch.arange(-149, 128)
    assert torch.equal(float32.log2(torch.exp2(powers.double()).float()), powers.float())


def test_exp2_is_accurate_and_exact_at_integers() -> None:
    y = torch.rand(200_000, generator=torch.Generator().manual_seed(1)) * 253 - 126
    exact = np.exp2(y.double().numpy())
    actual = float32.exp2(y).double().numpy()
    assert np.all(np.abs(actual - exact) <= 2 * np.spacing(exact.astype(np.float32)))
    integers = torch.arange(-149, 128)
    assert torch.equal(float32.exp2(integers.float()), torch.exp2(integers.double()).float())
    beyond = float32.exp2(torch.tensor([-math.inf, -336.0, -200.0, 200.0, 600.0, math.inf]))
    assert beyond.tolist() == [0, 0, 0, math.inf, math.inf, math.inf]
    assert not beyond.signbit().any()
    assert bool(float32.exp2(torch.tensor([float("nan")])).isnan())


def test_every_operation_is_one_float32_operation_in_the_order_written() -> None:
    """numpy never fuses a product with a sum, and gives the same bits."""
    f = np.float32
    x = positives()
    mantissa, exponent = np.frexp(x.numpy())
    small = mantissa < f(0.70710678)
    mantissa = np.where(small, mantissa * f(2), mantissa)
    exponent = (exponent - small).astype(f)
    s = (mantissa - f(1)) / (mantissa + f(1))
    z = s * s
    series = np.full_like(z, f(float32._LOG2[-1]))
    for c in reversed(float32._LOG2[:-1]):
        series = series * z + f(c)
    assert np.array_equal(exponent + s * series, float32.log2(x).numpy())

    y = torch.rand(100_000, generator=torch.Generator().manual_seed(1)) * 280 - 150
    k = np.rint(y.numpy())
    g = y.numpy() - k
    series = np.full_like(g, f(float32._EXP2[-1]))
    for c in reversed(float32._EXP2[:-1]):
        series = series * g + f(c)
    half = np.floor(k / 2)
    with np.errstate(over="ignore"):
        expected = series * np.exp2(half).astype(f) * np.exp2(k - half).astype(f)
    assert np.array_equal(expected, float32.exp2(y).numpy())


def test_square_root_and_division_are_ieee() -> None:
    x, y = positives(), positives().flip(0)
    assert np.array_equal(float32.sqrt(x).numpy(), np.sqrt(x.numpy()))
    with np.errstate(over="ignore", under="ignore"):
        assert np.array_equal((x / y).numpy(), x.numpy() / y.numpy())
