"""Checks of one parameter's states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from qmaps.algebra.pair import zero_points
from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.capture.conversion.form import State, values_of
from qmaps.capture.lint.finding import ERROR, WARNING, Finding

SECOND = ("exp_avg_sq", "max_exp_avg_sq", "square_avg")
"""Averages of squares, which cannot be negative."""
SHOWN = 5
"""Rows that a message names."""


def checked(
    parameter: str, states: Mapping[str, State], kinds: Mapping[str, str]
) -> Iterator[Finding]:
    """Yield the problems of a parameter's states.

    Args:
        parameter: its name.
        states: the states by name, float or quantized.
        kinds: how each is stored, for messages: a dtype such as ``float16``, or a spec.
    """
    values: dict[str, Tensor] = {}
    for name, state in states.items():
        if isinstance(state, QuantizedTensor):
            yield from _scales(parameter, name, state)
        values[name] = values_of(state)
        yield from _finite(parameter, name, values[name])
    m, v = values.get("exp_avg"), values.get("exp_avg_sq")
    if m is not None and v is not None:
        if m.shape != v.shape:
            message = f"exp_avg has the shape {tuple(m.shape)} and exp_avg_sq {tuple(v.shape)}"
            yield Finding(ERROR, "shape", parameter, "exp_avg_sq", 0, 0.0, message)
            m = None
        else:
            coded = isinstance(states["exp_avg_sq"], QuantizedTensor)
            yield from _zeroed(parameter, m, v, kinds["exp_avg_sq"], coded=coded)
    for name in SECOND:
        if name in values:
            yield from _dead_rows(parameter, name, values[name], m)


def _scales(parameter: str, name: str, t: QuantizedTensor) -> Iterator[Finding]:
    """Scales that no quantizer makes of finite values."""
    bad = sum(int((~part.isfinite()).sum()) for part in t.scales if part.is_floating_point())
    if bad:
        count = sum(part.numel() for part in t.scales)
        message = f"{bad} of {count} scales of {t.quantizer.spec} are NaN or infinite"
        yield Finding(ERROR, "scales", parameter, name, bad, bad / count, message)


def _finite(parameter: str, name: str, x: Tensor) -> Iterator[Finding]:
    for check, bad, kind in (
        ("nonfinite", ~x.isfinite(), "NaN or infinite"),
        ("negative", x < 0, "negative"),
    ):
        if check == "negative" and name not in SECOND:
            continue
        if count := int(bad.sum()):
            first = int(bad.reshape(-1).int().argmax())
            share = count / x.numel()
            message = f"{share:.2%} of the elements are {kind}, the first at flat index {first}"
            yield Finding(ERROR, check, parameter, name, count, share, message)


def _zeroed(parameter: str, m: Tensor, v: Tensor, kind: str, *, coded: bool) -> Iterator[Finding]:
    """Second moments of 0 under other first moments, of which the true value cannot be 0."""
    if count := int(zero_points(m, v, torch.ones_like(v)).sum()):
        share = count / max(1, int((m != 0).sum()))
        why = "a map without 0, such as DE-0, avoids it" if coded else "its true values were lost"
        message = f"0 in {kind} under {share:.2%} of the non-zero exp_avg; {why}"
        level = WARNING if coded else ERROR
        yield Finding(level, "zeroed", parameter, "exp_avg_sq", count, share, message)


def _dead_rows(parameter: str, name: str, v: Tensor, m: Tensor | None) -> Iterator[Finding]:
    """Rows of zeros: no gradient ever reached them."""
    if v.dim() < 2 or v.numel() == 0:
        return
    dead = (v == 0).reshape(len(v), -1).all(dim=1)
    if m is not None:
        dead &= (m == 0).reshape(len(m), -1).all(dim=1)
    if count := int(dead.sum()):
        rows = ", ".join(map(str, dead.nonzero()[:SHOWN, 0].tolist()))
        more = ", ..." if count > SHOWN else ""
        message = f"{count} of {len(v)} rows are all 0, so they had no gradient: {rows}{more}"
        yield Finding(WARNING, "dead-rows", parameter, name, count, count / len(v), message)
