"""Entropy of the codes."""

import math

import torch
from torch import Tensor

from qmaps.metrics._sums import Sums


def code_entropy(x: Tensor, decoded: Tensor, codes: Tensor, size: int) -> float:
    """Entropy of the code frequencies, in bits: 0 to the width of a code."""
    return _entropy(torch.bincount(codes.reshape(-1), minlength=size))


def from_sums(sums: Sums) -> float:
    """The metric from the sums of a tensor."""
    return _entropy(sums.codes)


def _entropy(counts: Tensor) -> float:
    share = counts.double() / counts.sum()
    return float(-torch.special.xlogy(share, share).sum() / math.log(2.0))
