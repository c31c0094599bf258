"""Adafactor, with APOLLO, Fira's limiter and CAME's confidence as options."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Unpack

from torch import Tensor

from qmaps.engines.step import Context
from qmaps.engines.step_scalars import (
    Corrected,
    Power,
    PowerRest,
    RelativeStep,
    StepScalar,
    Unbiased,
    UnbiasedRest,
)
from qmaps.errors import BadTypeError, BadValueError, shown
from qmaps.optim import factored
from qmaps.optim.apollo import SCALE_TYPES, Projection
from qmaps.optim.base import FixedWidth, QuantizedOptimizer, Shared, State, States, Values
from qmaps.optim.factored import clipped, confident, decayed, limited, scaled
from qmaps.optim.norms import check_bound
from qmaps.optim.rule import (
    ascent,
    check_above_0,
    check_at_least_0,
    check_bool,
    check_decay,
    check_finite,
    check_int,
    check_one_of,
    check_pair,
    directed,
    number,
)

SMALLEST_SQUARE = 1e-30
"""The paper's eps1."""

MARGIN = 0.01
"""Fira's, as APOLLO takes it."""


class Adafactor(QuantizedOptimizer):
    r"""Adafactor with the paper's step sizes or fixed ones, and a factored or full second moment.

    With gradient g (negated to maximize) and step t, in float32 and in this order:

        rho = min(lr, 1 / sqrt(t))                 lr itself without relative_step
        alpha = max(rms(p), eps[1]) * rho          rho itself without scale_parameter
        p = p * (1 - alpha * weight_decay)         rho for alpha without scale_weight_decay;
                                                   left out where weight_decay is 0
        q = g * g + eps[0]
        R = kept * R + rest * mean(q over each row)
        C = kept * C + rest * mean(q over each column)
        u = g / (sqrt(R / mean(R)) * sqrt(C))      0 where the denominator is 0
        u = u / max(rms(u) / d, 1)
        u = u * limit / norm(u)                    where the limiter is on and norm(u) > limit,
                                                   limit = (1 + fira_margin) * the last norm
        m = beta1 * m + (1 - beta1) * u, and u = m      with beta1
        u = m / root of the mean of (u - m)^2      with beta3; see below
        p = p - alpha * u

    Tensors of one dimension or none, and all without `factored`, have v = kept * v + rest * q and
    u = g / sqrt(v) instead. Of more than two dimensions the last two count as rows and columns.
    ``rest = t^beta2_decay`` and ``kept = 1 - rest``; with `beta2`, ``rest = (1 - beta2) /
    (1 - beta2^t)``, the paper's correction of bias. Means and rms are float64 sums in the order of
    `qmaps.optim.reductions`, rounded to float32.

    The defaults are the paper's algorithm 6, and those of `transformers` (decay_rate is
    `beta2_decay`, clip_threshold is `d`); there m averages alpha * u, the same as long as alpha
    is constant. Names of options and states are those of torch; its checkpoints load.
    ``torch.optim.Adafactor`` takes the same step but for two things: its eps[0] is a floor of the
    second moment, where the paper adds it to the square (None means 1e-30 here), and it decays
    weights by ``lr * weight_decay``, as ``scale_weight_decay=False`` does while rho is lr.
    Loading its checkpoint sets both options, eps[0] to None.

    **APOLLO** (`apollo_rank` above 0, tensors of two dimensions or more) looks at the gradient, a
    matrix of shape[0] rows, through a random projection of its smaller side to `apollo_rank`:

        L = g @ P^T or P @ g                       P drawn anew every apollo_update_proj_gap steps
        M = beta1 * M + (1 - beta1) * L            with beta1; x = M / (1 - beta1^t), else x = L
        y = x / root of the second moment of L     as above: whole, or apollo_factorize
        u = g * (apollo_scale * norm(y) / norm(L)) by channel of the larger side, or in all

    and then clips and limits the update as above; the limiter is on by default here. P has
    independent normal entries of variance 1 / rank from `qmaps.algebra.philox`; it depends on the
    seed, the parameter's number and the step alone, and is not stored. Only the results of these
    matrix products are promised to a tolerance rather than bit for bit: 1e-5 of the largest element
    of the update.

    **CAME** (`beta3`) divides the first moment of factored tensors by the factored root of a
    running average of (u - m)^2 + came_eps, without correction of bias: first steps are large.
    With it `beta2` has ``rest = 1 - beta2``, without correction of bias too, as in the paper.

    States: `row_var` (R, shape (..., rows, 1)) and `col_var` (C, shape (..., 1, columns)), or
    `variance` (v), `exp_avg` (m) with beta1, and `step`; with APOLLO, of L, `low_variance` or
    `low_row_var` and `low_col_var`, and `low_exp_avg` (M); with CAME `residual_row` and
    `residual_col`; with the limiter `update_norm`. Adafactor is here as a baseline for comparison;
    `Adafactor8bit` quantizes these states.

    A step waits for no device, unless `lr` is on it, `nonfinite` checks gradients, or
    a quantizer is fitted or keeps its scales in 8 bits.

    Args:
        params: parameters, or groups of them.
        lr: rho in the rule, or with `relative_step` the upper bound of rho; at least 0: a number
            or a tensor with one element.
        beta2_decay: power of the step in the weight of new squares, at most 0.
        eps: added to squares (at least 0, or None for 1e-30), and the least scale of a parameter.
        d: largest rms of an update; larger ones are scaled down to it; above 0.
        weight_decay: decoupled from the second moment, at least 0.
        beta1: decay of the first moment, in [0, 1); None or 0 for none.
        beta2: fixed decay of the second moment, in [0, 1); None for `beta2_decay`. Its bias is
            corrected, except with `beta3`.
        relative_step: bound the step size by ``1 / sqrt(step)``.
        scale_parameter: multiply the step size by the larger of the parameter's rms and
            ``eps[1]``.
        scale_weight_decay: apply `scale_parameter` to weight decay too.
        factored: factor the second moment of tensors with rows and columns.
        beta3: decay of CAME's residuals, in [0, 1); it needs `beta1` above 0, `factored` and no
            APOLLO. None turns CAME off.
        came_eps: added to CAME's squared residuals, at least 0.
        fira_margin: how much the norm of an update may grow in a step, at least 0; infinity for no
            limit. None means 0.01 for tensors projected by APOLLO, and no limit for others.
        apollo_rank: rank of APOLLO's projections, at least 0; 0 turns APOLLO off.
        apollo_scale_type: "channel" for one factor per channel, or "tensor" for one factor in all
            (APOLLO-Mini).
        apollo_scale: multiplier of APOLLO's factor, at least 0.
        apollo_update_proj_gap: steps between projections, at least 1.
        apollo_factorize: factor the second moment of the projected gradients.
        **shared: options of all optimizers, such as `state_quantizers`; see `QuantizedOptimizer`.

    Raises:
        BadValueError, BadTypeError, SpecError: an argument is not allowed.

    Source: Shazeer and Stern (2018), "Adafactor", algorithms 4 to 6 and section 7.1. APOLLO: Zhu
    et al. (2024). Limiter: Chen et al. (2024), Fira. Confidence: Luo et al. (2023), CAME.
    Together: the 8-bit Adafactor's project page.

    >>> import torch
    >>> layer = torch.nn.Linear(128, 64)
    >>> optimizer = Adafactor(layer.parameters())
    >>> layer(torch.randn(4, 128)).square().mean().backward()
    >>> optimizer.step()
    >>> {name: tuple(value.shape) for name, value in optimizer.state[layer.weight].items()}
    {'step': (), 'row_var': (64, 1), 'col_var': (1, 128)}
    """

    states: ClassVar[Mapping[str, State]] = {
        "exp_avg": State(signed=True),
        "variance": State(),
        "row_var": State(exact=True, factored=True, dims=factored.row_dims),
        "col_var": State(exact=True, factored=True, dims=factored.col_dims),
        "residual_row": State(exact=True, dims=factored.row_dims),
        "residual_col": State(exact=True, dims=factored.col_dims),
        "low_exp_avg": State(signed=True, dims=None),
        "low_variance": State(dims=None),
        "low_row_var": State(exact=True, dims=None),
        "low_col_var": State(exact=True, dims=None),
        "update_norm": State(exact=True, dims=lambda _: ()),
    }
    takes_norms: ClassVar[bool] = True
    native_rule: ClassVar[str | None] = "adafactor"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        beta1: float | None = None,
        beta2: float | None = None,
        relative_step: bool = True,
        scale_parameter: bool = True,
        scale_weight_decay: bool = True,
        factored: bool = True,
        beta3: float | None = None,
        came_eps: float = 1e-16,
        fira_margin: float | None = None,
        apollo_rank: int = 0,
        apollo_scale_type: str = "channel",
        apollo_scale: float = 1.0,
        apollo_update_proj_gap: int = 200,
        apollo_factorize: bool = False,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(params, locals(), **shared)

    def check_group(self, group: dict[str, Any]) -> None:
        if group["lr"] is None:
            raise BadTypeError(
                "lr=None must be a number of at least 0; with relative_step=True it is the "
                "largest step size, 0.01 in the paper"
            )
        check_at_least_0(group, "lr", "weight_decay", "came_eps", "apollo_scale")
        if not number("beta2_decay", group["beta2_decay"]) <= 0:
            raise BadValueError(f"beta2_decay={shown(group['beta2_decay'])} must be at most 0")
        check_finite("beta2_decay", group["beta2_decay"])
        check_pair("eps", group["eps"], "two numbers, of which the first may be None")
        small, min_scale = group["eps"]
        if small is not None and not number("eps[0]", small) >= 0:
            raise BadValueError(f"eps[0]={shown(small)} must be at least 0, or None for 1e-30")
        if not number("eps[1]", min_scale) >= 0:
            raise BadValueError(f"eps[1]={shown(min_scale)} must be at least 0")
        check_above_0(group, "d")
        for name in ("beta1", "beta2", "beta3"):
            if group[name] is not None:
                check_decay(name, group[name])
        check_bound(group, "fira_margin", or_0=True)
        check_bool(group, "relative_step", "scale_parameter", "scale_weight_decay", "factored",
                   "apollo_factorize")  # fmt: skip
        check_int("apollo_rank", group["apollo_rank"], 0)
        check_int("apollo_update_proj_gap", group["apollo_update_proj_gap"], 1)
        check_one_of("apollo_scale_type", group["apollo_scale_type"], SCALE_TYPES)
        if group["apollo_rank"] and group.get("reset_every"):
            raise BadValueError(
                f"reset_every={group['reset_every']} needs apollo_rank=0, but it is "
                f"{group['apollo_rank']}: projections are drawn by the number of the step"
            )
        if group["beta3"] is not None:
            for name, unfit in (("beta1", not group["beta1"]), ("factored", not group["factored"]),
                                ("apollo_rank", group["apollo_rank"] != 0)):  # fmt: skip
                if unfit:
                    raise BadValueError(
                        f"beta3={group['beta3']} needs beta1 above 0, factored=True and "
                        f"apollo_rank=0, but {name} is {group[name]}"
                    )

    def state_shapes(self, param: Tensor, group: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        shape = tuple(param.shape)
        margin = group["fira_margin"]
        projection = _projection(param, group)
        shapes: dict[str, tuple[int, ...]] = {}
        if projection is not None:
            low = projection.low_shape
            shapes = _moment_shapes(low, "low_", group["beta1"], group["apollo_factorize"])
            margin = MARGIN if margin is None else margin
        else:
            by_factors = group["factored"] and factored.factors(shape)
            shapes = _moment_shapes(shape, "", group["beta1"], by_factors)
            if by_factors and group["beta3"] is not None:
                shapes["residual_row"] = factored.row_shape(shape)
                shapes["residual_col"] = factored.col_shape(shape)
        if margin is not None and margin < math.inf:
            shapes["update_norm"] = ()
        return shapes

    def _load(self, saved: Any) -> None:
        """As every optimizer; torch's Adafactor's checkpoint gets options of the paper's rule."""
        super()._load(_with_paper_options(saved))

    def step_scalars(self, group: dict[str, Any]) -> dict[str, float | StepScalar]:
        beta1, beta3 = float(group["beta1"] or 0), float(group["beta3"] or 0)
        beta2, decay = group["beta2"], float(group["beta2_decay"])
        small, min_scale = group["eps"]
        margin = MARGIN if group["fira_margin"] is None else float(group["fira_margin"])
        old_weight: float | StepScalar = PowerRest(decay)
        new_weight: float | StepScalar = Power(decay)
        if beta2 is not None and group["beta3"] is not None:  # CAME corrects no bias
            old_weight, new_weight = float(beta2), 1 - float(beta2)
        elif beta2 is not None:
            old_weight, new_weight = UnbiasedRest(float(beta2)), Unbiased(float(beta2))
        return {
            "rho": (RelativeStep if group["relative_step"] else StepScalar)(group["lr"]),
            "scale_parameter": float(group["scale_parameter"]),
            "scale_weight_decay": float(group["scale_weight_decay"]),
            "weight_decay": float(group["weight_decay"]),
            "least": float(min_scale),
            "small": SMALLEST_SQUARE if small is None else float(small),
            "kept": old_weight,
            "rest": new_weight,
            "d": float(group["d"]),
            "beta1": beta1,
            "rest1": 1 - beta1,
            "correction": Corrected(1.0, beta1),
            "beta3": beta3,
            "rest3": 1 - beta3,
            "came_eps": float(group["came_eps"]),
            "growth": 1 + margin,
            "apollo_scale": float(group["apollo_scale"]),
            "sign": ascent(group),
        }

    def update(self, param: Tensor, grad: Tensor, states: States, scalars: Values) -> None:
        s = scalars
        grad = directed(grad, s)
        alpha = decayed(param, s)
        u = scaled(grad, grad, states, s, ("variance", "row_var", "col_var"))
        u = _held(u, states, s)
        if "exp_avg" in states:
            m = states["exp_avg"].mul_(s["beta1"]).add_(u * s["rest1"])
            if "residual_row" in states:
                row, col = states["residual_row"], states["residual_col"]
                m = confident(u, m, row, col, s["came_eps"], s["beta3"], s["rest3"])
            u = m
        param.sub_(u * alpha)

    def advance(
        self, context: Context, param: Tensor, grad: Tensor, states: States, scalars: Values
    ) -> None:
        """Apply the rule, with APOLLO's projection where the parameter has one; see `update`."""
        number, step, group = context
        projection = _projection(param, group)
        if projection is None:
            self.update(param, grad, states, scalars)
            return
        s = scalars
        draw = (step - 1) // group["apollo_update_proj_gap"]
        matrix = projection.matrix(group["seed"], draw, number, param.device)
        grad = directed(grad, s)
        alpha = decayed(param, s)
        low = x = projection.project(grad, matrix)
        if "low_exp_avg" in states:
            x = states["low_exp_avg"].mul_(s["beta1"]).add_(low * s["rest1"]) * s["correction"]
        y = scaled(x, low, states, s, ("low_variance", "low_row_var", "low_col_var"))
        factor = projection.factor(y, low, group["apollo_scale_type"]) * s["apollo_scale"]
        param.sub_(_held(grad * factor, states, s) * alpha)


def _held(u: Tensor, states: States, s: Values) -> Tensor:
    """An update after clipping and the limiter."""
    u = clipped(u, s["d"])
    return limited(u, states["update_norm"], s["growth"]) if "update_norm" in states else u


def _projection(param: Tensor, group: Mapping[str, Any]) -> Projection | None:
    """APOLLO's projection of a parameter's gradients, where it has one."""
    if group["apollo_rank"] == 0 or not factored.factors(tuple(param.shape)):
        return None
    return Projection(tuple(param.shape), group["apollo_rank"])


def _moment_shapes(
    shape: tuple[int, ...], prefix: str, beta1: float | None, by_factors: bool
) -> dict[str, tuple[int, ...]]:
    """The states of the moments of a gradient of this shape."""
    shapes = {f"{prefix}exp_avg": shape} if beta1 else {}
    if not by_factors:
        return {**shapes, f"{prefix}variance": shape}
    statistics = {"row_var": factored.row_shape(shape), "col_var": factored.col_shape(shape)}
    return {**shapes, **{f"{prefix}{name}": shape for name, shape in statistics.items()}}


def _with_paper_options(saved: Any) -> Any:
    """A checkpoint of ``torch.optim.Adafactor`` with options of the paper's rule.

    torch decays weights as ``scale_weight_decay=False`` does, and its eps[0] is a floor of the
    second moment. Any other checkpoint is returned unchanged.
    """
    groups = saved.get("param_groups") if isinstance(saved, Mapping) else None
    if not isinstance(groups, (list, tuple)):
        return saved
    replaced = []
    for group in groups:
        if isinstance(group, Mapping) and "beta2_decay" in group and "factored" not in group:
            group = {**group, "scale_weight_decay": False}
            if isinstance(eps := group.get("eps"), (list, tuple)) and len(eps) == 2:
                group["eps"] = (None, eps[1])
        replaced.append(group)
    return {**saved, "param_groups": replaced}


class Adafactor8bit(FixedWidth, Adafactor):
    """`Adafactor` with 8-bit states: second moments in log2 space.

    Blocks keep the range of log2 of their values, and zero exactly:
    ``logB256/log2(in_log=true)@8u+qsr``. The first moment is ``B128/DE-sym@8s``. Rows and columns
    are quantized where there are more than `min_quantized_size` of them; those of projected
    gradients stay in 32 bits. See `FixedWidth`.

    Source: 8-bit Adafactor, project page and its later development.

    >>> import torch
    >>> layer = torch.nn.Linear(128, 64)
    >>> optimizer = Adafactor8bit(layer.parameters(), factored=False)
    >>> layer(torch.randn(4, 128)).square().mean().backward()
    >>> optimizer.step()
    >>> optimizer.state[layer.weight]["variance"]
    QuantizedTensor('logB256/log2(in_log=true)@8u+qsr', shape=(64, 128), 8448 bytes)
    """

    bits: ClassVar[int] = 8

    @classmethod
    def fixed_specs(cls, block_size: int | None) -> dict[str, str | None]:
        """The spec of each state; a block size of None is the class's own."""
        size = 256 if block_size is None else block_size
        moment = f"logB{size}/log2(in_log=true)@8u+qsr"
        second = ("variance", "row_var", "col_var", "residual_row", "residual_col", "low_variance")
        first = dict.fromkeys(("exp_avg", "low_exp_avg"), "B128/DE-sym@8s")
        return {**first, **dict.fromkeys(second, moment)}
