"""Layers for models whose optimizer states are quantized."""

from qmaps.nn.stable_embedding import StableEmbedding

__all__ = ["StableEmbedding"]
