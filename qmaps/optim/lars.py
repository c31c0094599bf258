"""LARS, in 32 bits or with a quantized momentum buffer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Unpack

from torch import Tensor

from qmaps.engines.step_scalars import StepScalar
from qmaps.errors import BadValueError
from qmaps.optim.base import EightBit, FourBit, QuantizedOptimizer, Shared, State, States, Values
from qmaps.optim.norms import check_bound, clipped, norm, trust
from qmaps.optim.rule import ascent, check_above_0, check_at_least_0, check_bool, coupled, directed


class LARS(QuantizedOptimizer):
    r"""LARS: SGD with trust ratios; the momentum buffer accepts any quantizer spec.

    With gradient g (negated to maximize), in float32 and in this order:

        u = g + weight_decay * p         left out where weight_decay is 0
        u = trust * u                    left out where max_unorm is given
        b = momentum * b + u
        u = u + momentum * b             with nesterov; otherwise u = b
        u = trust * u                    where max_unorm is given
        p = p - lr * u

    The lines with b are left out where momentum is 0; the buffer then takes no memory. The trust
    ratio is that of the norms of the whole parameter and its gradient or update, in float64 and
    then rounded to float32:

        trust = trust_coefficient * norm(p) / (norm(g) + weight_decay * norm(p))
        trust = min(max_unorm * norm(p) / norm(u), 1)    instead, where max_unorm is given
        trust = 1                                        where one of the norms is 0, or where the
                                                         ratio overflows

    Norms are added up in an order that depends on the parameter's size alone
    (`qmaps.optim.norms.square_sum`). They are the norms of the optimizer's tensor: of a
    parameter in bfloat16 its rounded values count, and of a shard its own elements.

    The update uses the new buffer before it is encoded. The state is `momentum_buffer` (b), as for
    SGD; `step` counts the steps. The learning rate stays outside the buffer, as in torch; in the
    paper it is inside, which is the same while it does not change.

    Args:
        params: parameters, or groups of them.
        lr: learning rate, at least 0: a number or a tensor with one element. It is
            multiplied by the trust ratio, so that good values are far larger than SGD's.
        momentum: decay of the buffer, at least 0; with 0 there is no buffer.
        weight_decay: coupled: ``weight_decay * p`` is added to the gradient; at least 0.
        trust_coefficient: norm of an update as a fraction of the parameter's norm, before `lr` and
            momentum; above 0. It has no effect where `max_unorm` is given.
        nesterov: use Nesterov momentum; it needs `momentum` above 0.
        max_unorm: shorten updates whose norm is above `max_unorm` times the parameter's norm, and
            never lengthen one, as bitsandbytes' LARS does with 0.02; 0 and None set no bound.
        **shared: options of all optimizers, such as `state_quantizers`; see `QuantizedOptimizer`.

    Raises:
        BadValueError, BadTypeError, SpecError: an argument is not allowed.

    Source: You, Gitman and Ginsburg (2017), "Large batch training of convolutional networks",
    algorithm 1; momentum, weight decay and trust coefficient of the authors' TensorFlow code,
    which has no default for lr; quantized states after 8-bit optimizers, section 2.

    >>> import torch
    >>> layer = torch.nn.Linear(128, 64)
    >>> optimizer = LARS(layer.parameters(), state_quantizers="4bit")
    >>> layer(torch.randn(4, 128)).square().mean().backward()
    >>> optimizer.step()
    >>> optimizer.state[layer.weight]["momentum_buffer"]
    QuantizedTensor('B64xbf16/mu-law10:linear0@4s+qsr', shape=(64, 128), 4352 bytes)
    """

    states: ClassVar[Mapping[str, State]] = {"momentum_buffer": State(signed=True)}
    native_rule: ClassVar[str | None] = "lars"
    takes_norms: ClassVar[bool] = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1.0,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        trust_coefficient: float = 1e-3,
        nesterov: bool = False,
        max_unorm: float | None = None,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(params, locals(), **shared)

    def check_group(self, group: dict[str, Any]) -> None:
        check_at_least_0(group, "lr", "momentum", "weight_decay")
        check_above_0(group, "trust_coefficient")
        check_bool(group, "nesterov")
        if group["nesterov"] and group["momentum"] == 0:
            raise BadValueError("nesterov=True needs momentum above 0, got 0")
        check_bound(group, "max_unorm", or_0=True)

    def state_shapes(self, param: Tensor, group: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        """The buffer, or nothing where there is no momentum."""
        return super().state_shapes(param, group) if group["momentum"] != 0 else {}

    def step_scalars(self, group: dict[str, Any]) -> dict[str, float | StepScalar]:
        """Step scalars of a group, in float64; 0 for a missing bound."""
        momentum = float(group["momentum"])
        return {
            "weight_decay": float(group["weight_decay"]),
            "momentum": momentum,
            "lookahead": momentum if group["nesterov"] else 0.0,
            "trust_coefficient": float(group["trust_coefficient"]),
            "max_unorm": float(group["max_unorm"] or 0),
            "step_size": StepScalar(group["lr"]),
            "sign": ascent(group),
        }

    def update(self, param: Tensor, grad: Tensor, states: States, scalars: Values) -> None:
        s = scalars
        u = coupled(param, grad, s)
        if s["max_unorm"] == 0:
            param_norm, grad_norm = norm(param), norm(directed(grad, s))
            over = grad_norm + s["weight_decay"] * param_norm
            u = u * trust(s["trust_coefficient"] * param_norm / over, param_norm, grad_norm)
        if "momentum_buffer" in states:
            b = states["momentum_buffer"].mul_(s["momentum"]).add_(u)
            u = u + b * s["lookahead"] if s["lookahead"] != 0 else b
        if s["max_unorm"] != 0:
            u = u * clipped(norm(u), norm(param), s["max_unorm"])
        param.sub_(u * s["step_size"])


class LARS8bit(EightBit, LARS):
    """`LARS` with an 8-bit momentum buffer: the preset ``8bit``. See `FixedWidth`."""


class LARS4bit(FourBit, LARS):
    """`LARS` with a 4-bit momentum buffer: the preset ``4bit``. See `FixedWidth`."""
