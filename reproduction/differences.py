"""Causes of the differences to a paper."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from reproduction.claim import Verdict


@dataclass(frozen=True)
class Difference:
    """Cause of the difference of some numbers and statements from the paper's.

    Attributes:
        why: the evidence, in a sentence or two.
        elsewhere: True if a control shows that the model, the data or the machine is the cause;
            without such a control ours contradicts the paper.
        of: regular expression, searched in the texts of statements and in the names of numbers
            (``quantity: row: proxy``).
    """

    why: str
    elsewhere: bool
    of: str = ""

    @property
    def verdict(self) -> Verdict:
        """The verdict on differences with this cause."""
        return Verdict.ELSEWHERE if self.elsewhere else Verdict.CONTRADICTS

    def explains(self, name: str) -> bool:
        """True if a statement, or a number of this name, differs for this reason."""
        return re.search(self.of, name) is not None


def lines(differences: Sequence[Difference]) -> list[str]:
    """A line of Markdown for each."""
    return [f"- *{difference.verdict.value}*: {difference.why}" for difference in differences]
