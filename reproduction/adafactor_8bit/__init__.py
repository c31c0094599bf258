"""8-bit Adafactor: the page of a project, with claims but no numbers."""

from reproduction.exhibit import Paper

PAPER = Paper.of(
    __name__,
    name="8-bit-adafactor",
    title="8-bit Adafactor with log-space quantization",
    source="The project's page (release 0.1.8), which prints no numbers",
)
