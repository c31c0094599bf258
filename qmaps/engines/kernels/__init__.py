"""C++ of one element's computation, compiled by the native engine and CUDA."""
