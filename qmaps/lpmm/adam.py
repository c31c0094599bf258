"""Adam on a model in low precision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from qmaps.lpmm.optimizer import LowPrecisionOptimizer
from qmaps.optim.adam import Adam

MOMENTS = {"exp_avg": "B2048/DE-sym@8s+sr", "exp_avg_sq": "B2048/DE-0@8u+sr"}


class LPMMAdam(LowPrecisionOptimizer, Adam):
    """LPMM-Adam: `qmaps.optim.Adam` for models converted by `qmaps.lpmm.convert`.

    The rule is Adam's, on the accumulated gradient; parameter and moments are then encoded. The
    second moment is kept without a zero (``DE-0``), since a step is m / eps where v decodes to 0
    and m does not; the paper's map is ``B2048/DE@8u+sr``.

    Args:
        params: parameters, or groups of them.
        lr, betas, eps, weight_decay: as for `qmaps.optim.Adam`.
        accumulation_steps: micro-batches of a step; see `LowPrecisionOptimizer`.
        state_quantizers: quantizers of the moments. None, the default, means
            ``B2048/DE-sym@8s+sr`` and ``B2048/DE-0@8u+sr``; "32bit" keeps them in 32 bits.
        min_quantized_size: 0 without a choice file, for all moments in low precision.
        nonfinite: "raise" by default; see `LPMMSGD`.
        **shared: options of all optimizers; see `QuantizedOptimizer`. Converted parameters ignore
            `stochastic_rounding` and `master_weights`; `amsgrad` and `decoupled_weight_decay` must
            be False.

    Source: LPMM, appendix B.
    """

    _quantizers: ClassVar[Mapping[str, str] | None] = MOMENTS
