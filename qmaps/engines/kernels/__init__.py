"""C++ of one element's computation, which the native engine and CUDA compile."""
