"""Steps of low-precision parameters on the native engine.

One pass over each: decode parameter, gradient and states, apply the rule, encode, a few blocks at a
time. The bits are the reference's.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import torch

from qmaps.algebra.quantized import QuantizedTensor
from qmaps.engines.addresses import Kept
from qmaps.engines.fused import Entry, count_step, followed, memory_of, readable, start
from qmaps.engines.native import core, tensors
from qmaps.engines.native.optimizer import add_states, described, rounding
from qmaps.engines.philox import RoundingKey
from qmaps.engines.rules import ordered
from qmaps.lpmm.parameter import LowPrecisionParameter

if TYPE_CHECKING:
    from qmaps.optim.base import QuantizedOptimizer

LONGEST_BLOCK = 8192
"""Elements of a block of the parameter that the engine has room for."""


def fuses(optimizer: QuantizedOptimizer, entry: Entry) -> bool:
    """Whether the native engine can step this parameter."""
    _, param, group, _ = entry
    if not isinstance(param, LowPrecisionParameter) or param.accumulator is None:
        return False
    on_cpu = param.device.type == "cpu" and param.dtype == torch.float32
    if optimizer.native_rule is None or not on_cpu or not param.numel():
        return False
    if not (_local(param.codes) and _follows(param.accumulator.total)):
        return False
    quantizers = [optimizer.quantizer_of(n, param, group) for n in optimizer.states_of(group)]
    if any(q is not None and q.normalizer.log_domain for q in quantizers):
        return False
    return followed(optimizer, entry, tensors.follows)


def _follows(t: QuantizedTensor) -> bool:
    return readable(t) and tensors.follows(t.quantizer.normalizer, t.quantizer.map, t.shape)


def _local(t: QuantizedTensor) -> bool:
    """Whether each scale belongs to one block, short enough to be encoded by itself."""
    found = t.quantizer.normalizer.geometry(t.shape)
    if not _follows(t) or found is None or found.log or len(found.parts) != 1:
        return False
    part = found.parts[0]
    comes_again = part.divisor * part.count < math.prod(t.shape)
    whole = part.divisor * (8 if part.divisor % 8 else 1)
    return part.ends is None and not comes_again and whole <= LONGEST_BLOCK


def _same(one: Any, other: Any) -> bool:
    return one is other or (isinstance(one, (int, str)) and one == other)


class LowPrecisionStep:
    """The engine's step of these parameters, described once and taken again and again.

    Args:
        optimizer: theirs.
        entries: that `fuses` allows.
    """

    def __init__(self, optimizer: QuantizedOptimizer, entries: list[Entry]) -> None:
        self._optimizer = optimizer
        self._entries = entries
        step = core.Step()
        floats = (tensors.DTYPES[torch.float32],) * 2  # of neither, which are codes
        for number, param, group, _ in entries:
            param = cast("LowPrecisionParameter", param)
            assert param.accumulator is not None
            start(optimizer, param, group)
            used = optimizer.states_of(group)
            step.add_parameter(optimizer.native_rule, " ".join(used), param.numel(), *floats)
            key = RoundingKey(seed=group["seed"], purpose=2, tensor=number)
            step.add_parameter_codes(*described(param.codes), rounding(param.codes, key))
            step.add_gradient_codes(*described(param.accumulator.total))
            add_states(step, optimizer, number, param, group, used)
        self._step: Any = step
        self._known = self._looked_at(entries)
        stored = [value for value in self._known if not isinstance(value, LowPrecisionParameter)]
        self._kept = Kept([each for value in stored for each in memory_of(value)])
        self._numel = sum(entry[1].numel() for entry in entries)

    def fits(self, entries: list[Entry]) -> bool:
        """Whether it was made for these, and nothing about them has changed."""
        found = self._looked_at(entries)
        same = len(found) == len(self._known) and all(map(_same, found, self._known))
        return same and self._kept.unchanged()

    def _looked_at(self, entries: list[Entry]) -> list[Any]:
        found: list[Any] = []
        for number, param, group, _ in entries:
            param = cast("LowPrecisionParameter", param)
            assert param.accumulator is not None
            state = self._optimizer.state[param]
            used = self._optimizer.states_of(group)
            stored = [state.get(name) for name in used]
            found += [number, param, group, param.codes, param.accumulator.total, *stored]
            found += [*used, group["seed"]]
        return found

    def run(self) -> None:
        """One step."""
        params = [cast("LowPrecisionParameter", entry[1]) for entry in self._entries]
        steps = [count_step(self._optimizer.state[param]) for param in params]
        rows: dict[tuple[int, int], int] = {}
        constants: list[list[float]] = []
        rule = str(self._optimizer.native_rule)
        which = []
        for (_, _, group, _), step in zip(self._entries, steps, strict=True):
            kind = id(group), step
            if kind not in rows:
                rows[kind] = len(constants)
                constants.append(ordered(rule, self._optimizer.scalars(group, step)))
            which.append(rows[kind])
        nowhere = [0] * len(params)
        threads = tensors.threads(self._numel)
        self._step.run(nowhere, nowhere, constants, which, steps, threads)
        for param, step in zip(params, steps, strict=True):
            assert param.accumulator is not None
            param.writes += 1
            param.accumulator.step = step
