"""Quantizers: a normalizer composed with a map, their specs, and the tensors they make."""
