"""Claims of papers: numbers in print (``papers/<paper>/<name>.csv``), and verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from importlib import resources

import pandas as pd

from qmaps.errors import BadValueError

TOLERANCE = 0.1
"""Largest relative difference of a reproduced number from the paper's."""


class Verdict(StrEnum):
    """The verdict on a claim, or on a whole figure or table."""

    REPRODUCED = "reproduced"
    PARTLY = "reproduced in part"
    ORDERING = "same ordering"
    DOUBT = "paper in doubt"
    ELSEWHERE = "another model, data or machine"
    CONTRADICTS = "contradicts"
    DIFFERS = "differs"
    UNDECIDED = "cannot tell"
    NOT_COMPARABLE = "not comparable"
    NOT_COMPARED = "not compared"
    NOT_MADE = "not made yet"


@dataclass(frozen=True)
class Claim:
    """One claim of a paper: a statement, or a number.

    A statement is reproduced if it holds, in part if some of its parts do, and cannot be told if
    `holds` is empty. A number is reproduced if ours differs from it by at most `tolerance` of it
    plus its `spread`, or by its `rounding`. Otherwise it has the same ordering if it is ordered
    among the other numbers of its kind as in the paper. A number without a counterpart is not
    compared. Where a failed claim contradicts others of its paper, the paper is in doubt; such a
    number is never reproduced. Too few runs to tell ours from the paper's cannot tell.

    Attributes:
        text: The claim.
        holds: Whether the measurements support it, or whether they support each of its parts.
            For a number: whether its order to each of the others is the paper's.
        detail: The numbers behind the verdict, or its explanation.
        covers: Whether a statement sums up the numbers of its figure or table, and replaces them
            where they cannot be compared.
        paper: The paper's number; None for a statement.
        spread: The ± of the paper's number.
        rounding: Half a unit of the last digit in print.
        doubt: Why the paper's claim cannot be right; empty if nothing speaks against it.
        difference: The verdict if the claim does not hold: the cause of the difference, where it
            is known.
        undecided: Whether too few runs were counted to tell a number from ours, if it is not
            reproduced.
        comparable: False where machines of two kinds were timed.
        ours: The number measured by this project.
        tolerance: Share of the paper's number; None where ours has another scale, and only the
            ordering can be the same.
    """

    text: str
    holds: bool | Sequence[bool] = ()
    detail: str = ""
    covers: bool = False
    paper: float | None = None
    spread: float = 0.0
    rounding: float = 0.0
    doubt: str = ""
    difference: Verdict = Verdict.DIFFERS
    undecided: bool = False
    comparable: bool = True
    ours: float = math.nan
    tolerance: float | None = TOLERANCE

    @property
    def verdict(self) -> Verdict:
        """The verdict on the claim."""
        if not self.comparable:
            return Verdict.NOT_COMPARABLE
        parts = list(self.holds) if isinstance(self.holds, Sequence) else [self.holds]
        if self.paper is not None:
            return self._of_number(bool(parts) and all(parts))
        if not parts:
            return Verdict.UNDECIDED
        if all(parts):
            return Verdict.REPRODUCED
        if any(parts):
            return Verdict.PARTLY
        return Verdict.DOUBT if self.doubt else self.difference

    def _of_number(self, ordered: bool) -> Verdict:
        assert self.paper is not None
        if math.isnan(self.paper) or math.isnan(self.ours):
            return Verdict.NOT_COMPARED
        if self.doubt:
            return Verdict.DOUBT
        if self.tolerance is not None:
            allowed = self.tolerance * abs(self.paper) + self.spread
            off = abs(self.ours - self.paper)
            if off <= allowed or off < self.rounding * (1 + 1e-9):
                return Verdict.REPRODUCED
        if self.undecided:
            return Verdict.UNDECIDED
        return Verdict.ORDERING if ordered else self.difference


PRINTED = {"paper": str, "paper_spread": str}
"""Columns read as text, to keep the last printed digits."""
FIELDS = ("what", "quantity", "unit", "paper", "paper_spread")


def published(paper: str, exhibit: str) -> pd.DataFrame:
    """The numbers of a paper's figure or table, such as ``8-bit-optimizers`` and ``table-6``.

    Returns:
        `what` (row of the table), `quantity` (its column), `unit`, `paper`, `paper_spread`
        (the ± of the paper; NaN without one), `better` (``more`` or ``less``: the better direction
        of a metric not measured here; else empty), `doubt` (key of the paper's words against its
        own number; else empty), `rounding` (half a unit of the last printed digit), `printed` (the
        number and its ± as printed).

    Raises:
        BadValueError: there are no numbers under these names.
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
    file = resources.files("reproduction").joinpath("papers", paper, f"{exhibit}.csv")
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
