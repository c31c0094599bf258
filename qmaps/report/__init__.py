"""A run folder as one self-contained HTML page."""

from qmaps.report.markdown import write_markdown
from qmaps.report.page import write

__all__ = ["write", "write_markdown"]
