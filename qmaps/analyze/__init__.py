"""Analyses of optimizer states: captured states in, tidy frames out."""

from typing import TYPE_CHECKING

from qmaps.registry import lazy

if TYPE_CHECKING:
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

lazy(
    __name__,
    {
        "code_pairs": (
            "code_pairs",
            "first_code_error",
        ),
        "histogram": (
            "histogram",
            "inverse_sqrt",
            "map_curves",
        ),
        "outliers": (
            "outlier_lines",
            "outliers",
        ),
        "pareto": ("pareto",),
        "update_error": ("update_error",),
    },
)
