"""Figures: frames of `qmaps.analyze` in, matplotlib figures out."""

from qmaps.figures.bin_changes import bin_changes
from qmaps.figures.bit_fields import bit_fields
from qmaps.figures.code_pairs import code_pairs
from qmaps.figures.convergence_bound import convergence_bound
from qmaps.figures.error_curves import error_curves
from qmaps.figures.error_per_decade import error_per_decade
from qmaps.figures.first_code_error import first_code_error
from qmaps.figures.histogram import histogram
from qmaps.figures.inverse_sqrt import inverse_sqrt
from qmaps.figures.loss_curves import loss_curves
from qmaps.figures.map_curves import map_curves
from qmaps.figures.outliers import outliers
from qmaps.figures.pareto import pareto
from qmaps.figures.save import save
from qmaps.figures.sensitivity import sensitivity
from qmaps.figures.speedup import speedup
from qmaps.figures.stability import stability
from qmaps.figures.update_error import update_error
from qmaps.figures.update_histogram import update_histogram

__all__ = [
    "bin_changes",
    "bit_fields",
    "code_pairs",
    "convergence_bound",
    "error_curves",
    "error_per_decade",
    "first_code_error",
    "histogram",
    "inverse_sqrt",
    "loss_curves",
    "map_curves",
    "outliers",
    "pareto",
    "save",
    "sensitivity",
    "speedup",
    "stability",
    "update_error",
    "update_histogram",
]
