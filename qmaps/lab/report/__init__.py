"""A run folder as one self-contained HTML page."""

from qmaps.lab.report.page import write

__all__ = ["write"]
