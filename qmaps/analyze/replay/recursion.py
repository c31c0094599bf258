"""The recursion of one moment under many quantizers, beside the exact one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from qmaps.algebra.philox import RoundingKey
from qmaps.algebra.quantizer import QuantizedTensor, Quantizer
from qmaps.ops import dispatch, gaps

GROUP = 2**18
"""Elements that one operation works on, so that they stay in the processor's cache."""


class Recursion:
    """x = beta * x + (1 - beta) * z, exact and under each of several quantizers.

    A quantized state begins as the exact one, encoded. Each step decodes it, applies the formula in
    float32, and encodes the result, as optimizers do; the update uses the state before it is
    encoded. Row 0 of `before` and of `after` is the exact state; the others are those of the
    quantizers, in their order.

    Args:
        start: the state at the start, float32.
        quantizers: the quantizers; fitted maps are fitted to `start` and then kept.
        beta: the decay.
        key: names the random numbers of stochastic rounding; its `step` is replaced.
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
        self._drift = torch.zeros(count, flat.numel(), dtype=torch.float32)
        self._sums = {name: torch.zeros(count, dtype=torch.float64) for name in _SUMS}
        self._exact = 0.0
        self._steps = self._checks = 0
        self._scratch = self.after.new_empty(2, min(count, self._group()), flat.numel())

    def advance(self, z: Tensor, step: int, *, check: bool) -> None:
        """Take one step.

        Args:
            z: what the moment averages: the gradient or its square, flat.
            step: number of the step, for random numbers.
            check: whether to look at the codes as well.
        """
        scaled = z * (1 - self._beta)
        exact = self.after[0].mul_(self._beta).add_(scaled)
        self.before[0].copy_(exact)
        self._exact += float(torch.dot(exact, exact))
        self._steps += 1
        self._checks += check
        for low in range(1, len(self.after), self._group()):
            rows = slice(low, min(low + self._group(), len(self.after)))
            torch.mul(self.after[rows], self._beta, out=self.before[rows]).add_(scaled)
            for row in range(rows.start, rows.stop):
                self._encode(row, step, check)
            self._measure(rows, z, exact)

    def _group(self) -> int:
        return max(1, GROUP // max(1, len(self._start)))

    def _keyed(self, q: Quantizer, step: int) -> RoundingKey | None:
        if not q.rounding.random:
            return None
        key = self._key
        return RoundingKey(seed=key.seed, step=step, tensor=key.tensor, state=key.state)

    def _encode(self, row: int, step: int, check: bool) -> None:
        state = self._states[row - 1]
        previous = state.clone() if check else None
        decoded = self.after[row].clone() if check else None
        x = self.before[row].view(self._shape)
        key = self._keyed(state.quantizer, step)
        target = self.after[row].view(self._shape)
        parts, q = (state.packed, state.scales), state.quantizer
        if q.spec_extensions:
            q.quantize_unchecked(x, out=state, key=key, after=state).dequantize(out=target)
        else:  # without the checks of `Quantizer`, which cost as much as a small tensor's work
            dispatch.quantize(x, q.normalizer, q.map, key, parts)
            dispatch.dequantize(*parts, q.normalizer, q.map, self._shape, torch.float32, target)
        if previous is None or decoded is None:
            return
        now = state.codes()
        self._held[row - 1] &= now.view(-1) == self._codes[row - 1]
        codes = previous.codes()
        changed = now != codes
        if bool(changed.any()):
            moved = self.before[row] - decoded
            position, moved = decoded.view(self._shape), moved.view(self._shape)
            still = moved.abs() < gaps.gap_at(previous, codes, position, moved) / 2
            self._sums["rerounded"][row - 1] += int((changed & still).sum())

    def _measure(self, rows: slice, z: Tensor, exact: Tensor) -> None:
        indices = slice(rows.start - 1, rows.stop - 1)
        before, after, sums = self.before[rows], self.after[rows], self._sums
        first, second = self._scratch[0, : len(before)], self._scratch[1, : len(before)]
        sums["along"][indices] += (after @ exact).double()
        error = torch.sub(after, exact, out=first)
        self._drift[indices] += error
        sums["error"][indices] += _squares(error)
        rounding = torch.sub(after, before, out=first)
        sums["rounding"][indices] += _squares(rounding)
        pull = torch.sub(before, z, out=second)
        sums["pull"][indices] += _squares(pull)
        sums["resisted"][indices] += rounding.mul_(pull).sum(dim=1).double()

    def measures(self) -> list[dict[str, float]]:
        """Return the measures of each quantizer after the steps so far, at least one.

        Returns:
            `gain`, `effective_beta`, `lag`, `bias`, `noise`, `amplification`, `moved_share`,
            `stalled_share` and `rerounded_share`, as `qmaps.analyze.replay.run` defines them.
        """
        numel, count = max(1, len(self._start)), self._steps
        movement = self.after[0] - self._start
        measures = []
        for index, first in enumerate(self._first):
            sums = {name: float(values[index]) for name, values in self._sums.items()}
            bias = float(self._drift[index].double().square().sum()) / count
            resisted = _ratio(sums["resisted"], sums["pull"])
            beta = self._beta * (1 + resisted)
            movers = gaps.moved(first, movement.view(self._shape)).view(-1)
            stalled = int((movers & self._held[index]).sum())
            moved = int(movers.sum())
            measures.append(
                {
                    "gain": _ratio(sums["along"], self._exact),
                    "effective_beta": beta,
                    "lag": beta / (1 - beta) if beta < 1 else float("inf"),
                    "bias": _ratio(bias, self._exact) ** 0.5,
                    "noise": _ratio(max(0.0, sums["error"] - bias), self._exact) ** 0.5,
                    "amplification": _ratio(sums["error"], sums["rounding"]),
                    "moved_share": moved / numel,
                    "stalled_share": _ratio(stalled, moved),
                    "rerounded_share": _ratio(sums["rerounded"], numel * self._checks),
                }
            )
        return measures


def advance(m: Tensor, v: Tensor, gradient: Tensor, betas: tuple[float, float]) -> None:
    """Take one step of both exact moments in place, by the operations of `Recursion`.

    Args:
        m: the first moment, float32.
        v: the second moment, of the same shape.
        gradient: the gradient, of the same shape.
        betas: decay of both moments.
    """
    m.mul_(betas[0]).add_(gradient * (1 - betas[0]))
    v.mul_(betas[1]).add_(gradient * gradient * (1 - betas[1]))


_SUMS = ("along", "error", "rounding", "pull", "resisted", "rerounded")


def exact_measures(beta: float) -> dict[str, float]:
    """`Recursion.measures` of a moment in 32 bits."""
    nan = float("nan")
    return {
        "gain": 1.0,
        "effective_beta": beta,
        "lag": beta / (1 - beta),
        "bias": 0.0,
        "noise": 0.0,
        "amplification": nan,
        "moved_share": nan,
        "stalled_share": nan,
        "rerounded_share": 0.0,
    }


def _small(state: QuantizedTensor) -> Tensor:
    """The codes in as few bytes as hold them."""
    return state.codes().to(torch.uint8 if state.quantizer.map.bits <= 8 else torch.int32)


def _squares(rows: Tensor) -> Tensor:
    """The sum of squares of each row, float64."""
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return norms.double().square()


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else float("nan")
