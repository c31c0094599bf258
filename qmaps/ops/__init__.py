"""Operations on quantized tensors: the one place that chooses an engine."""
