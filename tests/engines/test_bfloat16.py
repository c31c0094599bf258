"""Remainders beside bfloat16: lossless in 16 bits, 24-bit numbers in 8, as in packages."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from qmaps.engines.bfloat16 import SPLITS, join, split
from tests.make_remainders import values as packaged
from tests.remainders import FLASHOPTIM, HEAVYBALL

BOTH = pytest.mark.parametrize("dtype", SPLITS.values(), ids=SPLITS)


def everything() -> Tensor:
    """Float32 numbers around every bfloat16 number, and random ones: NaN and infinity too."""
    near = torch.tensor([0, 1, 127, 128, 129, 255, 256, 0x7FFF, 0x8000, 0x8001, 0x8080, 0xFFFF])
    upper = torch.arange(1 << 16) << 16
    random = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 1 << 32, (1 << 18,), generator=random)
    bits = torch.cat([(upper[:, None] | near).flatten(), noise])
    return torch.from_numpy(bits.numpy().astype(np.uint32).view(np.float32))


def bits(x: Tensor) -> np.ndarray:
    """The bits of float32 numbers."""
    actual: np.ndarray = x.numpy().view(np.uint32)
    return actual


def in_24_bits(x: np.ndarray) -> np.ndarray:
    """Float32 numbers rounded to 16 significant bits, ties to even, by float64 arithmetic.

    Subnormal ones are multiples of 2**-141.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        wide = x.astype(np.float64)
        exponent = np.maximum(np.frexp(wide)[1], -125)
        rounded = np.ldexp(np.round(np.ldexp(wide, 16 - exponent)), exponent - 16)
        return np.where(np.isfinite(x), rounded, x).astype(np.float32)


def test_16_bits_lose_nothing() -> None:
    x = everything()
    param, remainder = split(x, torch.int16)
    assert (param.dtype, remainder.dtype) == (torch.bfloat16, torch.int16)
    back, number = join(param, remainder), ~x.isnan().numpy()
    assert np.array_equal(bits(back)[number], bits(x)[number])
    # The two halves of a float32 number, with the upper one rounded, as TransformerEngine has it.
    halves = x.numpy().view(np.int16).reshape(-1, 2)[number]
    upper = halves[:, 1] + (halves[:, 0] < 0)
    assert np.array_equal(remainder.numpy()[number], halves[:, 0])
    assert np.array_equal(param.view(torch.int16).numpy()[number], upper)


def test_8_bits_are_numbers_of_24_bits() -> None:
    x = everything()
    param, remainder = split(x, torch.int8)
    assert (param.dtype, remainder.dtype) == (torch.bfloat16, torch.int8)
    back, number = join(param, remainder), ~x.isnan().numpy()
    expected = torch.from_numpy(in_24_bits(x.numpy()))
    assert np.array_equal(bits(back)[number], bits(expected)[number])
    # A second time nothing changes.
    again = split(back, torch.int8)
    assert torch.equal(again[0].view(torch.int16), param.view(torch.int16))
    assert torch.equal(again[1], remainder)


@BOTH
def test_the_parameter_is_the_nearest(dtype: torch.dtype) -> None:
    x = everything()
    param, remainder = split(x, dtype)
    value = join(param, remainder)
    nearest = value.bfloat16()
    middle = (value.view(torch.int32) & 0xFFFF) == 0x8000
    assert torch.equal(param[~middle].nan_to_num(1.5), nearest[~middle].nan_to_num(1.5))
    # The middle goes to the larger magnitude.
    finite = middle & (value.abs() < 3.3e38)
    assert bool((param[finite].float().abs() > value[finite].abs()).all())
    assert int(finite.sum()) > 60_000
    assert not bool(remainder[x.isinf() | x.isnan()].any())


@BOTH
def test_nan_stays_and_never_appears(dtype: torch.dtype) -> None:
    x = everything()
    param, remainder = split(x, dtype)
    assert torch.equal(param.isnan(), x.isnan())
    assert torch.equal(join(param, remainder).isnan(), x.isnan())
    # Remainders of other values.
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    for value in (torch.iinfo(dtype).min, -1, 0, 1, torch.iinfo(dtype).max):
        back = join(every, torch.full(every.shape, value, dtype=dtype))
        assert torch.equal(back.isnan(), every.isnan())
        assert torch.equal(back.signbit()[~back.isnan()], every.signbit()[~back.isnan()])


def test_zeros_that_were_set_between_steps() -> None:
    param = torch.tensor([0.0, -0.0, 0.0, torch.inf, torch.inf]).bfloat16()
    back = join(param, torch.tensor([-5, -128, 3, 7, -1], dtype=torch.int8))
    largest = torch.tensor(0x7F7FFF00, dtype=torch.int32).view(torch.float32)
    expected = torch.tensor([0.0, -0.0, 3 * 2.0**-141, torch.inf, largest])
    assert np.array_equal(bits(back), bits(expected))


@BOTH
def test_shapes_and_strides(dtype: torch.dtype) -> None:
    x = torch.randn(5, 7, 3, generator=torch.Generator().manual_seed(1)).permute(2, 0, 1)
    param, remainder = split(x, dtype)
    assert param.shape == remainder.shape == x.shape
    assert param.is_contiguous()
    assert remainder.is_contiguous()
    strided = param.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    assert torch.equal(join(strided, remainder), join(param, remainder))
    for shape in ((), (0, 3)):
        param, remainder = split(torch.ones(shape), dtype)
        assert torch.equal(join(param, remainder), torch.ones(shape))


@BOTH
@pytest.mark.parametrize("package", [FLASHOPTIM, HEAVYBALL], ids=["flashoptim", "heavyball"])
def test_beside_packages(package: dict[str, tuple[list[float], ...]], dtype: torch.dtype) -> None:
    x = packaged()
    remainders, back = map(torch.tensor, package[str(dtype).removeprefix("torch.")])
    param, remainder = split(x, dtype)
    ours = join(param, remainder)
    unit = (torch.frexp(x.bfloat16().double())[1] - 8).double().exp2()
    # They divide half a unit in the last place into 127 or 32767 steps, qmaps into 128 or 32768.
    levels = torch.iinfo(dtype).max
    assert torch.equal(param, x.bfloat16())
    assert bool(((back.double() - x) / unit).abs().max() <= 0.2501 / levels)
    assert bool(((ours.double() - x) / unit).abs().max() <= 0.25 / (levels + 1))
    # Below a power of two the steps of qmaps are half as long.
    same = param.double().abs() <= x.double().abs()
    scaled = remainders.double().abs() * ((levels + 1) / levels)
    assert bool((scaled - remainder.double().abs()).abs()[same].max() <= 1.5)
    assert int(same.sum()) > 30
