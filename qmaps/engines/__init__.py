"""Engines for quantizers and optimizer steps: PyTorch, C++ and CUDA, with the same bits."""
