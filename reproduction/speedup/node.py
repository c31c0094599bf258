"""The model of one node with some devices, layer by layer.

Source: 8-bit approximations for parallelism, appendix A.1.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Split:
    """A fully connected layer with its columns split over devices.

    Attributes:
        name: for tables.
        baseline_ms: forward, backward, update on one device.
        parallel_ms: the same of one device's columns.
        sync_ms: synchronization of its activations, by kind of message.
    """

    name: str
    baseline_ms: tuple[float, float, float]
    parallel_ms: tuple[float, float, float]
    sync_ms: dict[str, float]


@dataclass(frozen=True)
class NodeJob:
    """A net on one node: data parallel convolutions, model parallel layers after them.

    Attributes:
        single_ms: a pass on one device.
        gpus: devices.
        layers: the fully connected ones in their order, at least two.
        conv_sync_ms: synchronization of the first layer's input activations.
    """

    single_ms: float
    gpus: int
    layers: tuple[Split, ...]
    conv_sync_ms: dict[str, float]

    @property
    def baseline_fc_ms(self) -> float:
        """The fully connected layers on one device."""
        return sum(sum(layer.baseline_ms) for layer in self.layers)

    @property
    def parallel_fc_ms(self) -> float:
        """One sub-batch through the split layers."""
        return sum(sum(layer.parallel_ms) for layer in self.layers)

    def penalty_ms(self, kind: str) -> float:
        """Unhidden synchronization of a full pass of all sub-batches.

        The first activations of the convolutional part and its last errors hide under nothing. Of
        every sub-batch, the first layer's activations hide under the second layer's product, and
        the last layer's activations and errors under its own.

        Args:
            kind: kind of message, a key of the layers' `sync_ms`.
        """
        first, second, last = self.layers[0], self.layers[1], self.layers[-1]
        after_first = max(0.0, first.sync_ms[kind] - second.parallel_ms[0])
        after_last = max(0.0, last.sync_ms[kind] - last.parallel_ms[0])
        return 2 * self.conv_sync_ms[kind] + self.gpus * (after_first + 2 * after_last)

    def speedup(self, kind: str) -> float:
        """Against one device, on the same samples."""
        conv = self.single_ms - self.baseline_fc_ms
        parallel = conv + self.gpus * self.parallel_fc_ms + self.penalty_ms(kind)
        return self.gpus * self.single_ms / parallel
