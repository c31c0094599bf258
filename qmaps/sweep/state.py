"""One state of a large parameter, of which a chunk is in memory at a time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from qmaps import metrics
from qmaps.algebra.quantized import QuantizedTensor
from qmaps.algebra.quantizer import Quantizer, fit_normalized
from qmaps.analyze._updates import Moment
from qmaps.capture import CapturedStates
from qmaps.capture.snapshot import Part
from qmaps.engines import dispatch, reference
from qmaps.engines.philox import RoundingKey
from qmaps.errors import BadValueError
from qmaps.maps.base import table
from qmaps.maps.fitted import FittedMap
from qmaps.normalize.base import Normalizer, Scales
from qmaps.normalize.tensor import PerTensor
from qmaps.sweep.chunks import pieces, ranges, step_of, unit_of
from qmaps.sweep.spanning import Elementwise, Scaler, is_local, scaler_of

ELEMENTWISE = Elementwise()
PER_TENSOR = PerTensor()


def refuse_factors(quantizers: Iterable[Quantizer]) -> None:
    """Raise where a quantizer needs whole matrices, of which only parts are read."""
    for q in quantizers:
        if q.low_rank is not None:
            raise BadValueError(
                f"{q.spec} keeps factors of whole matrices; sweep it without sample, and with "
                "memory for the largest"
            )


@dataclass
class Looks:
    """What the first pass tells of the elements of a state.

    Attributes:
        square: sum of their squares.
        negative: how many are negative.
        first_negative: number of the first of them.
    """

    square: float = 0.0
    negative: int = 0
    first_negative: int = -1

    def look(self, x: Tensor, begin: int) -> None:
        """Look at a chunk; as `Scaler.look`."""
        self.square += float(np.square(x.numpy(), dtype=np.float64).sum())
        if x.min() < 0:
            negative = x < 0
            if not self.negative:
                self.first_negative = begin + int(negative.int().argmax())
            self.negative += int(negative.sum())


@dataclass
class State:
    """One state of a parameter, opened.

    Attributes:
        shape: its shape.
        read: reads its elements.
        looks: what is known of them.
        scalers: what finds the scales of each normalizer with scales that are not of blocks alone.
        frozen: quantizers with fitted maps, with the codebooks that were fitted.
    """

    shape: tuple[int, ...]
    read: Part
    looks: Looks = field(default_factory=Looks)
    scalers: dict[Normalizer, Scaler] = field(default_factory=dict)
    frozen: dict[Quantizer, Quantizer] = field(default_factory=dict)

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @classmethod
    def of(
        cls, states: CapturedStates, parameter: str, name: str, quantizers: Sequence[Quantizer]
    ) -> State:
        """Open a state and take the first pass over it.

        Args:
            states: the states that hold the parameter.
            parameter: its name.
            name: the name of the state.
            quantizers: quantizers whose scales may be asked for.

        Raises:
            CaptureError: the state cannot be read, or holds NaN or infinity.
            BadValueError: a quantizer has a low-rank part.
        """
        refuse_factors(quantizers)
        state = cls(states.shape(parameter, name), states.opened(parameter, name))
        dims = len(state.shape)
        looking: dict[int, list[Looks | Scaler]] = {step_of([], dims): [state.looks]}
        for q in quantizers:
            if q.normalizer not in state.scalers and not is_local(q.normalizer, dims):
                scaler = state.scalers[q.normalizer] = scaler_of(q.normalizer, state.shape)
                looking.setdefault(step_of([q], dims), []).append(scaler)
        for step, each in looking.items():
            for begin, end in ranges(state.numel, step):
                x = state.read(begin, end)
                for one in each:
                    one.look(x, begin)
        for scaler in state.scalers.values():
            scaler.finish()
        return state

    def bits(self, q: Quantizer | None) -> float:
        """Bits per element under a quantizer, or in 32 bits."""
        if q is None:
            return 32.0
        return 8 * self.frozen.get(q, q).nbytes(self.shape) / self.numel

    def fit(self, quantizers: Sequence[Quantizer]) -> None:
        """Fit the maps that are fitted to the state, those of one normalizer together.

        Raises:
            BadValueError: a map is unsigned, and elements are negative.
        """
        groups: dict[Normalizer, list[Quantizer]] = {}
        for q in quantizers:
            if self.looks.negative and not q.map.signed:
                raise BadValueError(
                    f"x holds {self.looks.negative} negative elements, the first at flat index "
                    f"{self.looks.first_negative}; {q.map.spec} is unsigned; use a signed map"
                )
            if isinstance(q.map, FittedMap):
                groups.setdefault(q.normalizer, []).append(q)
        for chosen in groups.values():
            self.frozen |= dict(zip(chosen, self._fitted(chosen), strict=True))

    def _fitted(self, quantizers: Sequence[Quantizer]) -> list[Quantizer]:
        """Quantizers of one normalizer, fitted to pieces of whole blocks, spread evenly."""
        normalizer = quantizers[0].normalizer
        n, scale = [], []
        for begin, end in pieces(self.numel, unit_of(quantizers[:1], len(self.shape))):
            x = self.read(begin, end)
            scale.append(self._scale(normalizer, x, begin))
            n.append(ELEMENTWISE.normalize(x, (scale[-1],)))
        return fit_normalized(quantizers, torch.cat(n), torch.cat(scale))

    def _scale(self, normalizer: Normalizer, x: Tensor, begin: int) -> Tensor:
        """The scale of each element of a chunk."""
        if normalizer in self.scalers:
            return self.scalers[normalizer].expanded(x, begin)
        shape = tuple(x.shape)
        return normalizer.expand(normalizer.scales(x), shape).expand(shape)

    def encoded(self, q: Quantizer, x: Tensor, begin: int) -> tuple[metrics.Sums, Moment]:
        """Encode a chunk of whole blocks.

        Args:
            q: the quantizer; its map is fitted if it is one to be fitted.
            x: the chunk's elements, float32 of shape (n,).
            begin: number of the first one.

        Returns:
            The sums of the errors, and the chunk as it is stored or what it decodes to.
        """
        fitted = self.frozen.get(q, q)
        key = RoundingKey(offset=begin) if q.rounding.random else None
        normalizer, shape = q.normalizer, tuple(x.shape)
        given: Scales | None = None
        if normalizer in self.scalers:
            scaler = self.scalers[normalizer]
            normalizer, given = PER_TENSOR, scaler.one
            if given is None:
                normalizer, given = ELEMENTWISE, (scaler.expanded(x, begin),)
        found = None
        if not q.extra:
            found = dispatch.measure(x, normalizer, fitted.map, key, keep=True, given=given)
        if found is not None:
            sums, packed, scales, _ = found
            assert packed is not None
            stored = fitted if given is None else Quantizer(normalizer, fitted.map)
            return sums, QuantizedTensor(stored, shape, packed, scales)
        codes, scales = reference.quantize(
            x, normalizer, fitted.map, key, given, dithered=q.dithered
        )
        away = key if q.dithered else None
        decoded = reference.dequantize(codes, scales, normalizer, fitted.map, away)
        return metrics.Sums.of(x, decoded, codes, table(fitted.map).numel()), decoded
