"""Model memory of published networks, in full and in low precision."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from qmaps import lpmm
from qmaps.lpmm.adam import MOMENTS
from qmaps.lpmm.footprint import FULL, ModelMemory, Spec
from qmaps.lpmm.sgd import MOMENTUM
from reproduction.lpmm._resnet import Shape


@dataclass(frozen=True)
class Kept:
    """Formats of parameters, gradients and states.

    Attributes:
        params, grads: quantizers.
        states: quantizer of each state.
    """

    params: Spec
    grads: Spec
    states: dict[str, Spec]

    def memory(self, shapes: Iterable[Shape]) -> ModelMemory:
        """Of parameters of these shapes; equal ones are looked at once."""
        total = ModelMemory(0, 0, 0, dict.fromkeys(self.states, 0))
        for shape, count in Counter(shapes).items():
            # Nothing is allocated on this device.
            parameter = nn.ParameterList([torch.empty(shape, device="meta")])
            memory = lpmm.predict(parameter, self.params, self.grads, self.states)
            total = ModelMemory(
                total.numel + count * memory.numel,
                total.params + count * memory.params,
                total.grads + count * memory.grads,
                {name: total.states[name] + count * n for name, n in memory.states.items()},
            )
        return total


PARAMS, GRADS = "B2048/linear0@12s+sr", "B2048/linear0@8s+sr"
SGD = Kept(PARAMS, GRADS, {"momentum_buffer": MOMENTUM})
SGD_32 = Kept(FULL, FULL, {"momentum_buffer": FULL})
SGD_8 = Kept(FULL, FULL, {"momentum_buffer": "B2048/DE@8s"})
ADAM = Kept(PARAMS, GRADS, dict(MOMENTS))
ADAM_32 = Kept(FULL, FULL, dict.fromkeys(MOMENTS, FULL))
ADAM_8888 = Kept(GRADS, GRADS, dict(MOMENTS))
"""All in 8 bits, parameters too."""


def at_work(shapes: Iterable[Shape], values: int = 2) -> int:
    """Bytes of the largest parameter in 32 bits, and as many again for each further value.

    Two are the decoded weights and their gradient.
    """
    return 4 * values * max(math.prod(shape) for shape in shapes)
