"""A monitor of quantized states while an optimizer trains."""

from qmaps.capture.monitor.measures import Thresholds
from qmaps.capture.monitor.monitor import Monitor

__all__ = ["Monitor", "Thresholds"]
