"""Whole optimizer steps on the native engine: all parameters in one call."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qmaps.maps.base import FittedMap
from qmaps.native import core, tensors
from qmaps.packing import packed_bytes
from qmaps.philox import RoundingKey
from qmaps.quantizer import QuantizedTensor, Quantizer

if TYPE_CHECKING:
    from qmaps.optim.base import QuantizedOptimizer

Entry = tuple[int, Tensor, dict[str, Any]]
"""Number, parameter, group."""

FLOATS = (torch.float32, torch.bfloat16)


class FusedStep:
    """The native step of one optimizer, and what it remembers from step to step.

    It takes the parameters that it can follow and leaves the others to the reference. States are
    written where they lie; the extra memory is that of a few blocks per thread and, where a scale
    spans more than a block, of one float32 per scale.
    """

    def __init__(self, optimizer: QuantizedOptimizer) -> None:
        self._optimizer = optimizer
        self._facts: list[tuple[Any, ...]] = []
        self._values: list[Any] = []
        self._step: Any = None
        self._settings: list[tuple[Any, ...]] = []
        self._known: dict[int, tuple[Tensor, torch.dtype, tuple[Any, ...]]] = {}

    def __call__(self, entries: Sequence[Entry]) -> list[Entry]:
        """Step the parameters that can be; the others are returned."""
        taken: list[Entry] = []
        left: list[Entry] = []
        same_settings = self._settings_unchanged()
        for entry in entries:
            number, param, group = entry
            known = same_settings and self._is_known(number, param)
            (taken if known or self._follows(param, group) else left).append(entry)
        if taken:
            self._run(taken)
        return left

    def _settings_unchanged(self) -> bool:
        """Whether all groups keep their states, and round, as at the last call."""
        found = [
            (
                dict(group["state_quantizers"]),
                group["min_quantized_size"],
                group["stochastic_rounding"],
            )
            for group in self._optimizer.param_groups
        ]
        unchanged = found == self._settings
        self._settings = found
        return unchanged

    def _is_known(self, number: int, param: Tensor) -> bool:
        """Whether this parameter was taken before and looks as it did.

        Fitted maps are looked at anew each time, for their refits.
        """
        known = self._known.get(number)
        grad = param.grad
        if known is None or known[0] is not param or grad is None or grad.dtype != known[1]:
            return False
        state = self._optimizer.state[param]
        names = self._optimizer.state_names
        return all(state.get(name) is value for name, value in zip(names, known[2], strict=True))

    def _follows(self, param: Tensor, group: dict[str, Any]) -> bool:
        grad = param.grad
        plain = (
            grad is not None
            and param.device.type == "cpu"
            and param.dtype in FLOATS
            and grad.dtype in tensors.DTYPES
            and param.is_contiguous()
            and not (group["stochastic_rounding"] and param.dtype == torch.bfloat16)
        )
        if not plain:
            return False
        state = self._optimizer.state[param]
        ranges = set()
        for name in self._optimizer.state_names:
            q = self._optimizer.quantizer_of(name, param, group)
            value = state.get(name)
            if q is not None and q.normalizer.log_domain:
                ranges.add(q.normalizer)
            if q is None:
                if value is not None and not (
                    value.dtype == torch.float32 and value.is_contiguous()
                ):
                    return False
                continue
            if isinstance(q.map, FittedMap):
                # Fits are the reference's work; between them the codebook stands.
                if value is None or int(state["step"]) % group["refit_every"] == 0:
                    return False
                q = value.quantizer
            if not tensors.follows(q.normalizer, q.map, tuple(param.shape)):
                return False
            if value is not None and (value.quantizer.spec != q.spec or not _contiguous(value)):
                return False
        # Blocks of different log2 ranges need not line up.
        return len(ranges) < 2

    def _run(self, entries: list[Entry]) -> None:
        optimizer = self._optimizer
        for number, param, group in entries:
            if number not in self._known:
                self._start(param, group)
        states = [optimizer.state[param] for _, param, _ in entries]
        counters = [state["step"] for state in states]
        torch._foreach_add_(counters, 1.0)
        steps = [int(count) for count in torch.stack(counters).tolist()]

        grads = [_dense(param.grad) for _, param, _ in entries]
        self._arrange(entries, states, grads)
        constants: list[list[float]] = []
        which: dict[tuple[int, int], int] = {}
        rows = []
        for (_, _, group), step in zip(entries, steps, strict=True):
            key = (id(group), step)
            if key not in which:
                which[key] = len(constants)
                constants.append(list(optimizer.scalars(group, step).values()))
            rows.append(which[key])
        self._step.run(
            [param.data_ptr() for _, param, _ in entries],
            [grad.data_ptr() for grad in grads],
            constants,
            rows,
            steps,
            tensors.threads(sum(param.numel() for _, param, _ in entries)),
        )

    def _start(self, param: Tensor, group: dict[str, Any]) -> None:
        """Give a new parameter its states: zero."""
        state = self._optimizer.state[param]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
        for name in self._optimizer.state_names:
            if name not in state:
                q = self._optimizer.quantizer_of(name, param, group)
                state[name] = (
                    torch.zeros(param.shape, dtype=torch.float32) if q is None else zero(q, param)
                )

    def _arrange(
        self, entries: list[Entry], states: list[dict[str, Any]], grads: list[Tensor]
    ) -> None:
        """Describe the parameters to the engine anew if something has been replaced."""
        names = self._optimizer.state_names
        facts = [
            (number, param.dtype, grad.dtype, group["seed"])
            for (number, param, group), grad in zip(entries, grads, strict=True)
        ]
        values = [state[name] for state in states for name in names]
        if facts == self._facts and all(map(operator.is_, values, self._values)):
            return
        step = core.Step(self._optimizer.native_rule)
        for (number, param, group), state, grad in zip(entries, states, grads, strict=True):
            step.add_parameter(
                param.numel(), tensors.DTYPES[param.dtype], tensors.DTYPES[grad.dtype]
            )
            for index, name in enumerate(names):
                value = state[name]
                if isinstance(value, Tensor):
                    step.add_floats(value.data_ptr())
                    continue
                q = value.quantizer
                key = RoundingKey(seed=group["seed"], tensor=number, state=index)
                step.add_quantized(
                    tensors.codebook(q.map),
                    tensors.geometry(q.normalizer, value.shape),
                    value.packed.data_ptr(),
                    [scale.data_ptr() for scale in value.scales],
                    [key.words()] if q.stochastic else [],
                )
        self._step, self._facts, self._values = step, facts, values
        self._known = {
            number: (param, grad.dtype, tuple(state[name] for name in names))
            for (number, param, _), state, grad in zip(entries, states, grads, strict=True)
            if not any(_fitted(state[name]) for name in names)
        }


def zero(q: Quantizer, like: Tensor) -> QuantizedTensor:
    """A quantized tensor of zeros: every scale is 0."""
    shape = tuple(like.shape)
    packed = torch.zeros(packed_bytes(like.numel(), q.map.bits), dtype=torch.uint8)
    scales = tuple(torch.zeros(size, dtype=dtype) for dtype, size in q.normalizer.layout(shape))
    return QuantizedTensor(q, shape, packed, scales)


def _fitted(value: Tensor | QuantizedTensor) -> bool:
    return isinstance(value, QuantizedTensor) and value.quantizer.map.counted


def _contiguous(value: QuantizedTensor) -> bool:
    return all(part.is_contiguous() for part in (value.packed, *value.scales))


def _dense(grad: Tensor | None) -> Tensor:
    assert grad is not None
    return grad.contiguous()
