"""Muon, in 32 bits or with a quantized momentum."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from qmaps.engines.sharding import over_shards
from qmaps.engines.step import Context
from qmaps.engines.step_scalars import Decoupled, StepScalar
from qmaps.errors import BadValueError, shown
from qmaps.optim.base import EightBit, FourBit, QuantizedOptimizer, Shared, State, States, Values
from qmaps.optim.rule import (
    MatrixRule,
    ascent,
    check_at_least_0,
    check_bool,
    check_decay,
    check_int,
    check_pair,
    directed,
    number,
)

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Steep at 0, so that few steps are enough; singular values end near 1, not at it."""
STEPS = 5
MOST_STEPS = 99
EPS = 1e-7
LARGEST = torch.finfo(torch.bfloat16).max


def orthogonal(
    matrix: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float
) -> Tensor:
    """A matrix with the singular vectors of another one, and singular values near 1, in bfloat16.

    Each step is X = a X + (b A + c A A) X with A = X X^T, in bfloat16, on the side with fewer rows.

    Source: Jordan et al. (2024), "Muon: an optimizer for hidden layers in neural networks".
    """
    a, b, c = coefficients
    tall = matrix.shape[0] > matrix.shape[1]
    x: Tensor = matrix.bfloat16()
    x = x.T if tall else x
    x = x / x.norm().clamp(min=min(eps, LARGEST))
    for _ in range(steps):
        gram = x @ x.T
        x = x.addmm(gram.addmm(gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


ADJUSTMENTS = (None, "original", "match_rms_adamw")


class Muon(MatrixRule, QuantizedOptimizer):
    r"""Muon: an orthogonalized momentum; its state accepts any quantizer spec.

    With gradient g (negated to maximize), in float32 and in this order:

        m = momentum * m + (1 - momentum) * g
        u = (1 - momentum) * g + momentum * m    with nesterov, else m
        o = NS(u)                                Newton-Schulz iteration, in bfloat16
        p = p * (1 - lr * weight_decay)
        p = p - lr * a * o                       a = sqrt(max(1, rows / columns)), or 0.2 *
                                                 sqrt(max(rows, columns)) with "match_rms_adamw"

    Parameters must be matrices: hidden layers of a network. With three dimensions they are stacks
    of matrices along the first one, such as experts; each matrix is stepped by itself. Give
    embeddings, heads, norms and biases to another optimizer; `muon_groups` separates them:

        matrices, others = muon_groups(model, exclude=["embed*", "lm_head*"])
        optimizers = [Muon8bit(matrices, lr=0.02), AdamW8bit(others, lr=3e-4)]

    The state is named `momentum_buffer` (m), as in `torch.optim.Muon`, with its arguments and
    arithmetic; `step` counts the steps. Products of matrices are torch's: bits depend on torch
    and the device. Of sharded parameters each matrix is sent to one process, and its update
    back; the momentum stays sharded.

    Args:
        params: matrices or stacks of them, or groups of these.
        lr: learning rate, at least 0: a number or a tensor with one element.
        weight_decay: decoupled, at least 0.
        momentum: decay of the momentum, in [0, 1).
        nesterov: whether the update looks one step ahead.
        ns_coefficients: the three coefficients of the iteration.
        eps: smallest divisor of the update, at least 0.
        ns_steps: number of iterations, from 1 to 99.
        adjust_lr_fn: how the learning rate follows the shape: "original" or None as in Jordan's
            Muon, "match_rms_adamw" for updates as large as AdamW's.
        **shared: options of all optimizers, such as `state_quantizers`; see `QuantizedOptimizer`.

    Raises:
        BadValueError, BadTypeError, SpecError: an argument is not allowed, or a parameter is no
            matrix and no stack of matrices.

    Source: Jordan et al. (2024), "Muon: an optimizer for hidden layers in neural networks";
    "match_rms_adamw": Liu et al. (2025), "Muon is scalable for LLM training", section 2.2.

    >>> import torch
    >>> layer = torch.nn.Linear(128, 64, bias=False)
    >>> optimizer = Muon(layer.parameters(), state_quantizers="4bit")
    >>> layer(torch.randn(4, 128)).square().mean().backward()
    >>> optimizer.step()
    >>> optimizer.state[layer.weight]["momentum_buffer"]
    QuantizedTensor('B64xbf16/mu-law10:linear0@4s+qsr', shape=(64, 128), 4352 bytes)
    """

    states: ClassVar[Mapping[str, State]] = {"momentum_buffer": State(signed=True)}
    stacks: ClassVar[bool] = True
    torch_options: ClassVar[Mapping[str, object]] = {"use_gram_newton_schulz": False}

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = COEFFICIENTS,
        eps: float = EPS,
        ns_steps: int = STEPS,
        adjust_lr_fn: str | None = None,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(params, locals(), **shared)

    def check_group(self, group: dict[str, Any]) -> None:
        check_at_least_0(group, "lr", "weight_decay", "eps")
        check_decay("momentum", group["momentum"])
        check_bool(group, "nesterov")
        check_int("ns_steps", group["ns_steps"], 1)
        if group["ns_steps"] > MOST_STEPS:
            raise BadValueError(f"ns_steps={group['ns_steps']} must be at most {MOST_STEPS}")
        check_pair("ns_coefficients", group["ns_coefficients"], "three numbers", 3)
        for index, value in enumerate(group["ns_coefficients"]):
            if not abs(number(f"ns_coefficients[{index}]", value)) <= LARGEST:
                raise BadValueError(
                    f"ns_coefficients[{index}]={shown(value)} must be a number of bfloat16"
                )
        adjust = group["adjust_lr_fn"]
        if not (adjust is None or (isinstance(adjust, str) and adjust in ADJUSTMENTS)):
            raise BadValueError(
                f"adjust_lr_fn={shown(adjust)} is unknown; allowed are "
                f"{', '.join(map(repr, ADJUSTMENTS))}"
            )

    @classmethod
    def unsupported_reason(cls, param: Tensor) -> str:
        """Reason why the rule cannot step a parameter; empty if it can."""
        if param.ndim in (2, 3):
            return ""
        return (
            f"has shape {tuple(param.shape)}, and Muon steps matrices only, or stacks of them in "
            "three dimensions; give it to AdamW (qmaps.optim.muon_groups separates them)"
        )

    def step_scalars(self, group: dict[str, Any]) -> dict[str, float | StepScalar]:
        lr, momentum = group["lr"], float(group["momentum"])
        return {
            "decay": Decoupled(lr, float(group["weight_decay"])),
            "momentum": momentum,
            "rest": 1 - momentum,
            "step_size": StepScalar(lr),
            "sign": ascent(group),
        }

    def prepare(self, context: Context, grad: Tensor, states: States, scalars: Values) -> Tensor:
        s, m = scalars, states["momentum_buffer"]
        grad = directed(grad, s)
        m.mul_(s["momentum"]).add_(grad * s["rest"])
        nesterov = context.group["nesterov"]
        return (grad * s["rest"] + m * s["momentum"] if nesterov else m).bfloat16()

    def transform(self, context: Context, x: Tensor, states: States, scalars: Values) -> Tensor:
        group = context.group
        a, b, c = map(float, group["ns_coefficients"])
        return orthogonal(x, (a, b, c), group["ns_steps"], float(group["eps"]))

    def finish(self, context: Context, param: Tensor, update: Tensor, scalars: Values) -> None:
        rows, columns = (over_shards.size(param.shape[dim], dim) for dim in (-2, -1))
        ratio = math.sqrt(max(1.0, rows / max(columns, 1)))
        if context.group["adjust_lr_fn"] == "match_rms_adamw":
            ratio = 0.2 * math.sqrt(max(rows, columns))
        param.mul_(scalars["decay"])
        param.sub_(update.float() * (scalars["step_size"] * ratio))


class Muon8bit(EightBit, Muon):
    """`Muon` with an 8-bit momentum: the preset ``8bit``. See `FixedWidth`."""


class Muon4bit(FourBit, Muon):
    """`Muon` with a 4-bit momentum: the preset ``4bit``. See `FixedWidth`.

    Rounded to nearest, ``Muon(params, state_quantizers={"momentum_buffer": "B128/DE@4s"})`` ended
    lower on the model that was tried, and `Muon8bit` where 32 bits did (reports/muon.md).
    """
