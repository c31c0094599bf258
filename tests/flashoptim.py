"""Codes of two moments by the package flashoptim 0.1.4, in its groups of 32.

Its Triton kernels ``_triton_quantize_kernel`` and ``_triton_dequantize_kernel`` ran in Triton's
interpreter (triton 3.9.0) on the tensors of `moments`: the first with ``signed=True,
softsign=True``, the second with ``signed=False, sqrt=True, softsign=False``.
"""

import torch
from torch import Tensor


def moments() -> tuple[Tensor, Tensor]:
    """A first and a second moment of 80 elements."""
    first = [(i * 7919 % 2003 - 1001) / 1001 * 2.0 ** (i * 31 % 5 - 4) for i in range(80)]
    x = torch.tensor(first)
    return x, x * x


FIRST_CODES = [
    -19, 33, 53, 81, 114, 11, 17, 26, 36, 45, 1, -1, -9, -30, -71, -8, -19, -40, -77, -126,
    -16, -34, 60, 91, 127, 13, 22, 35, 52, 72, 4, 5, 2, -9, -37, -4, -11, -27, -57, -103, -12,
    -25, -50, -89, 127, 14, 23, 38, 58, 84, 6, 9, 11, 11, -4, -2, -7, -19, -44, -87, -10, -21,
    -44, -81, -127, 15, 26, 43, 68, 98, 8, 13, 20, 27, 31, 1, -2, -10, -29, -67,
]  # fmt: skip
SECOND_CODES = [
    21, 37, 67, 119, 208, 11, 18, 29, 43, 54, 1, 1, 9, 34, 99, 8, 20, 48, 111, 252, 18, 39,
    79, 143, 255, 14, 24, 41, 66, 102, 4, 5, 2, 9, 44, 4, 12, 30, 74, 173, 12, 28, 63, 138,
    255, 14, 25, 44, 76, 126, 6, 9, 12, 11, 4, 2, 7, 20, 54, 133, 10, 23, 53, 118, 255, 16,
    29, 53, 93, 160, 8, 14, 21, 30, 35, 1, 2, 10, 33, 91,
]  # fmt: skip

# Their float16 scales as integers; the second moment has the scale of its square root.
FIRST_SCALES = [14894, 15186, 15243]
SECOND_SCALES = [14894, 15186, 15243]
