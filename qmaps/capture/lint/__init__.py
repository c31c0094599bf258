"""Problems of saved optimizer states: what a checkpoint has lost, or cannot mean."""

from qmaps.capture.lint.file import lint_file
from qmaps.capture.lint.finding import Finding

__all__ = ["Finding", "lint_file"]
