"""Values that no state has: lost, impossible, or of elements without gradients."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from qmaps.algebra.pair import zero_points
from qmaps.algebra.quantizer import QuantizedTensor, values_of
from qmaps.capture.conversion.optimizer_state import State, flaws
from qmaps.capture.lint.base import ERROR, NOTE, WARNING, Entry, Finding, Part
from qmaps.capture.states import SECOND

SHOWN = 5
"""Rows that a message names."""

ROTATED = ("basis_", "Q.")
"""Beginnings of the names of SOAP's eigenvectors: its v is in their basis, and m is not."""

LEAST_STEP = 0.01
"""Step in learning rates, m / eps, up to which a second moment of 0 does no harm."""


def check_values(entry: Entry) -> Iterator[Finding]:
    """Yield the problems of a parameter's states."""
    parameter, values = entry.label, {}
    for name, state in entry.states.items():
        yield from _scales(parameter, name, state)
        x = values[name] = values_of(state)
        for kind, count, first in flaws(x, signed=name not in SECOND):
            share, check = count / x.numel(), "negative" if kind == "negative" else "nonfinite"
            message = f"{share:.2%} of the elements are {kind}, the first at flat index {first}"
            yield Finding(ERROR, check, parameter, name, count, share, message)
    m, v = values.get("exp_avg"), values.get("exp_avg_sq")
    if m is not None and v is not None:
        if _fits(v, m):
            largest = values.get("max_exp_avg_sq")  # divides in place of v
            above = v if largest is None or largest.shape != v.shape else v.maximum(largest)
            if not any(name.startswith(ROTATED) for name in values):
                yield from _zeroed(entry, m, above)
        else:
            message = f"exp_avg has the shape {tuple(m.shape)} and exp_avg_sq {tuple(v.shape)}"
            yield Finding(ERROR, "shape", parameter, "exp_avg_sq", 0, 0.0, message)
            m = None
    for name in SECOND:
        if name in values:
            yield from _dead_rows(parameter, name, values[name], m)


def check_float16(entry: Entry) -> Iterator[Part]:
    """Yield the number of non-zero second moments below the range of float16."""
    v = entry.states.get("exp_avg_sq")
    if isinstance(v, Tensor) and (total := int((v != 0).sum())):
        lost = int(((v != 0) & (v.half() == 0)).sum())
        message = "saved in float16, {share} of the non-zero exp_avg_sq would become 0"
        yield Part(NOTE, "float16", "exp_avg_sq", message, lost, total)


def _scales(parameter: str, name: str, state: State) -> Iterator[Finding]:
    """Report scales that are no finite numbers."""
    if not isinstance(state, QuantizedTensor):
        return
    scales = [part for part in state.scales if part.is_floating_point()]
    if bad := sum(int((~part.isfinite()).sum()) for part in scales):
        count = sum(part.numel() for part in state.scales)
        message = f"{bad} of {count} scales of {state.quantizer.spec} are NaN or infinite"
        yield Finding(ERROR, "scales", parameter, name, bad, bad / count, message)


def _fits(v: Tensor, m: Tensor) -> bool:
    """True if `v` has the shape of `m`, or one value for several of its elements."""
    return v.shape == m.shape or (
        v.dim() <= m.dim()
        and all(a in (1, b) for a, b in zip(v.shape[::-1], m.shape[::-1], strict=False))
    )


def _zeroed(entry: Entry, m: Tensor, v: Tensor) -> Iterator[Finding]:
    """Report second moments of 0 whose next update, m / eps, is no small one.

    A second moment of gradients so small that it underflows in float32 is 0 too. Its update is
    m / eps as it was before, and far below a learning rate.
    """
    eps = entry.option("eps")
    felt = m.abs() > LEAST_STEP * (1e-8 if eps is None else eps)
    if count := int((zero_points(m, v, torch.ones_like(v)) & felt).sum()):
        share = count / max(1, int((m != 0).sum()))
        coded = isinstance(entry.states["exp_avg_sq"], QuantizedTensor)
        why = "a map without 0, such as DE-0, avoids it" if coded else "its true values were lost"
        kind = entry.kinds["exp_avg_sq"]
        message = f"0 in {kind} under {share:.2%} of the non-zero exp_avg; {why}"
        level = WARNING if coded else ERROR
        yield Finding(level, "zeroed", entry.label, "exp_avg_sq", count, share, message)


def _dead_rows(parameter: str, name: str, v: Tensor, m: Tensor | None) -> Iterator[Finding]:
    """Rows of zeros: no gradient ever reached them."""
    if v.dim() < 2 or v.numel() == 0:
        return
    dead = (v == 0).reshape(len(v), -1).all(dim=1)
    if m is not None and len(m) == len(v):
        dead &= (m == 0).reshape(len(m), -1).all(dim=1)
    if count := int(dead.sum()):
        rows = ", ".join(map(str, dead.nonzero()[:SHOWN, 0].tolist()))
        more = ", ..." if count > SHOWN else ""
        message = f"{count} of {len(v)} rows are all 0, so they had no gradient: {rows}{more}"
        yield Finding(WARNING, "dead-rows", parameter, name, count, count / len(v), message)
