"""Layers that go with optimizers of few bits."""

from qmaps.nn.stable_embedding import StableEmbedding

__all__ = ["StableEmbedding"]
