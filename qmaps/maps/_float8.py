"""The values of an 8-bit binary floating-point format."""

from torch import Tensor

from qmaps.maps.base import mirror


def float8_values(exponent_bits: int, largest: float, signed: bool) -> Tensor:
    """All finite values of a format with a sign, `exponent_bits` and the rest mantissa.

    Scaled so that `largest`, the greatest finite value, is 1. IEEE bias and subnormals; codes
    above `largest` (infinities and NaN) are left out.
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
