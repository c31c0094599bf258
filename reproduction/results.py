"""What was made of an exhibit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from qmaps.lab.report.claim import Verdict
from reproduction.exhibit import Exhibit, Finding


@dataclass(frozen=True)
class Made:
    """How long frames took, what they are made from, and the command of those that were read."""

    seconds: float = 0.0
    source: str = ""
    command: str = ""


@dataclass(frozen=True)
class Result:
    """An exhibit with its files.

    Attributes:
        exhibit: what was made.
        finding: how it compares; None where it is not made yet.
        pictures, tables: files by name.
        made: from what.
        pending: why it is not made yet.
    """

    exhibit: Exhibit
    finding: Finding | None = None
    pictures: Mapping[str, Path] = field(default_factory=dict)
    tables: Mapping[str, Path] = field(default_factory=dict)
    made: Made = field(default_factory=Made)
    pending: str = ""

    @property
    def verdict(self) -> Verdict:
        """Of the whole exhibit."""
        return Verdict.NOT_MADE if self.finding is None else self.finding.verdict

    @property
    def tally(self) -> str:
        """How many numbers and statements got which verdict, and how many of the paper none."""
        if self.finding is None:
            return ""
        count = Counter(self.finding.verdicts)
        count[Verdict.NOT_COMPARED] = self.finding.missing
        return ", ".join(f"{count[each]} {each.value}" for each in Verdict if count[each])
