"""Data of a parameter's replay: initial moments, gradients, and Adam's options."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import Any

import torch
from torch import Tensor

from qmaps.capture import CapturedStates
from qmaps.capture.gradients import rows_of
from qmaps.engines.step import RESET
from qmaps.errors import CaptureError


def mean_and_variance(
    m: Tensor, v: Tensor, betas: tuple[float, float], taken: int
) -> tuple[Tensor, Tensor]:
    """Mean and variance of each element's gradients, as Adam's moments tell them.

    Without bias, m is an estimate of the mean whose own variance is the share
    k = (1 - beta1) (1 + beta1^t) / ((1 + beta1) (1 - beta1^t)) of the gradients' variance, and v
    one of mean^2 + variance. So the sums over the tensor of the squared means, S, and of the
    variances, N, follow from sum(v) = S + N and sum(m^2) = S + k N. The means are m, reduced by the
    factor that makes the sum of their squares S; the variances are what v leaves. Both are float64.
    """
    beta1, beta2 = betas
    m = m.double() / (1 - beta1**taken)
    v = v.double() / (1 - beta2**taken)
    k = (1 - beta1) * (1 + beta1**taken) / ((1 + beta1) * (1 - beta1**taken))
    total, squares = float(v.sum()), float(m.square().sum())
    noise = (total - squares) / (1 - k) if k < 1 else 0.0
    signal = min(max(total - noise, 0.0), squares)
    mean = m * (signal / squares) ** 0.5 if squares else m
    return mean, (v - mean.square()).clamp_(min=0)


def simulated(
    m: Tensor, v: Tensor, betas: tuple[float, float], taken: int, steps: int, seed: tuple[int, int]
) -> Iterator[Tensor]:
    """Draw normal, independent gradients, float32; equal seeds give equal ones.

    Real gradients have heavier tails and depend on the updates, so this is a substitute for
    recorded ones.
    """
    mean, variance = mean_and_variance(m, v, betas, taken)
    location, scale = mean.float(), variance.sqrt().float()
    generator = torch.Generator().manual_seed((seed[0] * 1_000_003 + seed[1]) % 2**63)
    for _ in range(steps):
        drawn = torch.randn(m.shape, generator=generator, dtype=torch.float32)
        yield drawn.mul_(scale).add_(location)


RECORDED, SIMULATED = "recorded", "simulated"
DEFAULT = 100
"""Number of gradients that are simulated."""
MANY = 10**6
"""Steps taken where the states do not say it: bias corrections are over by then."""


@dataclass(frozen=True)
class Source:
    """A parameter to replay, perhaps some rows of it.

    Attributes:
        parameter, shape: its name and whole shape.
        number: its position among the parameters, for random numbers.
        m, v: the moments of the chosen rows at the start, float32.
        betas, eps: Adam's options.
        taken: number of steps taken before the first replayed gradient.
        kind: ``recorded`` or ``simulated``.
        steps: number of gradients, of all rounds together.
        gradients: makes an iterator over the gradients of the chosen rows, float32 like `m`,
            negated if the optimizer maximizes.
    """

    parameter: str
    number: int
    shape: tuple[int, ...]
    m: Tensor
    v: Tensor
    betas: tuple[float, float]
    eps: float
    taken: int
    kind: str
    steps: int
    gradients: Callable[[], Iterator[Tensor]]


def source(
    states: CapturedStates,
    parameter: str,
    number: int,
    *,
    steps: int | None,
    share: float,
    seed: int,
    rounds: int = 1,
) -> Source | None:
    """Prepare a parameter's replay; the arguments are those of `qmaps.replay.run`.

    Steps count from the last reset of the moments on, and gradients from the next one on are left
    out (`reset_every`).

    Returns:
        The source; None if gradients were recorded, but fewer than 2 of this parameter.

    Raises:
        CaptureError: the moments or the options are not those of Adam or AdamW, or gradients were
            recorded without coupled weight decay.
    """
    m, v = states.moments(parameter)
    shape = tuple(m.shape)
    options = states.hyperparameters(parameter)
    betas = betas_of(states, parameter)
    counts = states.scalars(parameter)  # steps are counted from the last reset
    taken = int(counts.get("step", states.step)) - int(counts.get(RESET, 0)) or MANY
    recorded = bool(states.window())
    available = len(states.window(parameter)) if recorded else steps or DEFAULT
    if recorded and (every := options.get("reset_every")):
        before = max(0, int(every) - taken)
        if before < 2:
            raise CaptureError(
                f"parameter {parameter!r} in {states.source!r} was reset (reset_every={every}) "
                f"after {before} of the recorded gradients; a replay needs at least 2"
            )
        available = min(available, before)
    count = available if steps is None else min(steps, available)
    rows = states.rows(parameter) if recorded else None
    held = _held(shape, rows)
    chosen = rows_of(held, round(share * math.prod(shape))) if share < 1 else None
    final = rows if chosen is None else chosen if rows is None else rows[chosen]
    if final is not None:
        m, v = m.index_select(0, final), v.index_select(0, final)
    m, v = m.contiguous(), v.contiguous()

    def once() -> Iterator[Tensor]:
        if not recorded:
            yield from simulated(m, v, betas, taken, count, (seed, number))
            return
        sign = -1.0 if options.get("maximize") else 1.0
        for _, gradient in islice(states.gradients(parameter), count):
            part = gradient if chosen is None else gradient.index_select(0, chosen)
            yield part.contiguous() * sign

    def gradients() -> Iterator[Tensor]:  # those of several rounds are kept in memory
        return once() if rounds == 1 else chain.from_iterable(repeat(list(once()), rounds))

    if recorded:
        _refuse_decay(options, parameter, states)
        if count < 2:
            return None
    return Source(
        parameter,
        number,
        shape,
        m,
        v,
        betas,
        states.eps(parameter),
        taken,
        RECORDED if recorded else SIMULATED,
        rounds * count,
        gradients,
    )


def share_of(states: CapturedStates, parameters: Sequence[str], elements: int) -> float:
    """The share of a number of elements in the elements with gradients, at most 1."""
    held = (_held(states.shape(name, "exp_avg"), states.rows(name)) for name in parameters)
    return min(1.0, elements / sum(map(math.prod, held)))


def _held(shape: tuple[int, ...], rows: Tensor | None) -> tuple[int, ...]:
    """The shape of the rows with recorded gradients; `rows` is None for all."""
    return shape if rows is None else (len(rows), *shape[1:])


def betas_of(states: CapturedStates, parameter: str) -> tuple[float, float]:
    """Return Adam's betas of a parameter; torch's defaults where unknown.

    Raises:
        CaptureError: they are not two numbers in [0, 1), or the optimizer used amsgrad.
    """
    options = states.hyperparameters(parameter)
    named = tuple(options[name] for name in ("beta1", "beta2") if name in options)
    betas = options.get("betas", named if len(named) == 2 else (0.9, 0.999))
    fits = isinstance(betas, (list, tuple)) and len(betas) == 2
    if not fits or not all(isinstance(b, (int, float)) and 0 <= b < 1 for b in betas):
        raise CaptureError(
            f"parameter {parameter!r} in {states.source!r} has betas={betas!r}; Adam's are two "
            "numbers in [0, 1)"
        )
    if options.get("amsgrad"):
        raise CaptureError(
            f"parameter {parameter!r} in {states.source!r} was trained with amsgrad=True; only "
            "Adam and AdamW without it can be replayed"
        )
    return float(betas[0]), float(betas[1])


def _refuse_decay(options: dict[str, Any], parameter: str, states: CapturedStates) -> None:
    """Raise if weight decay enters the moments, which recorded gradients lack."""
    decay = options.get("weight_decay")
    coupled = states.optimizer.startswith("Adam") and not states.optimizer.startswith("AdamW")
    if decay and coupled and not options.get("decoupled_weight_decay"):
        raise CaptureError(
            f"parameter {parameter!r} in {states.source!r} was trained by {states.optimizer} with "
            f"coupled weight_decay={decay!r}, which recorded gradients lack; record a run of AdamW"
        )
