"""Entropy of the codes."""

import torch
from torch import Tensor


def code_entropy(x: Tensor, decoded: Tensor, codes: Tensor, size: int) -> float:
    """Entropy of the code frequencies, in bits: 0 to the width of a code."""
    share = torch.bincount(codes.reshape(-1), minlength=size).double() / codes.numel()
    return float(-torch.special.xlogy(share, share).sum() / torch.log(torch.tensor(2.0).double()))
