"""Share of the codes that occur."""

import torch
from torch import Tensor


def codes_used(x: Tensor, decoded: Tensor, codes: Tensor, size: int) -> float:
    """Number of different codes that occur over the size of the codebook, 0 to 1."""
    return int((torch.bincount(codes.reshape(-1), minlength=size) > 0).sum()) / size
