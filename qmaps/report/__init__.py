"""A run folder as one self-contained HTML page."""

from qmaps.report.page import write

__all__ = ["write"]
