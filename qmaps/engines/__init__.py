"""Engines that run quantizers and optimizer steps: PyTorch, C++ and CUDA, with the same bits."""
