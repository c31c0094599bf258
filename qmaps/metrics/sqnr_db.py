"""Signal-to-quantization-noise ratio."""

import math

from qmaps.metrics._sums import Sums


def from_sums(sums: Sums) -> float:
    """``10 log10(sum x**2 / sum (x - decoded)**2)`` in dB.

    Infinite where nothing is lost; NaN where x is 0 throughout.
    """
    return decibels(sums.signal, sums.square)


def decibels(signal: float, noise: float) -> float:
    """The ratio in dB; infinite without noise, NaN without a signal."""
    if signal == 0:
        return math.nan
    if noise == 0:
        return math.inf
    return 10 * (math.log10(signal) - math.log10(noise))
