"""The CUDA engine: kernels compiled at first use, and the Python that launches them."""
