"""Numbers printed in the papers: ``papers/<paper>/<exhibit>.csv``."""

from __future__ import annotations

from decimal import Decimal
from importlib import resources

import pandas as pd

from qmaps.errors import BadValueError

PRINTED = {"paper": str, "paper_spread": str}
"""Columns that are read as text: the last digits that are printed count."""
FIELDS = ("what", "quantity", "unit", "paper", "paper_spread")


def published(paper: str, exhibit: str) -> pd.DataFrame:
    """The numbers of a paper's figure or table.

    Args:
        paper: Name of the paper, such as ``8-bit-optimizers``.
        exhibit: Name of the figure or table, such as ``table-6``.

    Returns:
        `what` (row of the table), `quantity` (its column), `unit`, `paper`, `paper_spread`
        (the ± of the paper; NaN without one), `better` (``more`` or ``less``: the better direction
        of a metric not measured here; else empty), `doubt` (key of the paper's words against its
        own number; else empty), `rounding` (half a unit of the last printed digit), `printed` (the
        number and its ± as printed).

    Raises:
        BadValueError: nothing is published under these names.
    """
    frame = rows(paper, exhibit, FIELDS, better="", doubt="")
    return frame.assign(
        rounding=frame["paper"].map(_rounding),
        printed=frame["paper"] + (" ± " + frame["paper_spread"]).fillna(""),
        paper=pd.to_numeric(frame["paper"]),
        paper_spread=pd.to_numeric(frame["paper_spread"]),
    )


def _rounding(printed: str) -> float:
    return 0.5 * 10.0 ** int(Decimal(printed).as_tuple().exponent)


def rows(paper: str, exhibit: str, columns: tuple[str, ...], **optional: str) -> pd.DataFrame:
    """These columns as printed; optional ones with their values for missing entries."""
    file = resources.files("qmaps.lab.report").joinpath("papers", paper, f"{exhibit}.csv")
    if not file.is_file():
        raise BadValueError(f"exhibit={exhibit!r} of {paper!r} has no published numbers")
    with file.open(encoding="utf-8") as lines:
        frame = pd.read_csv(lines, comment="#", skipinitialspace=True, dtype=PRINTED)
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise BadValueError(f"{paper}/{exhibit}.csv lacks {', '.join(missing)}")
    for column, nothing in optional.items():
        frame[column] = frame[column].fillna(nothing) if column in frame.columns else nothing
    return frame[[*columns, *optional]]
