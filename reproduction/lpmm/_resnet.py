"""Residual networks of bottleneck blocks, as shapes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

Shape = tuple[int, ...]
CLASSES, IMAGE, EXPANSION = 1000, 224, 4
VALUE, INDEX = 4, 8
"""Bytes of an activation, and of a place in pooling."""


@dataclass(frozen=True)
class ResNet:
    """A residual network for images of 224 x 224 in 1000 classes.

    Attributes:
        width: channels of the first layer; the published networks have 64.
        blocks: of each of the four stages; (3, 4, 6, 3) is ResNet-50.

    Source: He, Zhang, Ren and Sun (2016), *Deep residual learning for image recognition*, table 1.
    """

    width: int = 64
    blocks: tuple[int, int, int, int] = (3, 4, 6, 3)

    def deeper(self, more: int) -> ResNet:
        """With more blocks in the third stage, as ResNet-101 has."""
        first, second, third, last = self.blocks
        return replace(self, blocks=(first, second, third + more, last))

    def convolutions(self) -> Iterator[tuple[Shape, int]]:
        """Shape of each kernel, and the side of its output; normalization follows each."""
        width, into, side = self.width, self.width, IMAGE // 4
        yield (width, 3, 7, 7), IMAGE // 2
        for stage, blocks in enumerate(self.blocks):
            inner = width * 2**stage
            for block in range(blocks):
                before = side
                if block == 0 and stage:
                    side //= 2
                yield (inner, into, 1, 1), before
                yield (inner, inner, 3, 3), side
                yield (EXPANSION * inner, inner, 1, 1), side
                if block == 0:
                    yield (EXPANSION * inner, into, 1, 1), side
                into = EXPANSION * inner

    def shapes(self) -> Iterator[Shape]:
        """Shape of every parameter."""
        for kernel, _ in self.convolutions():
            yield kernel
            yield kernel[:1]
            yield kernel[:1]
        features = EXPANSION * self.width * 2 ** (len(self.blocks) - 1)
        yield (CLASSES, features)
        yield (CLASSES,)

    def activations(self) -> int:
        """Bytes of the stored activations of one image for the backward pass, in 32 bits.

        The input, the output of each convolution (for normalization), the output of each rectifier
        (for the next layer), and pooling's places. A block has three convolutions and three
        rectifiers; the shortcut of the first block of a stage has no rectifier.
        """
        convolutions = list(self.convolutions())
        returned = [kernel[0] * side * side for kernel, side in convolutions]
        shortcuts = 0
        place = 1
        for blocks in self.blocks:
            shortcuts += returned[place + 3]
            place += 3 * blocks + 1
        pooled = self.width * (IMAGE // 4) ** 2
        values = 3 * IMAGE * IMAGE + 2 * sum(returned) - shortcuts + pooled
        return VALUE * values + INDEX * pooled
