"""Entropy of the codes."""

import math

import torch

from qmaps.metrics._sums import Sums


def from_sums(sums: Sums) -> float:
    """Entropy of the code frequencies, in bits: 0 to the width of a code."""
    share = sums.codes.double() / sums.codes.sum()
    return float(-torch.special.xlogy(share, share).sum() / math.log(2.0))
