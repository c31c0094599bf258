"""Philox4x32-10: random bits as a pure function of a key and a counter.

Stochastic rounding draws from it, so that a result depends on what is rounded and never on
threads, devices, sharding, or torch's own generators.

Source: Salmon et al. (2011), "Parallel random numbers: as easy as 1, 2, 3".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from qmaps.errors import BadTypeError, BadValueError, shown

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LIMITS = {"seed": 32, "purpose": 8, "step": 53, "micro_batch": 16, "tensor": 32, "state": 8,
           "offset": 42}  # fmt: skip


@dataclass(frozen=True)
class RoundingKey:
    """Names one stochastic rounding of one tensor; equal keys give equal noise.

    The Philox key is (seed, purpose), with the upper bits of `step` in bits 8 to 28 of its second
    word. The counter of an element with global index g is

    - word 0: the low 32 bits of ``g // 4``,
    - word 1: the next 8 bits of it, `state` in bits 8 to 15, `micro_batch` in bits 16 to 31,
    - word 2: `tensor`, word 3: the low 32 bits of `step`,

    and the element takes output word ``g % 4``.

    Attributes:
        seed: chosen by the user; 32 bits.
        purpose: what is rounded: 0 optimizer states, 1 parameters in bfloat16, 2 parameters kept
            in low precision, 3 their gradients (`qmaps.lpmm`); 8 draws APOLLO's projections; 16 to
            20 are messages, with the rank as `micro_batch`: 16 parts of a sum to their owner, 17
            sums to all, 18 activations, 19 sub-batches, 20 their errors. Other values are
            reserved; 8 bits.
        step: number of the optimizer step; 53 bits, as float64 counts.
        micro_batch: number within the step; 16 bits.
        tensor: number of the parameter; 32 bits.
        state: number of the state within the parameter; 8 bits.
        offset: global index of the tensor's first element, for shards; below 2**42.
        runs: for shards that are not one stretch of the whole tensor: how many elements are
            consecutive, and how far apart such runs begin.
    """

    seed: int = 0
    purpose: int = 0
    step: int = 0
    micro_batch: int = 0
    tensor: int = 0
    state: int = 0
    offset: int = 0
    runs: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        for name, bits in _LIMITS.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise BadTypeError(f"{name}={shown(value)} must be an int")
            if not 0 <= value < 2**bits:
                raise BadValueError(f"{name}={shown(value)} must be between 0 and 2**{bits} - 1")

    def words(self) -> tuple[int, int, int, int, int, int]:
        """Philox key, the upper three words of the counter, and `offset`."""
        word1 = (self.state << 8) | (self.micro_batch << 16)
        key1 = self.purpose | (self.step >> 32) << 8
        return self.seed, key1, word1, self.tensor, self.step & _MASK, self.offset


def philox4x32(counter: Tensor, key: tuple[int, int]) -> Tensor:
    """Ten rounds of Philox4x32.

    Args:
        counter: int64 tensor of shape (..., 4) with words in 0 to 2**32 - 1.
        key: two words in 0 to 2**32 - 1.

    Returns:
        int64 tensor of the same shape: four words of 32 random bits each.

    >>> [f"{word:08x}" for word in philox4x32(torch.zeros(4, dtype=torch.int64), (0, 0)).tolist()]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    c0, c1, c2, c3 = counter.unbind(-1)
    k0, k1 = key
    for _ in range(10):
        # int64 products wrap; their 64 bits are still those of the unsigned product.
        left, right = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((right >> 32) & _MASK) ^ c1 ^ k0,
            right & _MASK,
            ((left >> 32) & _MASK) ^ c3 ^ k1,
            left & _MASK,
        )
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return torch.stack([c0, c1, c2, c3], dim=-1)


def words(count: int, key: RoundingKey, device: torch.device | str = "cpu") -> Tensor:
    """One random word for each of `count` elements.

    Args:
        count: the number of elements.
        key: names the random numbers. Its `offset` and `runs` say which elements of the whole
            tensor these are.
        device: where the words are computed; they do not depend on it.

    Returns:
        int64 of shape (count,), each in 0 to 2**32 - 1.

    Raises:
        BadValueError: the elements end beyond 2**42. Keys with `runs` are not checked.
    """
    if key.runs is not None:
        length, distance = key.runs
        here = torch.arange(count, dtype=torch.int64, device=device)
        index = key.offset + here // length * distance + here % length
        drawn = _blocks(index // 4, key)
        return drawn.gather(1, (index % 4)[:, None])[:, 0]
    if key.offset + count > 2**42:
        raise BadValueError(f"offset={key.offset} plus {count} elements must be at most 2**42")
    first = key.offset // 4
    groups = -(-(key.offset + count) // 4) - first
    drawn = _blocks(torch.arange(first, first + groups, dtype=torch.int64, device=device), key)
    start = key.offset % 4
    return drawn.reshape(-1)[start : start + count]


def _blocks(group: Tensor, key: RoundingKey) -> Tensor:
    """The four words of each group of four elements."""
    counter = torch.empty(len(group), 4, dtype=torch.int64, device=group.device)
    key0, key1, word1, word2, word3, _ = key.words()
    counter[:, 0] = group & _MASK
    counter[:, 1] = (group >> 32) | word1
    counter[:, 2] = word2
    counter[:, 3] = word3
    return philox4x32(counter, (key0, key1))


def uniform(count: int, key: RoundingKey, device: torch.device | str = "cpu") -> Tensor:
    """One uniformly distributed number for each of `count` elements.

    Args:
        count: the number of elements.
        key: names the random numbers, as in `words`.
        device: where the numbers are computed; they do not depend on it.

    Returns:
        float32 of shape (count,): multiples of 2**-24 in [0, 1).
    """
    return (words(count, key, device) >> 8).to(torch.float32) * 2.0**-24


def normal(count: int, key: RoundingKey, device: torch.device | str = "cpu") -> Tensor:
    """One normally distributed number, of mean 0 and variance 1, for each of `count` elements.

    Elements 2i and 2i + 1 of the result are the cosine and the sine of the Box-Muller transform of
    their two words. The transform uses float64 logarithms and sines of libraries, so that devices
    may differ in the last bit of float32.

    Args:
        count: the number of elements.
        key: names the random numbers, as in `words`.
        device: where the numbers are computed.

    Returns:
        float32 of shape (count,).
    """
    pairs = words(count + count % 2, key, device).view(-1, 2).double()
    radius = (-2 * ((pairs[:, 0] + 1) * 2.0**-32).log()).sqrt()
    angle = pairs[:, 1] * (2 * math.pi * 2.0**-32)
    both = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=-1)
    return both.reshape(-1)[:count].to(torch.float32)
