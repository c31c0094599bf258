"""8-bit Adafactor: a project's page, which makes claims and prints no numbers."""

from reproduction.adafactor_8bit import (
    log_space_quantization,
    memory_footprint,
    quantization_precision,
    training_speed,
)
from reproduction.exhibit import Paper

PAPER = Paper(
    name="8-bit-adafactor",
    title="8-bit Adafactor with log-space quantization",
    source="The project's page (release 0.1.8), which prints no numbers",
    exhibits=(
        quantization_precision.EXHIBIT,
        log_space_quantization.EXHIBIT,
        memory_footprint.EXHIBIT,
        training_speed.EXHIBIT,
    ),
)
