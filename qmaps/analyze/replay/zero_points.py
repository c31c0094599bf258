"""Zero points of whole states: v decodes to 0 where m does not."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence

import pandas as pd
import torch
from torch import Tensor

from qmaps.algebra.pair import Pair
from qmaps.algebra.philox import RoundingKey
from qmaps.algebra.quantizer import Quantizer
from qmaps.capture import CapturedStates
from qmaps.maps.base import table


def holds_zero(q: Quantizer | None) -> bool:
    """True if 0 is, or can become by fitting, a value of a quantizer's map; False for none."""
    return q is not None and (q.map.fitted or bool((table(q.map) == 0).any()))


def count_all(
    frame: pd.DataFrame, states: CapturedStates, pairs: Iterable[Pair], seed: int
) -> pd.DataFrame:
    """Count the zero points of parameters replayed in part.

    Returns:
        The frame, with a `zero_point_share` of at least that of the whole recorded moments.
    """
    by_spec = {pair.spec: pair for pair in pairs}
    numbers = {name: number for number, name in enumerate(states.parameters())}
    shares: dict[Hashable, float] = dict.fromkeys(frame.index, 0.0)
    for parameter, rows in frame.groupby("parameter", sort=False):
        name = str(parameter)
        if rows["numel"].iloc[0] < math.prod(states.shape(name, "exp_avg")):
            m, v = (states.tensor(name, state) for state in ("exp_avg", "exp_avg_sq"))
            specs = [by_spec[spec] for spec in rows["quantizer"]]
            of_pairs = zero_point_shares(m, v, specs, seed, numbers[name])
            shares.update(zip(rows.index, of_pairs, strict=True))
    lower = pd.Series(shares)
    return frame.assign(zero_point_share=frame["zero_point_share"].clip(lower=lower))


def zero_point_shares(
    m: Tensor, v: Tensor, pairs: Sequence[Pair], seed: int, tensor: int
) -> list[float]:
    """Encode two moments once under each pair and count their zero points.

    Returns:
        For each pair the share of elements with v > 0 that decode to v = 0 and m != 0, in [0, 1].
    """

    def decoded(q: Quantizer | None, x: Tensor, state: int) -> Tensor:
        if q is None:
            return x
        key = RoundingKey(seed=seed, tensor=tensor, state=state)
        return q.quantize_unchecked(x, key=key).dequantize()

    zeroed: dict[Quantizer, Tensor] = {}
    nonzero: dict[Quantizer | None, Tensor] = {}
    counts = []
    for first, second in ((pair.first, pair.second) for pair in pairs):
        if second is None or not _can_zero(second, tuple(v.shape)):
            counts.append(0)
            continue
        if second not in zeroed:
            zeroed[second] = (v != 0) & (decoded(second, v, 1) == 0)
        if first not in nonzero and zeroed[second].any():
            nonzero[first] = decoded(first, m, 0) != 0
        counts.append(int((zeroed[second] & nonzero[first]).sum()) if first in nonzero else 0)
    return [count / max(1, v.numel()) for count in counts]


def _can_zero(q: Quantizer, shape: tuple[int, ...]) -> bool:
    """False if values above 0 surely decode to values above 0.

    That is so if the map has no zero and each scale is the largest magnitude in float32: another
    one may be rounded to 0.
    """
    scales = q.normalizer
    exact = all(dtype == torch.float32 for dtype, _ in scales.layout(shape))
    return holds_zero(q) or scales.clips or not (scales.linear and exact)
