"""Inputs of the cases: codebooks, parameters with gradients, shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

import qmaps
from qmaps.maps import Codebook
from qmaps.normalize.block import BlockWise

Shapes = list[tuple[int, ...]]


def generator(seed: int = 0, device: torch.device | str = "cpu") -> torch.Generator:
    """A random number generator with a fixed seed."""
    return torch.Generator(device).manual_seed(seed)


def normal(shape: tuple[int, ...], seed: int = 0, device: torch.device | str = "cpu") -> Tensor:
    """Normal numbers, made where they lie."""
    return torch.randn(shape, generator=generator(seed, device), device=device)


def vector(scale: float) -> Tensor:
    """2^24 normal numbers."""
    return normal((max(1 << 14, int((1 << 24) * scale)),))


def random_codebooks() -> list[Codebook]:
    """256 values without any structure: ``random`` is signed, ``random-u`` is not."""
    signed = (torch.randn(256, generator=generator(1)) / 3).clamp(-1, 1)
    unsigned = torch.rand(256, generator=generator(2)).square()
    return [Codebook(signed, label="random"), Codebook(unsigned, label="random-u")]


def quantizer(spec: str) -> qmaps.Quantizer:
    """Quantizer of `spec`; names of `random_codebooks` are allowed as maps."""
    return qmaps.quantizer(spec, codebooks=random_codebooks())


def block_size(quantizer: qmaps.Quantizer) -> int:
    """Number of elements of a block."""
    normalizer = quantizer.normalizer
    assert isinstance(normalizer, BlockWise)
    return int(normalizer.size)


def parameters(
    shapes: Iterable[tuple[int, ...]],
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> list[Tensor]:
    """Normal parameters with storage for their gradients."""
    made = []
    for shape in shapes:
        p = normal(shape, device=device).to(dtype).requires_grad_()
        p.grad = torch.zeros_like(p)
        made.append(p)
    return made


def new_gradients(params: list[Tensor], scales: Iterable[float] = (1e-3,)) -> Callable[[int], None]:
    """Return a function to give every parameter a new gradient in each round.

    With a constant gradient the moments would settle, and their codes never change.

    Args:
        params: parameters; their gradients are normal numbers, different in every round.
        scales: standard deviations, repeated over the parameters.
    """
    chosen = list(scales)
    pool = normal((max(p.numel() for p in params) + 4096,), 3, params[0].device)

    def refresh(number: int) -> None:
        for index, p in enumerate(params):
            start = (977 * number + 131 * index) % 4096
            assert p.grad is not None
            torch.mul(
                pool[start : start + p.numel()].view(p.shape),
                chosen[index % len(chosen)],
                out=p.grad,
            )

    return refresh


def matrices(scale: float) -> Shapes:
    """Four of 4096 x 4096."""
    side = max(128, int(4096 * math.sqrt(scale)))
    return [(side, side)] * 4


def many(scale: float) -> Shapes:
    """1000 of 4 thousand to 64 thousand elements, all large enough to be quantized."""
    count = max(20, int(1000 * scale))
    return [(int(n),) for n in torch.linspace(4100, 65536, count).tolist()]


def gpt2(scale: float) -> Shapes:
    """The parameters of GPT-2 small: 124,439,808 in 148 tensors."""
    root = math.sqrt(scale)
    width = max(64, int(768 * root) // 64 * 64)
    norm = [(width,), (width,)]
    attention = [(width, 3 * width), (3 * width,), (width, width), (width,)]
    network = [(width, 4 * width), (4 * width,), (4 * width, width), (width,)]
    layer = [*norm, *attention, *norm, *network]
    embeddings = [(int(50257 * root), width), (1024, width)]
    return [*embeddings, *layer * 12, *norm]
