"""Bands of the mel scale."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor


@functools.cache
def mel_bands(rate: int, window: int, bands: int) -> Tensor:
    """Triangles (bands, window // 2 + 1) up to rate / 2, of equal areas, on Slaney's mel scale.

    Args:
        rate: samples a second.
        window: samples of the window of a spectrum.
        bands: number of bands.
    """

    def mel(hertz: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        return np.where(
            hertz < 1000,
            hertz * 3 / 200,
            15 + 27 * np.log(np.maximum(hertz, 1) / 1000) / np.log(6.4),
        )

    hertz = np.linspace(0, rate / 2, 100_001)
    edges = np.interp(np.linspace(0, mel(hertz)[-1], bands + 2), mel(hertz), hertz)
    bins = np.linspace(0, rate / 2, window // 2 + 1)
    low, middle, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rise, fall = (bins - low) / (middle - low), (high - bins) / (high - middle)
    return torch.tensor(np.clip(np.minimum(rise, fall), 0, None) * 2 / (high - low)).float()
