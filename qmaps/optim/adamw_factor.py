"""AdamW with a factored second moment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from qmaps.algebra.quantizer import values_of
from qmaps.algebra.saved import from_plain
from qmaps.float32 import sqrt
from qmaps.optim import factored
from qmaps.optim.adamw import AdamW
from qmaps.optim.base import EightBit, FourBit, State, States, Values
from qmaps.optim.reductions import column_means, row_means
from qmaps.optim.rule import bounded_, directed


class AdamWFactor(AdamW):
    r"""AdamW with the second moment of matrices stored as means of rows and columns.

    This applies to tensors of two dimensions or more; the last two count as rows and columns. With
    gradient g (negated to maximize) and step t, in float32 and in this order:

        p = p * (1 - lr * weight_decay)
        m = beta1 * m + (1 - beta1) * g
        R = beta2 * R + (1 - beta2) * mean(g * g over each row)
        C = beta2 * C + (1 - beta2) * mean(g * g over each column)
        v = (R / mean(R)) * C                                  R / 1 where the mean is 0
        p = p - lr / (1 - beta1^t) * (m / (sqrt(v) / sqrt(1 - beta2^t) + eps))

    Means are float64 sums in the order of `qmaps.optim.reductions`, rounded to float32. Tensors of
    one dimension or none take the step of `AdamW`.

    States: `exp_avg` (m), `exp_avg_sq_row` (R, shape (..., rows, 1)) and `exp_avg_sq_col` (C, shape
    (..., 1, columns)), or `exp_avg_sq` where nothing is factored, and `step`. R and C stay in
    32 bits unless `state_quantizers` names them. A checkpoint of torch's AdamW is factored as it is
    loaded; this loses nothing that later steps use.

    Args:
        params: parameters, or groups of them.
        lr: learning rate, at least 0: a number or a tensor with one element.
        betas: decay of the first and of the second moment, each in [0, 1).
        eps: added to the denominator, at least 0.
        weight_decay: decoupled: the parameter is multiplied by ``1 - lr * weight_decay``;
            at least 0.
        **shared: options of all optimizers, such as `state_quantizers`; see `QuantizedOptimizer`.
            `amsgrad` must be False.

    Raises:
        BadValueError, BadTypeError, SpecError: an argument is not allowed.

    Source: 4-bit optimizers, section 4.3, with the factorization of Shazeer and Stern (2018).

    >>> import torch
    >>> layer = torch.nn.Linear(128, 64)
    >>> optimizer = AdamWFactor(layer.parameters(), state_quantizers="4bit")
    >>> layer(torch.randn(4, 128)).square().mean().backward()
    >>> optimizer.step()
    >>> state = optimizer.state[layer.weight]
    >>> state["exp_avg"], state["exp_avg_sq_row"].shape, state["exp_avg_sq_col"].shape
    (QuantizedTensor('B64xbf16/mu-law10:linear0@4s+qsr', shape=(64, 128), 4352 bytes),
     torch.Size([64, 1]), torch.Size([1, 128]))
    """

    states: ClassVar[Mapping[str, State]] = {
        **AdamW.states,
        "exp_avg_sq_row": State(exact=True, factored=True, dims=factored.row_dims),
        "exp_avg_sq_col": State(exact=True, factored=True, dims=factored.col_dims),
    }
    native_rule: ClassVar[str | None] = "adamw_factor"

    def state_shapes(self, param: Tensor, group: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        shape = tuple(param.shape)
        if not factored.factors(shape):
            return {"exp_avg": shape, "exp_avg_sq": shape}
        return {
            "exp_avg": shape,
            "exp_avg_sq_row": factored.row_shape(shape),
            "exp_avg_sq_col": factored.col_shape(shape),
        }

    def update(self, param: Tensor, grad: Tensor, states: States, scalars: Values) -> None:
        if "exp_avg_sq" in states:
            super().update(param, grad, states, scalars)
            return
        s = scalars
        m, row, col = states["exp_avg"], states["exp_avg_sq_row"], states["exp_avg_sq_col"]
        param.mul_(s["decay"])
        grad = directed(grad, s)
        m.mul_(s["beta1"]).add_(grad * s["rest1"])
        factored.average(row, col, bounded_(grad * grad), s["beta2"], s["rest2"])
        v = factored.relative_rows(row) * col
        denominator = sqrt(v).div_(v.new_full((), s["root_correction"])).add_(s["eps"])
        param.sub_((m / denominator).mul_(s["step_size"]))

    def adopted(
        self, saved: Mapping[str, Any], param: Tensor, group: dict[str, Any]
    ) -> Mapping[str, Any]:
        """A parameter's saved states, with a whole second moment factored."""
        whole = saved.get("exp_avg_sq")
        if whole is None or "exp_avg_sq" in self.state_shapes(param, group):
            return saved
        if isinstance(whole, Mapping):
            whole = from_plain(whole)
        v = values_of(whole).float()
        if v.shape != param.shape:
            return saved  # refused as it is
        others = {name: value for name, value in saved.items() if name != "exp_avg_sq"}
        return {**others, "exp_avg_sq_row": row_means(v), "exp_avg_sq_col": column_means(v)}


class AdamW8bitFactor(EightBit, AdamWFactor):
    """`AdamWFactor` with an 8-bit first moment: the preset ``8bit``. See `FixedWidth`.

    The second moment of other tensors is quantized too.
    """


class AdamW4bitFactor(FourBit, AdamWFactor):
    """`AdamWFactor` with a 4-bit first moment: the preset ``4bit``. See `FixedWidth`.

    The second moment of other tensors is quantized too. The paper's first moment is rounded to
    nearest: ``AdamWFactor(..., state_quantizers="paper-4bit")``.

    Source: after 4-bit optimizers, section 5 ("4-bit Factor").
    """
