"""Which tensors have their elements one by one in memory, as everything here reads them."""

from __future__ import annotations

import torch
from torch import Tensor


def lack(x: Tensor) -> str:
    """What keeps the elements of `x` from being read, or an empty string where nothing does.

    >>> lack(torch.zeros(2)), lack(torch.zeros(2).to_sparse())
    ('', 'has the layout torch.sparse_coo')
    """
    layout = x.layout
    if x.is_nested:
        return "is a nested tensor"
    if layout != torch.strided:
        return f"has the layout {layout}"
    if torch._C._functorch.is_functorch_wrapped_tensor(x):
        return "is inside a transform of torch.func, such as grad, jvp or vmap"
    return "is on the device 'meta', without values" if x.is_meta else ""


def overlaps_itself(x: Tensor) -> bool:
    """Whether elements of a dense tensor lie in one place, as those of ``expand`` do."""
    sides = zip(x.shape, x.stride(), strict=True)
    return x._is_zerotensor() or any(size > 1 and stride == 0 for size, stride in sides)
