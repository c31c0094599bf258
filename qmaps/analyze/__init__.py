"""Analyses of optimizer states: captured states in, tidy frames out."""

from qmaps.analyze.code_pairs import code_pairs, first_code_error
from qmaps.analyze.histogram import histogram, inverse_sqrt, map_curves
from qmaps.analyze.outliers import outlier_lines, outliers
from qmaps.analyze.pareto import pareto
from qmaps.analyze.update_error import update_error

__all__ = [
    "code_pairs",
    "first_code_error",
    "histogram",
    "inverse_sqrt",
    "map_curves",
    "outlier_lines",
    "outliers",
    "pareto",
    "update_error",
]
