"""Dense tensors: strided, with every element in memory."""

from __future__ import annotations

import torch
from torch import Tensor


def unsupported_reason(x: Tensor) -> str:
    """Reason why the elements of `x` cannot be read; empty if they can.

    >>> unsupported_reason(torch.zeros(2)), unsupported_reason(torch.zeros(2).to_sparse())
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
    """Return True if elements of a dense tensor share one place in memory, as after ``expand``.

    Only strides of 0 and torch's zero tensors are recognized.
    """
    if x._is_zerotensor():
        return True
    strides = x.stride()
    sides = zip(x.shape, strides, strict=True)
    return 0 in strides and any(size > 1 and stride == 0 for size, stride in sides)
