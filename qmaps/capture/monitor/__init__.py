"""A monitor of quantized states while an optimizer trains."""

from qmaps.capture.monitor.monitor import Monitor
from qmaps.capture.monitor.thresholds import Thresholds

__all__ = ["Monitor", "Thresholds"]
