"""Adafactor and its variants in float64, written from the papers."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]


def assert_close(p: Array, exact: Array, start: Array) -> None:
    """Within 1e-5 of the largest movement, plus the rounding of p in each step."""
    moved = np.abs(exact - start).max()
    assert moved > 0.01
    assert np.abs(p - exact).max() < 1e-5 * moved + 20 * 2**-24 * np.abs(exact).max()


def rms(x: Array) -> float:
    return float(np.sqrt((x**2).mean()))


class Second:
    """A running second moment, full or as the outer product of its sides."""

    def __init__(self, sides: bool) -> None:
        self.sides, self.r, self.c, self.v = sides, 0.0, 0.0, 0.0

    def root(self, square: Array, decay: float) -> Array:
        if not self.sides:
            self.v = decay * self.v + (1 - decay) * square
            return np.sqrt(self.v)
        self.r = decay * self.r + (1 - decay) * square.sum(-1, keepdims=True)
        self.c = decay * self.c + (1 - decay) * square.sum(-2, keepdims=True)
        return np.sqrt(self.r * self.c / self.r.sum(-2, keepdims=True))


def beta2_at(t: int, o: dict[str, Any]) -> float:
    if (b := o.get("beta2")) is None:
        return 1 - t ** o.get("beta2_decay", -0.8)
    if o.get("beta3") is not None:  # CAME's paper corrects no bias
        return b
    return b * (1 - b ** (t - 1)) / (1 - b**t)


def adafactor(p: Array, grads: list[Array], matrices: list[Array] | None = None, **o: Any) -> Array:
    """The parameter after steps of these gradients; APOLLO if there are projections."""
    lr, d, beta1 = o.get("lr", 1e-2), o.get("d", 1.0), o.get("beta1") or 0.0
    sides = o.get("factored", True) and p.ndim >= 2
    second = Second(o.get("apollo_factorize", False) if matrices else sides)
    residual = Second(True)
    m, m_low, last = np.zeros(p.shape), 0.0, 0.0
    margin = o.get("fira_margin")
    growth = 1 + (0.01 if margin is None else margin)
    for t, grad in enumerate(grads, 1):
        g = -grad if o.get("maximize") else grad
        rho = min(lr, t**-0.5) if o.get("relative_step", True) else lr
        alpha = max(1e-3, rms(p)) * rho if o.get("scale_parameter", True) else rho
        decay = alpha if o.get("scale_weight_decay", True) else rho
        p = p - decay * o.get("weight_decay", 0.0) * p
        beta2 = beta2_at(t, o)
        if matrices:
            matrix = g.reshape(len(g), -1)
            right = matrix.shape[0] >= matrix.shape[1]
            low = matrix @ matrices[t - 1].T if right else matrices[t - 1] @ matrix
            m_low = beta1 * m_low + (1 - beta1) * low
            y = m_low / (1 - beta1**t) / second.root(low**2 + 1e-30, beta2)
            channel = o.get("apollo_scale_type", "channel") == "channel"
            axes = ((1,) if right else (0,)) if channel else (0, 1)
            factor = np.sqrt((y**2).sum(axes, keepdims=True) / (low**2).sum(axes, keepdims=True))
            u = (matrix * factor * o.get("apollo_scale", 1.0)).reshape(g.shape)
        else:
            u = g / second.root(g**2 + 1e-30, beta2)
        u = u / max(1.0, rms(u) / d)
        if matrices or margin is not None:
            n = np.sqrt((u**2).sum())
            if last and n > growth * last:
                u = u * growth * last / n
                n = growth * last
            last = n
        if beta1 and not matrices:
            m = beta1 * m + (1 - beta1) * u
            if (beta3 := o.get("beta3")) is not None and sides:
                m_over = residual.root((u - m) ** 2 + 1e-16, beta3)
                u = m / m_over
            else:
                u = m
        p = p - alpha * u
    return p
