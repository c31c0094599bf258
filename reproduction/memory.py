"""Memory of training published models, from the shapes of their parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources

import pandas as pd

import qmaps
from qmaps.optim.presets import preset

Shape = tuple[int, ...]
GIB = 2**30
STATES = ("exp_avg", "exp_avg_sq")
RESERVE = 0.5
"""GiB of a device's memory that no tensor of the training gets. A context of CUDA takes 0.3 to 0.5
GiB, and what the allocator rounds up comes on top."""
MIN_QUANTIZED_SIZE = 4096
FACTORED = "factored"
"""A second moment as means of rows and columns."""


@dataclass(frozen=True)
class Architecture:
    """Sizes of a published transformer.

    Attributes:
        name: as published.
        kind: ``gpt`` (layer norms, biases), ``llama`` or ``mt5`` (encoder and decoder).
        vocabulary, positions, width, layers, heads, inner, ff: `inner` is the width of all heads
            together, `ff` the width of the feed-forward network.
    """

    name: str
    kind: str
    vocabulary: int
    positions: int
    width: int
    layers: int
    heads: int
    inner: int
    ff: int

    def shapes(self) -> Iterator[tuple[str, Shape]]:
        """Name and shape of every parameter; a tied head is counted once."""
        h, f, inner = self.width, self.ff, self.inner
        yield "tokens", (self.vocabulary, h)
        if self.positions:
            yield "positions", (self.positions, h)
        attention: list[Shape] = [(inner, h), (inner, h), (inner, h), (h, inner)]
        biases: list[Shape] = [(inner,), (inner,), (inner,), (h,), (f,), (h,)]
        norms: list[Shape] = [(h,), (h,), (h,), (h,)]
        gated: list[Shape] = [(f, h), (f, h), (h, f)]
        plain: list[Shape] = [(f, h), (h, f)]
        layer: list[Shape]
        if self.kind == "gpt":
            layer, sides = attention + plain + biases + norms, [1]
        elif self.kind == "llama":
            layer, sides = attention + gated + norms[:2], [1]
        else:
            layer, sides = attention + gated + norms[:2], [1, 2]
        for side in sides:
            # A decoder attends to the encoder as well.
            extra = [*attention, (h,)] if side == 2 else []
            for number in range(self.layers):
                for index, shape in enumerate([*layer, *extra]):
                    yield f"{side}.{number}.{index}", shape
        if self.kind != "gpt":
            yield "head", (self.vocabulary, h)
        yield "norm", (h,)

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(math.prod(shape) for _, shape in self.shapes())

    def states(self, quantizers: dict[str, str | None], *, stable_embedding: bool = False) -> int:
        """Bytes of both moments.

        Args:
            quantizers: spec of each of `STATES`, None for 32 bits, or `FACTORED`.
            stable_embedding: whether the embedding's states stay in 32 bits.
        """
        total = 0
        for name, shape in self.shapes():
            plain = stable_embedding and name == "tokens"
            for state in STATES:
                total += state_bytes(shape, None if plain else quantizers[state])
        return total

    def activations(self, tokens: int, value: int = 2) -> int:
        """Bytes of the stored activations of one sequence for the backward pass.

        Source: Korthikanti and others (2022), *Reducing activation recomputation in large
        transformer models*, equation 1: sixteen values and two masks of a byte for each element of
        a layer, two values and a mask for each pair of tokens and head; and logits, twice in 32
        bits.

        Args:
            tokens: tokens of the sequence.
            value: bytes of an activation; 2 is mixed precision.
        """
        sides = 2 if self.kind == "mt5" else 1
        pairs = (2 * value + 1) * self.heads * tokens / self.width
        layer = tokens * self.width * (16 * value + 2 + pairs)
        return round(sides * self.layers * layer) + (value + 8) * tokens * self.vocabulary

    def training(self, quantizers: dict[str, str | None], tokens: int) -> int:
        """Bytes of mixed-precision training with one sequence.

        Weights in 32 and 16 bits, gradients in 32, both moments, activations.
        """
        return 10 * self.parameters + self.states(quantizers) + self.activations(tokens)


def state_bytes(shape: Shape, spec: str | None) -> int:
    """Bytes of one state of a parameter of this shape."""
    numel = math.prod(shape)
    if spec is None:
        return 4 * numel
    if spec == FACTORED:
        return 4 * (numel // shape[-1] + numel // shape[-2]) if len(shape) > 1 else 4 * numel
    return qmaps.quantizer(spec).nbytes(shape) if numel > MIN_QUANTIZED_SIZE else 4 * numel


def quantizers(name: str) -> dict[str, str | None]:
    """Specs of both moments under a preset."""
    return preset(name).specs(STATES, ("exp_avg",))


def architectures() -> dict[str, Architecture]:
    """Published models by name."""
    file = resources.files("reproduction").joinpath("architectures.csv")
    with file.open(encoding="utf-8") as lines:
        frame = pd.read_csv(lines, comment="#")
    return {
        str(row["name"]): Architecture(**{str(key): value for key, value in row.items()})
        for row in frame.to_dict("records")
    }


def max_model(family: str, memory_gb: float, low: dict[str, str | None], tokens: int) -> str:
    """The largest trainable model of a family in so many GiB; ``none`` if none fits.

    The device itself, its driver and the fragments of its allocator take `RESERVE` of them.
    """
    fitting = [
        model
        for name, model in architectures().items()
        if name.startswith(family) and model.training(low, tokens) <= (memory_gb - RESERVE) * GIB
    ]
    return max(fitting, key=lambda model: model.parameters).name if fitting else "none"
