"""Training in low precision on a convex quadratic, beside the bounds of theory."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor, nn

from benchmarks.lpmm.bound import Descent, Noise, four_bit_bound, lpmm_bound
from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.lpmm.convert import convert
from qmaps.lpmm.parameter import LowPrecisionParameter
from qmaps.lpmm.sgd import LPMMSGD
from qmaps.maps.base import table


class Quadratic(nn.Module):
    """f(w) = sum of curvature * (w - minimum)^2 / 2, with a stochastic gradient.

    Curvatures go evenly from 0.1 to 1, so that L is 1; the minimum is drawn from a normal
    distribution of deviation 1.

    Args:
        dimension: elements of w, which starts at 0.
        seed: of the minimum.
    """

    minimum: Tensor
    curvature: Tensor

    def __init__(self, dimension: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.zeros(dimension, dtype=torch.float32))
        minimum = torch.randn(dimension, generator=generator, dtype=torch.float32)
        self.register_buffer("minimum", minimum)
        self.register_buffer("curvature", torch.linspace(0.1, 1, dimension, dtype=torch.float32))

    def forward(self, noise: Tensor) -> Tensor:
        """f(w), and ``noise`` on top of its gradient."""
        away = self.weight - self.minimum
        return (self.curvature * away * away).sum() / 2 + (self.weight * noise).sum()

    def gap(self, w: Tensor) -> float:
        """f(w) - f*, in float64."""
        away = w.double() - self.minimum.double()
        return float((self.curvature.double() * away * away).sum() / 2)


@dataclass(frozen=True)
class Case:
    """Quantizers of a run on the quadratic.

    Attributes:
        params: quantizer of the parameters; None keeps them and the gradients as they are, and
            sets the measured runs beside the 4-bit paper's bound.
        grads: of the gradients, where `params` is not None.
        momentum: of the momentum.
        micro_batches: N.
    """

    params: str | None
    grads: str
    momentum: str
    micro_batches: int = 1

    @property
    def label(self) -> str:
        """Title of a panel."""
        if self.params is None:
            return f"momentum {self.momentum}"
        return f"{self.params}, N = {self.micro_batches}"


def rounding_variance(t: QuantizedTensor) -> float:
    """An upper bound of the variance, summed over elements, that stochastic rounding to `t` had.

    A value between two codes d apart has at most d^2 / 4 (LPMM, section 4.1); of the two
    neighbours of the code that was taken, the farther one counts.
    """
    book = table(t.quantizer.map).double()
    gaps = book.diff()
    edge = torch.zeros(1, dtype=torch.float64)
    widest = torch.maximum(torch.cat([edge, gaps]), torch.cat([gaps, edge]))
    place = torch.searchsorted(book, table(t.quantizer.map)[t.codes().long()].double())
    wide = t.quantizer.normalizer.denormalize(widest[place].float(), t.scales).double()
    return float(wide.square().sum() / 4)


def beside_bound(
    case: Case,
    *,
    steps: int = 300,
    seeds: int = 5,
    dimension: int = 64,
    momentum: float = 0.9,
    noise: float = 0.5,
) -> pd.DataFrame:
    """Runs of `LPMMSGD` on a quadratic, and the bound on them.

    The learning rate is half of the largest that the theorem states, the largest that its proof
    allows. The bound takes sigma of each quantizer as the largest upper bound met in any run.

    Args:
        case: the quantizers, all stochastic.
        steps: T, up to which.
        seeds: runs; the minimum is the same in all of them.
        dimension: elements of the parameter.
        momentum: beta.
        noise: sigma, the deviation of a micro-batch's gradient.

    Returns:
        One row per seed and T: `setting` (the case's label), `seed`, `step` (T), `gap`
        (f(mean of theta_0 ... theta_(T-1)) - f*), `bound`.

    Raises:
        BadValueError: the theorem or the optimizer does not allow an argument.
    """
    n = case.micro_batches
    lr = (1 - momentum) / 2 / (1 if case.params is None else n + 2)
    worst = [0.0, 0.0, 0.0]
    rows = []
    for seed in range(seeds):
        problem = Quadratic(dimension, seed=0)
        if case.params is not None:
            convert(problem, case.params, case.grads, seed=seed)
        optimizer = LPMMSGD(
            problem.parameters(),
            lr=lr,
            momentum=momentum,
            accumulation_steps=n,
            seed=seed,
            state_quantizers={"momentum_buffer": case.momentum},
        )
        generator = torch.Generator().manual_seed(seed + 1)
        total = torch.zeros(dimension, dtype=torch.float64)
        weight = problem.weight
        for step in range(1, steps + 1):
            total += _values(weight).double()
            for _ in range(n):
                # Its squared norm has the mean noise^2.
                drawn = torch.randn(dimension, generator=generator, dtype=torch.float32)
                drawn *= noise / dimension**0.5
                problem(drawn).backward()
                if isinstance(weight, LowPrecisionParameter) and weight.accumulator is not None:
                    worst[0] = max(worst[0], rounding_variance(weight.accumulator.total))
                optimizer.step()
            worst[1] = max(worst[1], rounding_variance(optimizer.state[weight]["momentum_buffer"]))
            if isinstance(weight, LowPrecisionParameter):
                worst[2] = max(worst[2], rounding_variance(weight.codes))
            gap = problem.gap(total / step)
            rows.append({"setting": case.label, "seed": seed, "step": step, "gap": gap})
    distance = float(problem.minimum.double().norm())
    run = Descent(lr, momentum, smoothness=1.0, distance=distance, micro_batches=n)
    frame = pd.DataFrame(rows)
    bound = four_bit_bound if case.params is None else lpmm_bound
    frame["bound"] = bound(frame["step"].to_numpy(), run, Noise(noise**2, *worst))
    return frame


def _values(weight: Tensor) -> Tensor:
    return weight.decode() if isinstance(weight, LowPrecisionParameter) else weight.detach()
