"""Engines for quantizers and optimizer steps: PyTorch, C++, Triton, with the same bits; shards."""
