"""8-bit optimizers via block-wise quantization."""

from reproduction.exhibit import Paper

PAPER = Paper.of(
    __name__,
    name="8-bit-optimizers",
    title="8-bit optimizers via block-wise quantization",
    source="Dettmers, Lewis, Shleifer and Zettlemoyer (2021)",
)
