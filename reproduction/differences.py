"""Causes of the differences to a paper."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pandas as pd

from qmaps.lab.report.claim import Claim, Verdict

if TYPE_CHECKING:
    from reproduction.exhibit import Finding


@dataclass(frozen=True)
class Difference:
    """Cause of the difference of some numbers and statements from the paper's.

    Attributes:
        why: the evidence, in a sentence or two.
        elsewhere: whether a control shows that the model, the data or the machine makes the
            difference; without such a control ours contradicts the paper.
        of: regular expression that is found in the texts of the statements and in the names of
            the numbers that it explains, which are ``quantity: row: proxy``.
    """

    why: str
    elsewhere: bool
    of: str = ""

    @property
    def verdict(self) -> Verdict:
        """The verdict on what differs for this reason."""
        return Verdict.ELSEWHERE if self.elsewhere else Verdict.CONTRADICTS

    def explains(self, name: str) -> bool:
        """True if a statement, or a number of this name, differs for this reason."""
        return re.search(self.of, name) is not None


def explain(finding: Finding) -> Finding:
    """The finding with the verdicts that its differences give.

    The first difference that fits decides. What none explains keeps the verdict "differs", and
    differences that explain nothing are left out.
    """
    used: list[Difference] = []

    def verdict(name: str) -> Verdict:
        for difference in finding.differences:
            if difference.explains(name):
                if difference not in used:
                    used.append(difference)
                return difference.verdict
        return Verdict.DIFFERS

    def statement(claim: Claim) -> Claim:
        if claim.verdict is not Verdict.DIFFERS:
            return claim
        return replace(claim, difference=verdict(claim.text))

    statements = [statement(difference) for difference in finding.statements]
    numbers = None if finding.numbers is None else _explained(finding.numbers, verdict)
    used_differences = [difference for difference in finding.differences if difference in used]
    return replace(finding, statements=statements, numbers=numbers, differences=used_differences)


def _explained(numbers: pd.DataFrame, verdict: Callable[[str], Verdict]) -> pd.DataFrame:
    names = numbers["quantity"] + ": " + numbers["what"] + ": " + numbers["proxy"]
    given = [
        verdict(name).value if old == Verdict.DIFFERS else old
        for name, old in zip(names, numbers["verdict"], strict=True)
    ]
    return numbers.assign(verdict=given)


def lines(differences: Sequence[Difference]) -> list[str]:
    """A line of Markdown for each."""
    return [f"- *{difference.verdict.value}*: {difference.why}" for difference in differences]
