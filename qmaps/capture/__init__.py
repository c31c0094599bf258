"""Captured optimizer states: recording them, and reading them back."""

from qmaps.capture.gradients import Gradients
from qmaps.capture.load import load
from qmaps.capture.monitor import Monitor, Thresholds
from qmaps.capture.recorder import StateRecorder
from qmaps.capture.states import CapturedStates

__all__ = ["CapturedStates", "Gradients", "Monitor", "StateRecorder", "Thresholds", "load"]
