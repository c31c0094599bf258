"""Prodigy, in 32 bits or with quantized moments."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from qmaps.algebra.quantizer import values_of
from qmaps.engines.masters import exact
from qmaps.engines.sharding.shards import is_distributed, is_flat
from qmaps.engines.step import Context
from qmaps.engines.step_scalars import StepScalar, power
from qmaps.errors import BadValueError, shown
from qmaps.float32 import sqrt
from qmaps.optim import saved_states
from qmaps.optim.base import EightBit, FourBit, QuantizedOptimizer, Shared, State, States, Values
from qmaps.optim.records import Place, places
from qmaps.optim.reductions import tree_sum
from qmaps.optim.rule import (
    ascent,
    bounded_,
    check_above_0,
    check_at_least_0,
    check_betas,
    check_bool,
    check_decay,
    check_int,
    coupled,
    loss_of,
)


class Prodigy(QuantizedOptimizer):
    r"""Prodigy: Adam that estimates its own step size; every state accepts any quantizer spec.

    The estimate d grows with the distance from the initial parameters p0, over all parameters. With
    gradient g (negated to maximize) and step t, in this order:

        a = d * lr * b                                b = sqrt(1 - beta2^t) / (1 - beta1^t) with
                                                      use_bias_correction, else 1
        g = g + weight_decay * p                      unless decouple
        r = beta3 * r + (d / d0) * a * <g, p0 - p>    a sum over all parameters
        s = beta3 * s + (d / d0) * a * g              d in place of a with safeguard_warmup
        m = beta1 * m + d * (1 - beta1) * g
        v = beta2 * v + d^2 * (1 - beta2) * (g * g)
        e = d_coef * r / sum \|s\|                     a sum over all parameters
        d = max(d, e) while d is d0; then min(the largest e or d so far, d * growth_rate)
        p = p * (1 - a * weight_decay)                with decouple
        p = p - a * (m / (sqrt(v) + d * eps))         the new d

    Sums are float64. States are `exp_avg` (m), `exp_avg_sq` (v), `s`, `p0` and `step`. The numbers
    `d`, `d_max`, `d_numerator` (r) and the step `k` are options of the groups, as in the authors'
    class. p0 is a weight, and s changes by thousandths: presets and the classes of 8 and 4 bits
    keep both in 32 bits, of every `slice_p`-th element. The sums need all gradients before a step:
    it runs on the reference, and is refused by `release_gradients` and for sharded parameters.

    Args:
        params: parameters, or groups of them; groups have one `lr`, or 0, which freezes a group.
        lr: factor of the estimated step size, at least 0: usually 1, or a schedule from 1 to 0.
        betas: decay of the two moments, each in [0, 1).
        beta3: decay of r and s, in [0, 1); the square root of betas[1] if left out.
        eps: added to the denominator, above 0.
        weight_decay: at least 0.
        decouple: whether parameters decay as in AdamW, instead of through the gradient.
        use_bias_correction: whether to correct the moments' bias, as in Adam.
        safeguard_warmup: whether to leave lr out of s, for a learning rate that warms up.
        d0: the first estimate, above 0.
        d_coef: factor of the estimate, above 0.
        growth_rate: largest growth of the estimate in a step, above 0.
        slice_p: s and p0 keep every `slice_p`-th element; an int of at least 1. 11 saves most of
            their memory, and estimates d from fewer elements.
        **shared: options of all optimizers, such as `state_quantizers`; see `QuantizedOptimizer`.
            `reset_every` must be None; later, in a group or a checkpoint, it has no effect.

    Raises:
        BadValueError, BadTypeError, SpecError: an argument is not allowed.

    Source: Mishchenko and Defazio (2024), "Prodigy: an expeditiously adaptive parameter-free
    learner", algorithm 4; arguments and defaults of `prodigyopt.Prodigy`, which steps by the new d
    where betas[0] is 0.

    >>> import torch
    >>> layer = torch.nn.Linear(128, 64)
    >>> optimizer = Prodigy(layer.parameters(), slice_p=11, state_quantizers="8bit")
    >>> layer(torch.randn(4, 128)).square().mean().backward()
    >>> optimizer.step()
    >>> state = optimizer.state[layer.weight]
    >>> state["exp_avg"], state["p0"].shape
    (QuantizedTensor('B256/DE-sym@8s', shape=(64, 128), 8320 bytes), torch.Size([745]))
    """

    states: ClassVar[Mapping[str, State]] = {
        "exp_avg": State(signed=True),
        "exp_avg_sq": State(),
        "s": State(signed=True, exact=True, dims=None),
        "p0": State(signed=True, exact=True, dims=None),
    }
    takes_all_gradients: ClassVar[bool] = True
    _changes_options: ClassVar[bool] = True
    _resets: ClassVar[bool] = False
    torch_options: ClassVar[Mapping[str, object]] = {"fsdp_in_use": False}

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1.0,
        betas: tuple[float, float] = (0.9, 0.999),
        beta3: float | None = None,
        eps: float = 1e-8,
        weight_decay: float = 0,
        decouple: bool = True,
        use_bias_correction: bool = False,
        safeguard_warmup: bool = False,
        d0: float = 1e-6,
        d_coef: float = 1.0,
        growth_rate: float = math.inf,
        slice_p: int = 1,
        **shared: Unpack[Shared],
    ) -> None:
        numbers = {"d": d0, "d_max": d0, "d_step": d0, "d_numerator": 0.0, "k": 0}
        super().__init__(params, {**locals(), **numbers}, **shared)

    def check_group(self, group: dict[str, Any]) -> None:
        check_at_least_0(group, "lr", "weight_decay")
        check_above_0(group, "eps", "d0", "d_coef", "growth_rate")
        check_betas(group)
        if group["beta3"] is not None:
            check_decay("beta3", group["beta3"])
        check_bool(group, "decouple", "use_bias_correction", "safeguard_warmup")
        check_int("slice_p", group["slice_p"], 1)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group; options left out take the optimizer's defaults."""
        options = param_group if isinstance(param_group, dict) else {}
        if (steps := options.get("reset_every", self.defaults["reset_every"])) is not None:
            raise BadValueError(
                f"reset_every={shown(steps)} must be None: Prodigy's estimate of all steps cannot "
                "begin anew"
            )
        super().add_param_group(param_group)

    @classmethod
    def unsupported_reason(cls, param: Tensor) -> str:
        """Reason why the rule cannot step a parameter; empty if it can."""
        if not (is_distributed(param) or is_flat(param)):
            return ""
        return "is sharded, and Prodigy's sums need whole parameters"

    def state_shapes(self, param: Tensor, group: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        part = (-(-param.numel() // group["slice_p"]),)
        whole = tuple(param.shape)
        return {"exp_avg": whole, "exp_avg_sq": whole, "s": part, "p0": part}

    def step_scalars(self, group: dict[str, Any]) -> dict[str, float | StepScalar]:
        (beta1, beta2), beta3 = map(float, group["betas"]), _beta3(group)
        d, decay, decoupled = group["d_step"], float(group["weight_decay"]), group["decouple"]
        frozen = float(group["lr"]) == 0
        size = 0.0 if frozen else self._size(d)
        weight = d / float(group["d0"]) * (d if group["safeguard_warmup"] else size)
        return {
            "decay": 1 - size * decay if decoupled else 1.0,
            "weight_decay": 0.0 if decoupled else decay,
            "beta1": 1.0 if frozen else beta1,
            "beta2": 1.0 if frozen else beta2,
            "beta3": 1.0 if frozen else beta3,
            "rest1": 0.0 if frozen else d * (1 - beta1),
            "rest2": 0.0 if frozen else d * d * (1 - beta2),
            "rest3": 0.0 if frozen else weight,
            "step_size": size,
            "eps": group["d"] * float(group["eps"]),
            "sign": ascent(group),
        }

    def advance(
        self, context: Context, param: Tensor, grad: Tensor, states: States, scalars: Values
    ) -> None:
        s, m, v = scalars, states["exp_avg"], states["exp_avg_sq"]
        if context.step == 1:
            states["p0"].copy_(_sliced(param, context.group))
        grad = coupled(param, grad, s)
        m.mul_(s["beta1"]).add_(grad * s["rest1"])
        bounded_(v.mul_(s["beta2"]).add_((grad * grad) * s["rest2"]))
        states["s"].copy_(_summed(states["s"], _sliced(grad, context.group), s))
        param.mul_(s["decay"])
        param.sub_((m / sqrt(v).add_(s["eps"])).mul_(s["step_size"]))

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step, with an estimate of the step size from all gradients.

        Args:
            closure: evaluates the model anew and returns the loss.

        Raises:
            BadValueError: groups have different learning rates above 0.
            NonFiniteError: a gradient holds NaN or infinity and `nonfinite` is "raise".
        """
        loss = loss_of(closure)
        if (numbers := self._estimate()) is None:
            self._make_states()
            return loss
        before = [{name: group[name] for name in numbers} for group in self.param_groups]
        skipped, stepped = self.skipped_steps, False
        for group in self.param_groups:
            group.update(numbers)
        try:
            super().step()
            stepped = self.skipped_steps == skipped
        finally:
            for group, old in zip(self.param_groups, before, strict=True):
                group.update({"k": group["k"] + 1} if stepped else old)
        return loss

    def _make_states(self) -> None:
        """Make missing states of parameters with gradients, in a step that changes nothing.

        `torch.distributed.checkpoint` loads what an optimizer has after a step with zero gradients
        and lr=0. The step is not counted: p0 is copied in the first step that is.
        """
        new: list[Place] = []
        for place in places(self.param_groups):
            param = self.param_groups[place.group]["params"][place.position]
            if param.grad is not None and param not in self.state:
                new.append(place)
        params = [self.param_groups[at.group]["params"][at.position] for at in new]
        gradients = [param.grad for param in params]
        sizes = [group["d_step"] for group in self.param_groups]
        try:
            for param, gradient in zip(params, gradients, strict=True):
                param.grad = torch.zeros_like(gradient)
            for group in self.param_groups:
                group["d_step"] = 0.0
            self._stepper.step(self._parameters, only=new)
        finally:
            for param, gradient in zip(params, gradients, strict=True):
                param.grad = gradient
            for group, size in zip(self.param_groups, sizes, strict=True):
                group["d_step"] = size
        for param in params:
            self.state[param]["step"].zero_()

    def _estimate(self) -> dict[str, float] | None:
        """The numbers of the next step; None without gradients so far."""
        first = self.param_groups[0]
        d = first["d"]
        saved_states.take_in_all(self._parameters)
        products: list[Tensor] = []
        sizes: list[Tensor] = []
        for group in self.param_groups:
            if float(group["lr"]) == 0:
                continue
            scalars = {**self.scalars({**group, "d_step": d}, 1)}
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state.get(param, {})
                value = exact(param.detach(), state)
                grad = _sliced(coupled(value, param.grad.float(), scalars), group)
                value = _sliced(value, group)
                begun = bool(state) and int(state["step"]) > 0
                old = values_of(state["s"]) if begun else torch.zeros_like(value)
                distance = (values_of(state["p0"]) if begun else value) - value
                products.append(tree_sum(grad.double() * distance.double(), 0).cpu())
                sizes.append(tree_sum(_summed(old, grad, scalars).abs().double(), 0).cpu())
        size = float(sum(sizes, torch.zeros(1, dtype=torch.float64)))
        if size == 0:
            return None
        weight = d / float(first["d0"]) * self._size(d)
        numerator = first["d_numerator"] * _beta3(first) + weight * float(sum(products))
        if not (math.isfinite(size) and math.isfinite(numerator)):
            return {"d_step": d}  # the policy of non-finite gradients decides on the step
        estimate = float(first["d_coef"]) * numerator / size
        highest = max(first["d_max"], estimate)
        start = max(d, estimate) if d == float(first["d0"]) else d
        new = min(highest, start * float(first["growth_rate"]))
        return {"d": new, "d_max": highest, "d_step": d, "d_numerator": numerator}

    def _size(self, d: float) -> float:
        """The step size of an estimate: that times the learning rate."""
        first = self.param_groups[0]
        rates = {float(group["lr"]) for group in self.param_groups} - {0.0}
        if len(rates) > 1:
            raise BadValueError(
                f"lr={shown(sorted(rates))} must be one number in all groups, or 0 in some of them"
            )
        size = d * max(rates, default=0.0)
        if first["use_bias_correction"]:
            beta1, beta2 = map(float, first["betas"])
            step = first["k"] + 1
            size *= math.sqrt(1 - power(beta2, step)) / (1 - power(beta1, step))
        return size


def _beta3(group: Mapping[str, Any]) -> float:
    return math.sqrt(float(group["betas"][1])) if group["beta3"] is None else float(group["beta3"])


def _sliced(x: Tensor, group: Mapping[str, Any]) -> Tensor:
    """The elements of a parameter's tensor that estimate its distance."""
    return x.reshape(-1)[:: group["slice_p"]]


def _summed(s: Tensor, grad: Tensor, scalars: Values) -> Tensor:
    """The new s."""
    return s * scalars["beta3"] + grad * scalars["rest3"]


class Prodigy8bit(EightBit, Prodigy):
    """`Prodigy` with 8-bit moments: the preset ``8bit``. See `FixedWidth`."""


class Prodigy4bit(FourBit, Prodigy):
    """`Prodigy` with 4-bit moments: the preset ``4bit``. See `FixedWidth`."""
