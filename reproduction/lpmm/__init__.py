"""Training neural networks with low-precision model memory."""

from reproduction.exhibit import Paper

PAPER = Paper.of(
    __name__,
    name="low-precision-model-memory",
    title="Training neural networks with low-precision model memory",
    source="LPMM",
)
