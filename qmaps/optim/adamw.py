"""AdamW with quantized moments."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

from torch import Tensor

from qmaps._float32 import sqrt
from qmaps.errors import BadValueError
from qmaps.normalize.block import check_block_size
from qmaps.optim.base import QuantizedOptimizer, StateQuantizers, resolve_block_size


class AdamW(QuantizedOptimizer):
    r"""AdamW whose moments are kept under any quantizer.

    With gradient g and step t, in float32 and in this order:

        p = p * (1 - lr * weight_decay)
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * (g * g)
        p = p - lr / (1 - beta1^t) * (m / (sqrt(v) / sqrt(1 - beta2^t) + eps))

    The update uses the new moments before they are encoded. States are named as torch names
    them: `exp_avg` for m, `exp_avg_sq` for v, and `step`.

    Args:
        params: parameters, or groups of them.
        lr: learning rate, at least 0.
        betas: decay of the two moments, each in [0, 1).
        eps: added to the denominator, at least 0.
        weight_decay: decoupled, at least 0.
        maximize: ascend instead of descend.
        state_quantizers: "8bit", "4bit", "paper-8bit", "paper-4bit", "32bit", or a dict such
            as ``{"exp_avg": "B128/DE@4s", "exp_avg_sq": "rank1/linear@4u"}``.
        min_quantized_size: parameters of at most this many elements keep 32-bit states.
        refit_every: steps between fits of fitted maps.
        nonfinite: "propagate", "skip" or "raise"; see `QuantizedOptimizer`.
        seed: of stochastic rounding.

    Raises:
        BadValueError, BadTypeError, SpecError: an argument is not allowed.

    Source: Loshchilov and Hutter (2019); quantized states after 8-bit optimizers, section 2,
    and 4-bit optimizers, algorithm 1.

    >>> import torch
    >>> layer = torch.nn.Linear(128, 64)
    >>> optimizer = AdamW(layer.parameters(), state_quantizers={"exp_avg": "B128/DE@4s",
    ...                                                         "exp_avg_sq": "rank1/linear@4u"})
    >>> layer(torch.randn(4, 128)).square().mean().backward()
    >>> optimizer.step()
    >>> optimizer.state[layer.weight]["exp_avg"]
    QuantizedTensor('B128/DE@4s', shape=(64, 128), 4352 bytes)
    """

    state_names: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")
    signed_states: ClassVar[frozenset[str]] = frozenset({"exp_avg"})
    native_rule: ClassVar[str | None] = "adamw"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        maximize: bool = False,
        state_quantizers: StateQuantizers = "8bit",
        min_quantized_size: int = 4096,
        refit_every: int = 100,
        nonfinite: str = "propagate",
        seed: int = 0,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "maximize": maximize,
            },
            state_quantizers=state_quantizers,
            min_quantized_size=min_quantized_size,
            refit_every=refit_every,
            nonfinite=nonfinite,
            seed=seed,
        )

    def check_group(self, group: dict[str, Any]) -> None:
        """Raise if an option of a parameter group has a value that is not allowed."""
        super().check_group(group)
        for name in ("lr", "eps", "weight_decay"):
            if not float(group[name]) >= 0:
                raise BadValueError(f"{name}={group[name]} must be at least 0")
        for index, beta in enumerate(group["betas"]):
            if not 0 <= beta < 1:
                raise BadValueError(f"betas[{index}]={beta} is outside [0, 1)")

    def scalars(self, group: dict[str, Any], step: int) -> dict[str, float]:
        """Constants of this step, in float64."""
        lr, (beta1, beta2) = float(group["lr"]), group["betas"]
        return {
            "decay": 1 - lr * group["weight_decay"],
            "beta1": beta1,
            "beta2": beta2,
            "step_size": lr / (1 - beta1**step),
            "root_correction": math.sqrt(1 - beta2**step),
            "eps": group["eps"],
            "sign": -1.0 if group["maximize"] else 1.0,
            "rest1": 1 - beta1,
            "rest2": 1 - beta2,
        }

    def update(
        self, param: Tensor, grad: Tensor, states: dict[str, Tensor], scalars: dict[str, float]
    ) -> None:
        """The rule in the class's docstring."""
        s = scalars
        m, v = states["exp_avg"], states["exp_avg_sq"]
        if s["sign"] < 0:
            grad = -grad
        param.mul_(s["decay"])
        m.mul_(s["beta1"]).add_(grad * s["rest1"])
        v.mul_(s["beta2"]).add_((grad * grad) * s["rest2"])
        # A tensor divisor: CUDA turns division by a Python number into a product.
        denominator = sqrt(v).div_(v.new_tensor(s["root_correction"])).add_(s["eps"])
        param.sub_((m / denominator).mul_(s["step_size"]))


class _FixedWidth(AdamW):
    """`AdamW` with the quantizers of its class, and a block size to choose."""

    default_block_size: ClassVar[int]

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        block_size: int | None = None,
        blocksize: int | None = None,
        **options: Any,
    ) -> None:
        if "state_quantizers" in options:
            raise BadValueError(
                f"state_quantizers={options['state_quantizers']!r} does not go with a fixed width; "
                "use qmaps.optim.AdamW"
            )
        size = resolve_block_size(self.default_block_size, block_size, blocksize)
        check_block_size(size)
        chosen = self.quantizers(size)
        super().__init__(params, lr, betas, eps, weight_decay, state_quantizers=chosen, **options)

    @staticmethod
    @abstractmethod
    def quantizers(block_size: int) -> dict[str, str]:
        """The spec of each moment."""


class AdamW8bit(_FixedWidth):
    """`AdamW` with 8-bit moments: ``B256/DE@8s`` and ``B256/DE-0@8u``.

    The second map leaves out zero, so that no second moment decodes to it. The paper's own
    pair is ``AdamW(..., state_quantizers="paper-8bit")``.

    Args:
        params, lr, betas, eps, weight_decay, **options: as for `AdamW`.
        block_size: elements per scale, at least 1; 256 if left out.
        blocksize: the same option under the name that bitsandbytes uses.
    """

    default_block_size: ClassVar[int] = 256

    @staticmethod
    def quantizers(block_size: int) -> dict[str, str]:
        """The spec of each moment."""
        return {"exp_avg": f"B{block_size}/DE@8s", "exp_avg_sq": f"B{block_size}/DE-0@8u"}


class AdamW4bit(_FixedWidth):
    """`AdamW` with the 4-bit moments of the paper: ``B128/DE@4s`` and ``rank1/linear@4u``.

    Args:
        params, lr, betas, eps, weight_decay, **options: as for `AdamW`.
        block_size: elements per scale of the first moment, at least 1; 128 if left out.
        blocksize: the same option under the name that bitsandbytes uses.

    Source: 4-bit optimizers, section 5 ("4-bit AdamW").
    """

    default_block_size: ClassVar[int] = 128

    @staticmethod
    def quantizers(block_size: int) -> dict[str, str]:
        """The spec of each moment."""
        return {"exp_avg": f"B{block_size}/DE@4s", "exp_avg_sq": "rank1/linear@4u"}
