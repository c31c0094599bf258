"""8-bit approximations for parallelism in deep learning."""

from reproduction.exhibit import Paper

PAPER = Paper.of(
    __name__,
    name="8-bit-parallelism-2015",
    title="8-bit approximations for parallelism in deep learning",
    source="Dettmers (2015)",
)
