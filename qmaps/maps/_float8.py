"""The values of an 8-bit binary floating-point format."""

from torch import Tensor

from qmaps.maps.base import mirror


def float8_values(exponent_bits: int, largest: float, signed: bool) -> Tensor:
    """All finite values of an 8-bit format: a sign bit, `exponent_bits`, the rest mantissa.

    The values are scaled so that `largest`, the greatest finite value, is 1. Bias and subnormals
    are those of IEEE formats; codes above `largest` (infinities and NaN) are left out.

    Args:
        exponent_bits: width of the exponent, from 1 to 6.
        largest: the greatest finite value before scaling, such as 448.0 for E4M3.
        signed: whether negative values are included.

    Returns:
        Ascending float64 values in [-1, 1], or in [0, 1] if not `signed`; zero occurs once.
    """
    mantissa_bits = 7 - exponent_bits
    bias = 2 ** (exponent_bits - 1) - 1
    magnitudes = []
    for code in range(2**7):
        exponent, fraction = divmod(code, 2**mantissa_bits)
        if exponent == 0:
            value = fraction * 2.0 ** (1 - bias - mantissa_bits)
        else:
            value = (2**mantissa_bits + fraction) * 2.0 ** (exponent - bias - mantissa_bits)
        if value <= largest:
            magnitudes.append(value / largest)
    return mirror(magnitudes, signed=signed)
