"""The values that the quantizers of a run's moments see, and how much each matters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from qmaps.analyze.design.codebook import Samples
from qmaps.analyze.replay.recursion import advance
from qmaps.analyze.replay.source import Source
from qmaps.normalize.base import Normalizer

MOST = 2**17
"""Elements of all parameters and steps together, about."""
LOOKS = 4
"""Steps of a replay at which the moments are looked at; the last is one of them."""


@dataclass(frozen=True)
class Look:
    """Both moments of a parameter at one step. Pairs are of the first and the second moment.

    Attributes:
        moments: the moments, float32 of the shape that is replayed.
        inputs: what they last took in: the gradient and its square, of the same shape.
        weights: the cost of a squared error of an element of the first moment, and of a squared
            relative error of the update that comes from the second moment; float64, flat.
        chosen: flat indices of the elements to take.
    """

    moments: tuple[Tensor, Tensor]
    inputs: tuple[Tensor, Tensor]
    weights: tuple[Tensor, Tensor]
    chosen: Tensor

    def normalized(self, moment: int, normalizer: Normalizer) -> list[Tensor]:
        """Normalized values of the chosen elements, their weights, and their pull, float64.

        Args:
            moment: 0 for the first, 1 for the second.
            normalizer: the normalizer.
        """
        x, z = self.moments[moment], self.inputs[moment]
        scales = normalizer.scales(x)
        n = normalizer.normalize(x, scales).reshape(-1)[self.chosen].double()
        scale = normalizer.expand(scales, tuple(x.shape)).expand(x.shape)
        scale = scale.reshape(-1)[self.chosen].double()
        distance = (z - x).reshape(-1)[self.chosen].double()
        weights = self.weights[moment][self.chosen]
        if moment == 0:
            weights, distance = weights * scale.square(), distance.abs()
        else:
            # Squares lie as far below their mean as above it, and below it by no more than it is.
            distance = distance.clamp(max=0).mul(-2)
        return [n, weights, torch.where(scale > 0, distance / scale, 0.0)]


def looks(sources: Sequence[Source], *, most: int = MOST, seed: int = 0) -> list[Look]:
    """Look at the exact moments of parameters at some steps of a replay.

    Under the curvature that `qmaps.analyze.replay.run` assumes, an error d of the first moment
    costs d^2 / (sqrt(v) + eps) in the second order, and a relative error r of the update costs
    r^2 m^2 / (sqrt(v) + eps), both moments without bias.

    Args:
        sources: what to replay.
        most: number of elements to choose of all parameters and steps together, about.
        seed: of the choice.

    Returns:
        One look per parameter and step.
    """
    generator = torch.Generator().manual_seed(seed)
    share = most / (LOOKS * max(1, sum(each.m.numel() for each in sources)))
    return [look for each in sources for look in _of(each, share, generator)]


def samples(found: Sequence[Look], moment: int, normalizer: Normalizer) -> Samples:
    """What a normalizer makes of a moment in all looks together.

    Args:
        found: the looks, at least one.
        moment: 0 for the first, which is signed; 1 for the second.
        normalizer: the normalizer.
    """
    parts = zip(*(look.normalized(moment, normalizer) for look in found), strict=True)
    x, weights, pull = (torch.cat(list(each)).numpy() for each in parts)
    return Samples.of(x, weights, np.minimum(pull, np.finfo(np.float32).max), signed=moment == 0)


def _of(given: Source, share: float, generator: torch.Generator) -> Iterator[Look]:
    steps = {-(-number * given.steps // LOOKS) for number in range(1, LOOKS + 1)}
    m, v = given.m.clone(), given.v.clone()
    numel = m.numel()
    for number, gradient in enumerate(given.gradients(), start=1):
        advance(m, v, gradient, given.betas)
        if number not in steps:
            continue
        t = given.taken + number
        root = (v.double() / (1 - given.betas[1] ** t)).sqrt_().add_(given.eps).reshape(-1)
        first = torch.where(root > 0, 1 / root, 0.0) / (1 - given.betas[0] ** t) ** 2
        second = first * m.reshape(-1).double().square()
        count = min(numel, max(1, math.ceil(share * numel)))
        chosen = torch.randperm(numel, generator=generator)[:count]
        both = m.clone(), v.clone()
        yield Look(both, (gradient, gradient.square()), (first, second), chosen)
