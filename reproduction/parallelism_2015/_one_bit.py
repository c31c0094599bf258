"""Messages of signs, the baseline of the paper."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from qmaps.algebra.philox import RoundingKey
from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.distributed.comm.coder import Coder
from qmaps.distributed.comm.hook import QuantizedHook
from qmaps.maps.codebook import Codebook
from qmaps.normalize.base import Scales
from qmaps.normalize.block import BlockWise, blocks


class OneBit(Coder):
    """Signs, and the mean magnitude of each block: the baseline of the 2015 paper.

    Seide et al. keep two means per column, one for each sign; gradients are close enough to
    symmetric for one. Zero counts as negative, because ties go to the lower code.

    Source: Seide et al. (2014), "1-bit stochastic gradient descent"; 8-bit approximations for
    parallelism, section 4.2.
    """

    def __init__(self, block_size: int = 2048) -> None:
        self.quantizer = BlockWise(block_size) / Codebook([-1.0, 1.0], label="sign")
        self.block_size = block_size

    @property
    def name(self) -> str:
        """Name in reports."""
        return f"1 bit, B{self.block_size}"

    def quantize(self, x: Tensor, key: RoundingKey) -> QuantizedTensor:
        """Quantize to signs, with mean magnitudes in place of the quantizer's maxima."""
        t = super().quantize(x, key)
        return replace(t, scales=_means(x, min(self.block_size, x.numel())))


def _means(x: Tensor, size: int) -> Scales:
    sums = blocks(x.abs(), size).double().sum(1)
    counts = torch.full_like(sums, size)
    counts[-1] = x.numel() - (len(sums) - 1) * size
    return ((sums / counts).float(),)


def one_bit_hook(
    block_size: int = 2048,
    *,
    error_feedback: bool = True,
    group: dist.ProcessGroup | None = None,
    nonfinite: str = "raise",
) -> QuantizedHook:
    """A hook to send signs and a mean magnitude for each block, with error feedback.

    It is the baseline of the 2015 paper. A mean is of `block_size` gradients, at least 1. Other
    arguments and errors are those of `quantized_hook`.

    Source: Seide et al. (2014), "1-bit stochastic gradient descent".
    """
    return QuantizedHook(
        OneBit(block_size), error_feedback=error_feedback, group=group, nonfinite=nonfinite
    )
