"""Speed of qmaps on a CUDA device; see `benchmarks.gpu.__main__`."""
