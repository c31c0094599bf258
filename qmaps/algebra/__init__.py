"""Quantizers and quantized tensors as data: fields, specs, packed codes, files."""
