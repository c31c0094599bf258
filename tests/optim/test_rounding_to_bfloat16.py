"""Stochastic rounding of float32 to bfloat16."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qmaps.algebra.philox import RoundingKey, draws
from qmaps.engines.bfloat16 import round_stochastically


def floats(bits: list[int] | np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.asarray(bits, dtype=np.uint32).view(np.float32))


def bits_of(x: torch.Tensor) -> np.ndarray:
    return x.float().numpy().view(np.uint32).astype(np.int64)


pattern = st.integers(0, 2**32 - 1) | st.builds(
    lambda high, low: high << 16 | low,
    st.sampled_from([0, 0x8000, 0x7F, 0x80, 0x3F80, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7FC0]),
    st.sampled_from([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF]),
)


@given(bits=st.lists(pattern, min_size=1, max_size=20), seed=st.integers(0, 2**32 - 1))
def test_only_neighbours_and_by_the_elements_own_bits(bits: list[int], seed: int) -> None:
    key = RoundingKey(seed=seed, purpose=1)
    x = floats(bits)
    actual = round_stochastically(x, key)
    assert actual.dtype == torch.bfloat16
    for b, draw, y, plain in zip(
        bits, draws(len(bits), key).tolist(), actual, x.to(torch.bfloat16), strict=True
    ):
        if b >> 23 & 0xFF == 0xFF:
            assert torch.equal(y, plain) or bool(y.isnan() & plain.isnan())
            continue
        # The magnitude's bits count bfloat16 numbers in their order, infinity after the largest.
        high, low = divmod(b, 2**16)
        up = low + draw >= 2**16
        assert bits_of(y).item() == (high + up) << 16


def test_bfloat16_numbers_stay() -> None:
    every = floats(np.arange(2**16, dtype=np.uint32) << 16)
    actual = round_stochastically(every, RoundingKey(seed=1))
    numbers = ~every.isnan()
    assert np.array_equal(bits_of(actual)[numbers], bits_of(every)[numbers])
    assert bool(actual[~numbers].isnan().all())


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("low", [1, 0x0100, 0x5555, 0x8000, 0xC000, 0xFFFF])
@pytest.mark.parametrize("high", [0x0000, 0x0040, 0x007F, 0x3F80, 0x3FFF, 0x7F7E])
def test_it_is_unbiased(high: int, low: int, sign: int) -> None:
    """Both neighbours in proportion to the distances, also for subnormals and ends of binades.

    Of all seeds, fewer than 1e-6 would fail in any of the cases: 72 times 2e-9, the chance of six
    standard deviations, and less where few are expected.
    """
    count, share = 2**18, low / 2**16
    x = sign * floats([high << 16 | low]).expand(count)
    key = RoundingKey(seed=7, purpose=1, step=low, tensor=high, state=int(sign == 1))
    actual = round_stochastically(x, key)
    lower, upper = (sign * floats([bits << 16]).item() for bits in (high, high + 1))
    up = int((actual == upper).sum())
    assert up + int((actual == lower).sum()) == count
    deviation = (count * share * (1 - share)) ** 0.5
    # Poisson with mean 4 (low = 1 and 0xFFFF): 26 or more have a chance of 2e-13.
    assert abs(up - count * share) < max(6 * deviation, 22)


def test_elements_are_numbered_in_row_major_order() -> None:
    x = torch.randn(40, 30, generator=torch.Generator().manual_seed(0))
    key = RoundingKey(seed=2, purpose=1)
    full = round_stochastically(x, key)
    assert not torch.equal(full, x.to(torch.bfloat16))
    assert torch.equal(round_stochastically(x.t().contiguous().t(), key), full)
    later = RoundingKey(seed=2, purpose=1, offset=600)
    assert torch.equal(round_stochastically(x[20:], later), full[20:])
    assert round_stochastically(x[:0], key).shape == (0, 30)
    assert round_stochastically(x[0, 0], key).shape == ()


def test_it_leaves_its_input() -> None:
    x = torch.randn(100)
    before = x.clone()
    round_stochastically(x, RoundingKey())
    assert torch.equal(x, before)
