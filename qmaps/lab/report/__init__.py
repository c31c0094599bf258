"""A run folder as one self-contained HTML page."""

from qmaps.lab.report.page import write, write_markdown

__all__ = ["write", "write_markdown"]
