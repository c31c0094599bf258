"""Training with the whole model memory in low precision: the ablations of LPMM, and 12/8/8."""
