"""Philox4x32: random bits as a pure function of a key and a counter.

Stochastic rounding draws from it, so that a result depends on what is rounded and never on
threads, devices, sharding, or torch's own generators. An element takes 16 random bits, and eight
elements share one block of Philox with seven rounds. APOLLO's projections take 32 bits per number
and ten rounds.

Source: Salmon et al. (2011), "Parallel random numbers: as easy as 1, 2, 3". They recommend ten
rounds for a margin of safety; seven pass all of their statistical tests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import torch
from torch import Tensor

from qmaps.errors import BadValueError, check_int, shown

Word = TypeVar("Word", int, Tensor)

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
SPREAD = 1 << 31
"""Set in the second word of the key of a `RoundingKey` whose draws are spread over steps."""
PER_STEP, PER_ELEMENT = 0x9E3779B9, 0xC13FA9A9
"""2**32 times 0.618..., the golden ratio's fraction, and 0.755..., the inverse of the plastic
number: their multiples are spread evenly (Roberts, 2018)."""
_LIMITS = {"seed": 32, "purpose": 8, "step": 53, "micro_batch": 16, "tensor": 32, "state": 8,
           "offset": 42}  # fmt: skip


@dataclass(frozen=True)
class RoundingKey:
    """Names one stochastic rounding of one tensor; equal keys give equal noise.

    The Philox key is (seed, purpose), with the upper bits of `step` in bits 8 to 28 of its second
    word. The counter of an element with global index g is

    - word 0: the low 32 bits of ``g // 8``,
    - word 1: the next 7 bits of it, `state` in bits 8 to 15, `micro_batch` in bits 16 to 31,
    - word 2: `tensor`, word 3: the low 32 bits of `step`,

    and the element takes half ``g % 2`` of output word ``g % 8 // 2``: the low 16 bits of the word
    if g is even, the high 16 bits if it is odd. Numbers of 32 bits (`normal`) are numbered alike,
    but four of them share a block.

    A key that is `spread` takes no block for each element. Its draws are the upper 16 of the 32
    bits of ``base + step * PER_STEP + g * PER_ELEMENT``, where `base` is word 0 of the block whose
    counter and key have the same words, with g and `step` zero. Over any run of steps the draws of
    an element, and in any step those of neighbours, lie more evenly than random ones: they are a
    low-discrepancy sequence. Word 2 is then `base`, and bit 31 of the second word of the key is
    set.

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
        spread: whether draws are spread evenly over steps, for ``+qsr``.
    """

    seed: int = 0
    purpose: int = 0
    step: int = 0
    micro_batch: int = 0
    tensor: int = 0
    state: int = 0
    offset: int = 0
    runs: tuple[int, int] | None = None
    spread: bool = False

    def __post_init__(self) -> None:
        for name, bits in _LIMITS.items():
            value = getattr(self, name)
            if type(value) is not int:  # as nearly all are
                check_int(name, value)
            if not 0 <= value < 2**bits:
                raise BadValueError(f"{name}={shown(value)} must be between 0 and 2**{bits} - 1")

    def words(self) -> tuple[int, int, int, int, int, int]:
        """Philox key, the upper three words of the counter, and `offset`."""
        word1 = (self.state << 8) | (self.micro_batch << 16)
        key1 = self.purpose | (self.step >> 32) << 8
        word2 = self.tensor
        if self.spread:
            key1 |= SPREAD
            word2 = _base(self.seed, self.purpose, word1, self.tensor)
        return self.seed, key1, word1, word2, self.step & _MASK, self.offset


@lru_cache(maxsize=4096)
def _base(key0: int, key1: int, word1: int, word2: int) -> int:
    """Where the draws of a key that is spread begin."""
    return _philox((0, word1, word2, 0), (key0, key1), rounds=7)[0]


def philox4x32(counter: Tensor, key: tuple[int, int], rounds: int) -> Tensor:
    """Philox4x32: four words of 32 random bits for each counter, int64 of its shape (..., 4).

    >>> counter = torch.zeros(4, dtype=torch.int64)
    >>> [f"{word:08x}" for word in philox4x32(counter, (0, 0), rounds=7).tolist()]
    ['5f6fb709', '0d893f64', '4f121f81', '4f730a48']
    """
    return torch.stack(_philox(counter.unbind(-1), key, rounds), dim=-1)


def _philox(counter: Sequence[Word], key: tuple[int, int], rounds: int) -> tuple[Word, ...]:
    """The four words of a counter of four, which are numbers or tensors of them."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(rounds):
        # int64 products wrap; their 64 bits are still those of the unsigned product.
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((product1 >> 32) & _MASK) ^ c1 ^ k0,
            product1 & _MASK,
            ((product0 >> 32) & _MASK) ^ c3 ^ k1,
            product0 & _MASK,
        )
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def draws(count: int, key: RoundingKey, device: torch.device | str = "cpu") -> Tensor:
    """16 random bits for each of `count` elements: int64 in 0 to 2**16 - 1, equal on every device.

    The key's `offset` and `runs` say which elements of the whole tensor these are.

    Raises:
        BadValueError: the elements end beyond 2**42. Keys with `runs` are not checked.
    """
    if key.spread:
        return _spread(_indices(count, key, device), key)

    def halves(block: Tensor) -> Tensor:
        words = _blocks(block, key, rounds=7)
        return torch.stack([words & 0xFFFF, words >> 16], dim=-1).flatten(1)

    if key.runs is not None:
        index = _indices(count, key, device)
        return halves(index // 8).gather(1, (index % 8)[:, None])[:, 0]
    if key.offset + count > 2**42:
        raise BadValueError(f"offset={key.offset} plus {count} elements must be at most 2**42")
    first, end = key.offset // 8, -(-(key.offset + count) // 8)
    drawn = halves(torch.arange(first, end, dtype=torch.int64, device=device))
    start = key.offset % 8
    return drawn.reshape(-1)[start : start + count]


def _indices(count: int, key: RoundingKey, device: torch.device | str) -> Tensor:
    """The global indices of `count` elements."""
    local = torch.arange(count, dtype=torch.int64, device=device)
    if key.runs is None:
        return local + key.offset
    length, distance = key.runs
    return key.offset + local // length * distance + local % length


def _spread(index: Tensor, key: RoundingKey) -> Tensor:
    """Draws of elements under a key that is spread."""
    _, _, _, base, step, _ = key.words()
    begin = (base + step * PER_STEP) & _MASK
    return (((index & _MASK) * PER_ELEMENT + begin) & _MASK) >> 16


def _blocks(block: Tensor, key: RoundingKey, rounds: int) -> Tensor:
    """The four words of each block, by its number."""
    counter = torch.empty(len(block), 4, dtype=torch.int64, device=block.device)
    key0, key1, word1, word2, word3, _ = key.words()
    counter[:, 0] = block & _MASK
    counter[:, 1] = (block >> 32) | word1
    counter[:, 2] = word2
    counter[:, 3] = word3
    return philox4x32(counter, (key0, key1), rounds)


def uniform(count: int, key: RoundingKey, device: torch.device | str = "cpu") -> Tensor:
    """One uniformly distributed number r for each of `count` elements, float32.

    ``r = (draw + 1/2) * 2**-16`` takes 2**16 values in (0, 1) and has mean 1/2. For every p in
    [0, 1], the probability of ``r < p`` is p to within 2**-17.
    """
    return (draws(count, key, device).to(torch.float32) + 0.5) * 2.0**-16


def normal(count: int, key: RoundingKey, device: torch.device | str = "cpu") -> Tensor:
    """One normally distributed number, of mean 0 and variance 1, for each of `count` elements.

    Elements 2i and 2i + 1 of the result are the cosine and the sine of the Box-Muller transform of
    words 2i and 2i + 1. Word i is output word ``i % 4`` of the Philox block ``i // 4``, with ten
    rounds. The transform uses float64 logarithms and sines of libraries, so that devices may
    differ in the last bit of float32. The key's `offset` and `runs` are not used.
    """
    blocks = torch.arange(-(-count // 4), dtype=torch.int64, device=device)
    pairs = _blocks(blocks, key, rounds=10).view(-1, 2).double()
    radius = (-2 * ((pairs[:, 0] + 1) * 2.0**-32).log()).sqrt()
    angle = pairs[:, 1] * (2 * math.pi * 2.0**-32)
    values = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=-1)
    return values.reshape(-1)[:count].to(torch.float32)
