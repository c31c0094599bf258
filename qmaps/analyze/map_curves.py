"""Codebooks as curves."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from qmaps.maps.base import Map


def map_curves(maps: Iterable[Map]) -> pd.DataFrame:
    """The value of each code of each map.

    Args:
        maps: the maps; at least one.

    Returns:
        One row per map and code: `map` (such as ``DE@8s``), `code`, `position` (code scaled to
        [0, 1]), `value` (codebook value, float64).

    Source: 8-bit optimizers, figure 6; 4-bit optimizers, figure 32.
    """
    frames = []
    for map_ in maps:
        values = map_.codebook().numpy()
        frames.append(
            pd.DataFrame(
                {
                    "map": map_.spec,
                    "code": np.arange(values.size),
                    "position": np.linspace(0, 1, values.size),
                    "value": values.astype(np.float64),
                }
            )
        )
    return pd.concat(frames, ignore_index=True)
