"""Memory efficient optimizers with 4-bit states."""

from reproduction.exhibit import Paper

PAPER = Paper.of(
    __name__,
    name="4-bit-optimizers",
    title="Memory efficient optimizers with 4-bit states",
    source="Li, Chen and Zhu (2023)",
)
