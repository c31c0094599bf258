"""Layers for models with quantized optimizer states."""

from qmaps.nn.stable_embedding import StableEmbedding

__all__ = ["StableEmbedding"]
