"""What a paper says, and whether runs of ours agree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd


@dataclass(frozen=True)
class Claim:
    """What a paper says, and whether a summary of ours agrees.

    Attributes:
        text: the claim.
        holds: given the rows of the summary.
        why: what explains a difference; printed where there is one.
    """

    text: str
    holds: Callable[[pd.DataFrame], bool]
    why: str = ""

    def verdict(self, rows: pd.DataFrame) -> str:
        """A line of a list in Markdown."""
        if self.holds(rows):
            return f"- agrees: {self.text}"
        return " ".join(filter(None, (f"- **differs**: {self.text}", self.why)))
