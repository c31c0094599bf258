"""CUDA kernels will live here. Until they do, CUDA tensors run on `qmaps.reference`."""
