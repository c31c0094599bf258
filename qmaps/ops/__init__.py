"""Operations on quantized tensors; chooses the engine of a tensor."""
