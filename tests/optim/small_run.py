"""A run on three small parameters, easy to repeat with other packages."""

import torch
from torch import Tensor

SHAPES = ((5, 3), (2, 3, 2), (4,))


def start() -> list[Tensor]:
    """The parameters before the first step."""
    return [_numbers(7 + i, shape) for i, shape in enumerate(SHAPES)]


def gradient(step: int, index: int, param: Tensor) -> Tensor:
    """The gradient of a parameter: its value plus new noise in each step."""
    return param + 0.5 * _numbers(step * 31 + index * 17, tuple(param.shape))


def _numbers(seed: int, shape: tuple[int, ...]) -> Tensor:
    count = torch.Size(shape).numel()
    numbers = [((i + 1) * (seed * 2 + 1) * 7919 % 2003 - 1001) / 1001 for i in range(count)]
    return torch.tensor(numbers).reshape(shape)
