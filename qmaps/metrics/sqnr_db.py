"""Signal-to-quantization-noise ratio."""

import math

from torch import Tensor

from qmaps.metrics._sums import Sums


def sqnr_db(x: Tensor, decoded: Tensor, codes: Tensor, size: int) -> float:
    """``10 log10(sum x**2 / sum (x - decoded)**2)`` in dB.

    Infinite where nothing is lost; NaN where x is 0 throughout.
    """
    exact = x.double()
    signal = float(exact.square().sum())
    noise = float((exact - decoded.double()).square().sum())
    return decibels(signal, noise)


def from_sums(sums: Sums) -> float:
    """The metric from the sums of a tensor."""
    return decibels(sums.signal, sums.square)


def decibels(signal: float, noise: float) -> float:
    """The ratio in dB; infinite without noise, NaN without a signal."""
    if signal == 0:
        return math.nan
    if noise == 0:
        return math.inf
    return 10 * (math.log10(signal) - math.log10(noise))
