"""Analyses for the papers' pages only: numbers in, tidy frames out."""

from reproduction.analyses.bit_fields import bit_fields
from reproduction.analyses.error_per_decade import error_per_decade

__all__ = ["bit_fields", "error_per_decade"]
