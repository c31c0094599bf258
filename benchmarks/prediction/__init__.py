"""Whether errors over steps predict what a quantizer costs in training."""
