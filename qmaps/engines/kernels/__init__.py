"""What one element goes through, in C++ that the native engine and CUDA compile."""
