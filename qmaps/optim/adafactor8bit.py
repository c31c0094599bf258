"""Adafactor with second moments in log2 space."""

from __future__ import annotations

from typing import ClassVar

from qmaps.optim.adafactor import Adafactor
from qmaps.optim.fixed_width import FixedWidth


class Adafactor8bit(FixedWidth, Adafactor):
    """`Adafactor` with 8-bit states: second moments in log2 space, ``logB256/log2@8u``.

    Blocks keep the range of log2 that their values take, and zero exactly. The first moment is
    ``B128/DE@8s``. Rows and columns are quantized where there are more than `min_quantized_size`
    of them; those of projected gradients stay in 32 bits.

    Args:
        params, lr, beta2_decay, eps, d, weight_decay, beta1, beta2, relative_step, scale_parameter,
            scale_weight_decay, factored, beta3, came_eps, fira_margin, apollo_rank,
            apollo_scale_type, apollo_scale, apollo_update_proj_gap, apollo_factorize: as for
            `Adafactor`.
        block_size: elements per range of second moments, at least 1; 256 if left out.
        blocksize: the same option under the name that bitsandbytes uses.
        **shared: the options that all optimizers share, which `QuantizedOptimizer` documents:
            `maximize`, `state_quantizers`, `overrides`, `min_quantized_size`, `refit_every`,
            `reset_every`, `nonfinite`, `seed`, `stochastic_rounding`, `master_weights`, `foreach`,
            `fused`, `capturable` and `differentiable`. This class sets `state_quantizers` itself;
            passing it raises a `BadValueError`.

    Source: 8-bit Adafactor, project page and its later development.

    >>> import torch
    >>> layer = torch.nn.Linear(128, 64)
    >>> optimizer = Adafactor8bit(layer.parameters(), factored=False)
    >>> layer(torch.randn(4, 128)).square().mean().backward()
    >>> optimizer.step()
    >>> optimizer.state[layer.weight]["variance"]
    QuantizedTensor('logB256/log2@8u', shape=(64, 128), 8448 bytes)
    """

    bits: ClassVar[int] = 8

    @classmethod
    def fixed_specs(cls, block_size: int | None) -> dict[str, str | None]:
        """The spec of each state; a block size of None is the class's own."""
        moment = f"logB{256 if block_size is None else block_size}/log2@8u"
        second = ("variance", "row_var", "col_var", "residual_row", "residual_col", "low_variance")
        first = dict.fromkeys(("exp_avg", "low_exp_avg"), "B128/DE@8s")
        return {**first, **dict.fromkeys(second, moment)}
