"""Engines for quantizers and optimizer steps: PyTorch and C++, with the same bits; shards."""
