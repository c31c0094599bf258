"""Schedule-free AdamW, in 32 bits or with a quantized second moment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from qmaps.algebra.quantizer import values_of
from qmaps.engines.bfloat16 import SPLITS
from qmaps.engines.masters import MASTER
from qmaps.engines.sharding.shards import local
from qmaps.engines.step_scalars import AveragedRest, RootCorrection, StepScalar, Warmed
from qmaps.errors import BadValueError, shown
from qmaps.float32 import sqrt
from qmaps.optim import saved_states
from qmaps.optim.base import EightBit, FourBit, QuantizedOptimizer, Shared, State, States, Values
from qmaps.optim.rule import (
    ascent,
    bounded_,
    check_at_least_0,
    check_betas,
    check_bool,
    check_int,
    directed,
    number,
)

OFFSET = "z_offset"


class AdamWScheduleFree(QuantizedOptimizer):
    r"""AdamW without a learning-rate schedule; every state accepts any quantizer spec.

    It has three values of each parameter: z, which takes the steps; x, the average of all z so far,
    to evaluate; and y = (1 - beta1) * z + beta1 * x, where gradients are taken. In training the
    parameter holds y. `eval` makes it x, and `train` makes it y again:

        optimizer.eval()                      # before model.eval(), and before saving
        optimizer.train()                     # before model.train()

    An optimizer begins in training, and a step after `eval` raises an error. The one state
    besides the second moment is d = z - y, from which both values follow. With gradient g (negated
    to maximize) and step t, in float32 and in this order:

        w_t = min(1, t / warmup_steps)^weight_lr_power,  c = w_t / (w_1 + ... + w_t)
        v = beta2 * v + (1 - beta2) * (g * g)
        u = g / (sqrt(v) / sqrt(1 - beta2^t) + eps)
        u = u + weight_decay * p                      left out where weight_decay is 0
        u = u * lr * min(1, t / warmup_steps)
        e = (1 - c) * (d - beta1 * u)
        p = p + ((d - u) - e)                         the new y
        d = e                                         the new z - y

    States are `z_offset` (d), `exp_avg_sq` (v), and `step`. As z is a weight, presets and the
    classes of 8 and 4 bits keep d in 32 bits and quantize v; `state_quantizers` can name a
    quantizer for d, whose error is one of z. Switching to `eval` and back changes float32
    parameters by rounding, and parameters with ``master_weights=True`` not at all.

    Args:
        params: parameters, or groups of them.
        lr: learning rate, at least 0: a number or a tensor with one element. The weights w_t follow
            `warmup_steps`, and not a changing lr.
        betas: share of x in y, above 0 and below 1, and decay of the second moment, in [0, 1).
        eps: added to the denominator, at least 0.
        weight_decay: decoupled, at y; at least 0.
        warmup_steps: steps in which the learning rate grows linearly, an int of at least 0.
        weight_lr_power: power of the learning rate in the weights w_t: 0, 1 or 2.
        train_mode: whether parameters hold y; `train` and `eval` set it.
        **shared: options of all optimizers, such as `state_quantizers`; see `QuantizedOptimizer`.
            `master_weights` must be True or False.

    Raises:
        BadValueError, BadTypeError, SpecError: an argument is not allowed.

    Source: Defazio et al. (2024), "The road less scheduled", algorithm 1; arguments and defaults of
    `schedulefree.AdamWScheduleFree`, without its `r`.

    >>> import torch
    >>> layer = torch.nn.Linear(128, 64)
    >>> optimizer = AdamWScheduleFree(layer.parameters(), state_quantizers="8bit")
    >>> layer(torch.randn(4, 128)).square().mean().backward()
    >>> optimizer.step()
    >>> optimizer.state[layer.weight]["exp_avg_sq"]
    QuantizedTensor('B256/geometric@8u+qsr', shape=(64, 128), 8320 bytes)
    >>> optimizer.eval()
    """

    states: ClassVar[Mapping[str, State]] = {
        OFFSET: State(signed=True, exact=True),
        "exp_avg_sq": State(),
    }
    native_rule: ClassVar[str | None] = "adamw_schedule_free"
    torch_options: ClassVar[Mapping[str, object]] = {"r": 0.0}
    _changes_options: ClassVar[bool] = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 2.5e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        warmup_steps: int = 0,
        weight_lr_power: float = 2.0,
        train_mode: bool = True,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(params, locals(), **shared)

    def check_group(self, group: dict[str, Any]) -> None:
        check_at_least_0(group, "lr", "eps", "weight_decay")
        check_betas(group)
        if not number("betas[0]", group["betas"][0]) > 0:
            raise BadValueError(f"betas[0]={shown(group['betas'][0])} must be above 0")
        check_int("warmup_steps", group["warmup_steps"], 0)
        check_bool(group, "train_mode")
        if number("weight_lr_power", group["weight_lr_power"]) not in (0, 1, 2):
            value = shown(group["weight_lr_power"])
            raise BadValueError(f"weight_lr_power={value} must be 0, 1 or 2")
        if group["master_weights"] in SPLITS:
            raise BadValueError(
                f"master_weights={group['master_weights']!r} stores remainders, which eval() would "
                "lose; AdamWScheduleFree supports True and False"
            )

    def step_scalars(self, group: dict[str, Any]) -> dict[str, float | StepScalar]:
        if not group["train_mode"]:
            raise BadValueError(
                "the parameters hold averages since optimizer.eval(); call optimizer.train() "
                "before a step"
            )
        beta1, beta2 = map(float, group["betas"])
        warmup = float(group["warmup_steps"])
        return {
            "weight_decay": float(group["weight_decay"]),
            "beta1": beta1,
            "beta2": beta2,
            "step_size": Warmed(group["lr"], warmup),
            "rest": AveragedRest(warmup, float(group["weight_lr_power"])),
            "root_correction": RootCorrection(0.0, beta2),
            "eps": float(group["eps"]),
            "sign": ascent(group),
            "rest2": 1 - beta2,
        }

    def update(self, param: Tensor, grad: Tensor, states: States, scalars: Values) -> None:
        s = scalars
        d, v = states[OFFSET], states["exp_avg_sq"]
        grad = directed(grad, s)
        bounded_(v.mul_(s["beta2"]).add_((grad * grad) * s["rest2"]))
        # A tensor divisor: CUDA turns division by a Python number into a product.
        denominator = sqrt(v).div_(v.new_full((), s["root_correction"])).add_(s["eps"])
        step = grad / denominator
        if s["weight_decay"] != 0:
            step.add_(param * s["weight_decay"])
        step.mul_(s["step_size"])
        offset = (d - step * s["beta1"]).mul_(s["rest"])
        param.add_((d - step).sub_(offset))
        d.copy_(offset)

    def eval(self) -> None:
        """Make each parameter the average x of its past, to evaluate or to save the model."""
        self._switch(training=False)

    def train(self) -> None:
        """Make each parameter y again, where gradients are taken."""
        self._switch(training=True)

    @torch.no_grad()
    def _switch(self, *, training: bool) -> None:
        saved_states.take_in_all(self._parameters)
        for group in self.param_groups:
            if group["train_mode"] == training:
                continue
            group["train_mode"] = training
            share = 1 / float(group["betas"][0]) - 1
            for param in group["params"]:
                state = self.state.get(param, {})
                if OFFSET not in state:
                    continue
                d = values_of(state[OFFSET])
                master = state.get(MASTER)
                value = local(param)
                start = value.float() if master is None else master
                if master is None or not training:
                    start = start + d * (share if training else -share)
                value.copy_(start)


class AdamWScheduleFree8bit(EightBit, AdamWScheduleFree):
    """`AdamWScheduleFree` with an 8-bit second moment: the preset ``8bit``. See `FixedWidth`."""


class AdamWScheduleFree4bit(FourBit, AdamWScheduleFree):
    """`AdamWScheduleFree` with a 4-bit second moment: the preset ``4bit``. See `FixedWidth`."""
