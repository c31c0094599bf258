"""The Triton engine: kernels traced from update rules in Python, for GPUs of every maker."""
