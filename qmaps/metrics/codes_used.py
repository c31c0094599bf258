"""Share of the codes that occur."""

import torch
from torch import Tensor

from qmaps.metrics._sums import Sums


def codes_used(x: Tensor, decoded: Tensor, codes: Tensor, size: int) -> float:
    """Number of different codes that occur over the size of the codebook, 0 to 1."""
    return int((torch.bincount(codes.reshape(-1), minlength=size) > 0).sum()) / size


def from_sums(sums: Sums) -> float:
    """The metric from the sums of a tensor."""
    return int((sums.codes > 0).sum()) / sums.codes.numel()
