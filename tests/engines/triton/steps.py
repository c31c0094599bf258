"""Steps of two optimizers in parallel: in Triton's interpreter and on the reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.ops.backends import use_backend
from qmaps.ops.proof import differing, every_exponent
from qmaps.optim import QuantizedOptimizer

Size = int | tuple[int, ...]
FLOATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Pair:
    """The same parameters under two optimizers of one class.

    Args:
        kind: the class.
        sizes: of the parameters, or their shapes; every second parameter does not begin at a
            multiple of 16 bytes.
        dtype: of parameters and gradients.
        options: of the optimizers.
    """

    def __init__(
        self, kind: type[QuantizedOptimizer], sizes: Sequence[Size], dtype: str, **options: Any
    ) -> None:
        self.dtype = FLOATS[dtype]
        self.params = [self._params(sizes) for _ in range(2)]
        settings = {"min_quantized_size": 0, **options}
        self.ours, self.theirs = (kind(params, **settings) for params in self.params)

    def _params(self, sizes: Sequence[Size]) -> list[torch.nn.Parameter]:
        params = []
        for number, size_or_shape in enumerate(sizes):
            shape = (size_or_shape,) if isinstance(size_or_shape, int) else size_or_shape
            size = math.prod(shape)
            memory = torch.zeros(size + number % 2, dtype=self.dtype)
            values = every_exponent(size, number).clamp(-1e4, 1e4)
            params.append(torch.nn.Parameter(memory[number % 2 :].copy_(values).view(shape)))
        return params

    def step(self, seed: int) -> None:
        for params, optimizer in zip(self.params, (self.ours, self.theirs), strict=True):
            for number, param in enumerate(params):
                gradient = every_exponent(param.numel(), 17 * seed + number).view(param.shape)
                param.grad = gradient.clamp(-1e30, 1e30).to(self.dtype)
            if optimizer is self.ours:
                optimizer.step()
            else:
                with use_backend("reference"):
                    optimizer.step()

    def check(self) -> None:
        """Compare parameters and states, bit for bit."""
        for ours, theirs in zip(*self.params, strict=True):
            assert differing(ours.detach(), theirs.detach()) == 0
            states = self.theirs.state[theirs]
            assert states.keys() == self.ours.state[ours].keys()
            for name, value in states.items():
                pairs = zip(parts(self.ours.state[ours][name]), parts(value), strict=True)
                for actual, expected in pairs:
                    assert actual.dtype == expected.dtype, name
                    assert differing(actual, expected) == 0, name


def parts(value: Tensor | QuantizedTensor) -> list[Tensor]:
    return [value.packed, *value.scales] if isinstance(value, QuantizedTensor) else [value]
