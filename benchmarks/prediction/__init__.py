"""Prediction of a quantizer's cost in training from its errors over steps."""
