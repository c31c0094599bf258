"""The CUDA engine: kernels compiled at first use, and their launchers in Python."""
