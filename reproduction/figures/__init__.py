"""Figures for the papers' pages and benchmarks only: frames in, matplotlib figures out."""

from reproduction.figures.bin_changes import bin_changes
from reproduction.figures.bit_fields import bit_fields
from reproduction.figures.convergence_bound import convergence_bound
from reproduction.figures.error_curves import error_curves
from reproduction.figures.error_per_decade import error_per_decade
from reproduction.figures.sensitivity import sensitivity
from reproduction.figures.speedup import speedup
from reproduction.figures.update_histogram import update_histogram

__all__ = [
    "bin_changes",
    "bit_fields",
    "convergence_bound",
    "error_curves",
    "error_per_decade",
    "sensitivity",
    "speedup",
    "update_histogram",
]
