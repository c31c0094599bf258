"""Adam's moments under many quantizers beside the exact ones, and the updates from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from qmaps.algebra.philox import RoundingKey
from qmaps.algebra.quantizer import QuantizedTensor, Quantizer
from qmaps.analyze.replay.step_cost import step_cost
from qmaps.ops import dispatch, gaps

GROUP = 2**18
"""Elements that one operation works on, so that they stay in the processor's cache."""


class Recursion:
    """x = beta * x + (1 - beta) * z, exact and under each of several quantizers.

    A quantized state begins as the exact one, encoded; fitted maps keep that fit. Each step decodes
    it, applies the formula in float32, and encodes the result, as optimizers do; the update uses
    the state before it is encoded. Row 0 of `before` and of `after` is the exact state; the others
    are those of the quantizers, in their order.
    """

    def __init__(
        self, start: Tensor, quantizers: Sequence[Quantizer], beta: float, key: RoundingKey
    ) -> None:
        self._shape = tuple(start.shape)
        self._beta = beta
        self._key = key
        flat = start.reshape(-1)
        count = len(quantizers)
        self._start = flat.clone()
        self.before = flat.expand(count + 1, -1).clone()
        self.after = self.before.clone()
        self._states = [q.quantize_unchecked(start, key=self._keyed(q, 0)) for q in quantizers]
        for row, state in enumerate(self._states, start=1):
            state.dequantize(out=self.after[row].view(self._shape))
        self._first = [state.clone() for state in self._states]
        self._codes = [_small(state).view(-1) for state in self._states]
        self._held = torch.ones(count, flat.numel(), dtype=torch.bool)

    def advance(self, z: Tensor, step: int, *, check: bool) -> None:
        """Take a step with a flat gradient, or its square; `check` looks at the codes as well."""
        scaled = z * (1 - self._beta)
        self.before[0].copy_(self.after[0].mul_(self._beta).add_(scaled))
        group = max(1, GROUP // max(1, len(z)))
        for low in range(1, len(self.after), group):
            rows = slice(low, low + group)
            torch.mul(self.after[rows], self._beta, out=self.before[rows]).add_(scaled)
            for row in range(low, min(low + group, len(self.after))):
                self._encode(row, step, check)

    def _keyed(self, q: Quantizer, step: int) -> RoundingKey | None:
        return q.noise(replace(self._key, step=step))

    def _encode(self, row: int, step: int, check: bool) -> None:
        state = self._states[row - 1]
        x = self.before[row].view(self._shape)
        key = self._keyed(state.quantizer, step)
        target = self.after[row].view(self._shape)
        parts, q = (state.packed, state.scales), state.quantizer
        # Without the checks of `Quantizer`, which cost as much as a small tensor's work.
        dispatch.quantize(x, q.normalizer, q.map, key, parts)
        dispatch.dequantize(*parts, q.normalizer, q.map, self._shape, torch.float32, target)
        if check:
            self._held[row - 1] &= state.codes().view(-1) == self._codes[row - 1]

    def measures(self) -> list[dict[str, float]]:
        """The measures of each quantizer as in `qmaps.replay.run`, after at least one step."""
        movement = (self.after[0] - self._start).view(self._shape)
        measures = []
        for first, held in zip(self._first, self._held, strict=True):
            movers = gaps.moved(first, movement).view(-1)
            moved = int(movers.sum())
            measures.append(
                {
                    "moved_share": moved / max(1, len(self._start)),
                    "stalled_share": share(int((movers & held).sum()), moved),
                }
            )
        return measures


UNMOVED = {"moved_share": math.nan, "stalled_share": math.nan}
"""`Recursion.measures` of a moment in 32 bits."""


def _small(state: QuantizedTensor) -> Tensor:
    """The codes in as few bytes as hold them."""
    return state.codes().to(torch.uint8 if state.quantizer.map.bits <= 8 else torch.int32)


def largest_possible(betas: tuple[float, float], step: int) -> float:
    """The largest update of exact Adam at a step from 1 on, for any gradients.

    By the Cauchy-Schwarz inequality ``m^2 <= (1 - beta1)^2 / (1 - beta2) * sum(r^k) * v``, where
    r = beta1^2 / beta2 and k counts the gradients from 0 to ``step - 1``. Bias corrections make of
    it a bound of the update. At betas of 0.9 and 0.999 it tends to 7.27; where beta1^2 is not below
    beta2, it grows without limit.
    """
    beta1, beta2 = betas
    if beta2 == 0:
        return math.inf if beta1 else 1.0
    r = beta1**2 / beta2
    # The sum as it would overflow or be 0 / 0 otherwise.
    total = step if math.isclose(r, 1) else math.expm1(min(700.0, step * math.log(r))) / (r - 1) \
        if r > 0 else 1.0  # fmt: skip
    bound = (1 - beta1) * math.sqrt(total / (1 - beta2))
    return bound * math.sqrt(1 - beta2**step) / (1 - beta1**step)


class Updates:
    """Measures of the updates of many pairs: rows of both moments; 0 is the exact one."""

    def __init__(
        self, pairs: Sequence[tuple[int, int]], betas: tuple[float, float], eps: float, numel: int
    ) -> None:
        self._pairs = torch.tensor([(0, 0), *pairs], dtype=torch.int64).T.contiguous()
        self._betas, self._eps, self._numel = betas, eps, max(1, numel)
        count = len(pairs) + 1
        self._kept, self._spent, self._shared = torch.zeros(3, count, dtype=torch.float64)
        self._path = torch.zeros(count, self._numel, dtype=torch.float32)
        self._largest = torch.zeros(count, dtype=torch.float32)
        self._exploded, self._zeroed = torch.zeros(2, count, dtype=torch.int64)
        self._steps = self._checks = 0
        self._denominators: Tensor | None = None
        self._curvature: Tensor | None = None

    def add(self, m: Tensor, v: Tensor, following: Tensor, step: int) -> None:
        """Add the updates of a step.

        Args:
            m: rows of first moments before they are encoded, row 0 exact.
            v: the same for the second moment.
            following: the next gradient, flat.
            step: number of the step, at least 1.
        """
        beta1, beta2 = self._betas
        bound = largest_possible(self._betas, step) * (1 + 1e-5)
        if self._denominators is None:
            self._denominators = torch.empty_like(v)
        group = max(1, GROUP // self._numel)
        for low in range(0, len(v), group):
            part = self._denominators[low : low + group]
            torch.sqrt(v[low : low + group], out=part)
            part.div_(math.sqrt(1 - beta2**step)).add_(self._eps).mul_(1 - beta1**step)
        self._steps += 1
        # Without eps: where the exact moment is 0, the loss does not depend on the element.
        self._curvature = v[0].div(1 - beta2**step).sqrt_()
        exact = m[0].mul(self._curvature).div_(self._denominators[0])
        for low in range(0, self._pairs.shape[1], group):
            rows = slice(low, low + group)
            first, second = self._pairs[:, rows]
            update = m.index_select(0, first).div_(self._denominators.index_select(0, second))
            self._path[rows] += update
            self._kept[rows] += (update @ following).double()
            # Several times as fast as the norm of this order.
            largest = torch.maximum(update.amax(dim=1), -update.amin(dim=1))
            self._largest[rows] = torch.maximum(self._largest[rows], largest)
            for row in (~(largest <= bound)).nonzero().view(-1).tolist():
                self._exploded[low + row] += int((~(update[row].abs() <= bound)).sum())
            self._shared[rows] += (update @ exact).double()
            self._spent[rows] += (update.square_() @ self._curvature).double()

    def check(self, m: Tensor, v: Tensor) -> None:
        """Look for zero points in rows of decoded moments, row 0 exact."""
        self._checks += 1
        zeroed = (v == 0) & (v[0] != 0)
        any_zeroed = zeroed.any(dim=1)
        for index, (first, second) in enumerate(self._pairs.T.tolist()):
            if any_zeroed[second]:
                self._zeroed[index] += int((zeroed[second] & (m[first] != 0)).sum())

    def measures(self) -> list[dict[str, float]]:
        """The sums for `shares`, and the measures of each pair, as in `qmaps.replay.run`."""
        updates, looked = self._steps * self._numel, max(1, self._checks) * self._numel
        measured = []
        path = self._path[0]
        length = self._curved(path)
        for index in range(1, len(self._path)):
            sums = {
                "descent": float(self._kept[0]),
                "kept_descent": float(self._kept[index]),
                "cost": float(self._spent[0]),
                "spent_cost": float(self._spent[index]),
                "shared_cost": float(self._shared[index]),
                "displacement": length,
                "displacement_gap": self._curved(self._path[index] - path),
            }
            measures, largest = shares(sums), float(self._largest[index])
            measured.append(
                {
                    **sums,
                    **measures,
                    "explosion_share": int(self._exploded[index]) / updates,
                    "largest_update": largest,
                    "step_cost": step_cost(
                        measures["update_gain"], measures["update_noise"], largest
                    ),
                    "zero_point_share": int(self._zeroed[index]) / looked,
                }
            )
        return measured

    def _curved(self, way: Tensor) -> float:
        """The squared length of a vector under the curvature of the last step."""
        assert self._curvature is not None
        return float(way.double().square() @ self._curvature.double())


def shares(sums: Mapping[str, float]) -> dict[str, float]:
    """The measures of `qmaps.replay.run` from its sums, of one parameter or of several together."""
    spent, gain = (share(sums[name], sums["cost"]) for name in ("spent_cost", "shared_cost"))
    return {
        "progress": share(sums["kept_descent"], sums["descent"]),
        "update_gain": gain,
        "update_noise": math.nan if math.isnan(spent) else math.sqrt(max(0.0, spent - gain**2)),
        "displacement_error": share(sums["displacement_gap"], sums["displacement"]),
    }


def share(numerator: float, denominator: float) -> float:
    """The ratio; NaN if `denominator` is not above 0."""
    return numerator / denominator if denominator > 0 else math.nan
