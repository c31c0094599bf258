"""Measures of one step on a sample of a parameter's states."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qmaps.algebra import gaps
from qmaps.algebra.pair import adam_update, zero_points
from qmaps.algebra.quantized import QuantizedTensor
from qmaps.metrics.mean_rel_error import mean_rel_error
from qmaps.metrics.sqnr_db import sqnr_db

MOMENTS = ("exp_avg", "exp_avg_sq")

MEASURES = (
    "held_share",
    "moved_share",
    "stalled_share",
    "saturated_share",
    "sqnr_db",
    "zero_point_share",
    "update_mean_rel_error",
    "update_median_rel_error",
)
"""Names of the measures, as `qmaps.capture.Monitor` defines them."""

NONE = dict.fromkeys(MEASURES, math.nan)


@dataclass(frozen=True)
class Seen:
    """A sample of one quantized state, on the CPU.

    Attributes:
        first: its codes at the start of the window.
        last: its codes after the step.
        exact: the exact value after the step, from the codes before it; None if unknown.
        drifted: the exact value after all steps of the window; None if unknown.
    """

    first: QuantizedTensor
    last: QuantizedTensor
    exact: Tensor | None
    drifted: Tensor | None


def of_state(seen: Seen) -> dict[str, float]:
    """The measures of one state; those of both moments together are NaN."""
    codes, decoded = seen.last.codes(), seen.last.dequantize()
    found = dict(NONE)
    same_map = seen.first.quantizer.map == seen.last.quantizer.map  # False after a refit
    held = seen.first.codes() == codes
    if same_map:
        found["held_share"] = _share(held)
    if same_map and seen.drifted is not None:
        moved = gaps.moved(seen.first, seen.drifted - seen.first.dequantize())
        found["moved_share"] = _share(moved)
        movers = int(moved.sum())
        found["stalled_share"] = int((moved & held).sum()) / movers if movers else math.nan
    if seen.exact is not None:
        q = seen.last.quantizer
        found["sqnr_db"] = sqnr_db(seen.exact, decoded, codes, len(q.map.codebook()))
        found["saturated_share"] = _share(_saturated(seen.last, seen.exact, codes))
    return found


def of_moments(
    first: Tensor, second: Tensor, exact: Mapping[str, Tensor] | None, group: Mapping[str, Any],
    step: int,
) -> dict[str, float]:  # fmt: skip
    """The measures of Adam's two moments together.

    Args:
        first: the decoded first moment after the step.
        second: the decoded second moment after the step.
        exact: all states of the rule before they were encoded, by name; None if unknown.
        group: options of the parameter group, of which `eps` and `betas` are used.
        step: number of the parameter's step.
    """
    if exact is None:
        return {"zero_point_share": _share(zero_points(first, second, torch.ones_like(second)))}
    m, v = (exact[name] for name in MOMENTS)
    found = {"zero_point_share": _share(zero_points(first, second, v))}
    if set(exact) != set(MOMENTS):  # AdEMAMix's update has a third state
        return found
    # Bias corrections multiply the whole update by a number if eps is multiplied as well.
    eps = float(group["eps"]) * math.sqrt(1 - float(group["betas"][1]) ** step)
    u, w = adam_update(m, v, eps), adam_update(first, second, eps)
    found["update_mean_rel_error"] = mean_rel_error(u, w, u, 0)
    kept = u != 0
    relative = ((u - w)[kept] / u[kept]).abs()
    found["update_median_rel_error"] = float(relative.median()) if len(relative) else math.nan
    return found


def _saturated(t: QuantizedTensor, exact: Tensor, codes: Tensor) -> Tensor:
    """Where an element has an end code, though its magnitude is below its scale."""
    ends = codes == len(t.quantizer.map.codebook()) - 1
    if t.quantizer.map.signed:
        ends |= codes == 0
    return ends & (t.quantizer.normalizer.normalize(exact, t.scales).abs() < 1)


def _share(where: Tensor) -> float:
    return int(where.sum()) / where.numel()
