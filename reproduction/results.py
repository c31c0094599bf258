"""The result of a figure or table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from reproduction.claim import Verdict
from reproduction.exhibit import Exhibit, Finding


@dataclass(frozen=True)
class Made:
    """The inputs of frames, and the command of frames read from files."""

    source: str = ""
    command: str = ""


@dataclass(frozen=True)
class Result:
    """A figure or table with its files.

    Attributes:
        exhibit: the figure or table.
        finding: its comparison with the paper; None if it is not made yet.
        pictures, tables: files by name.
        made: the inputs of its frames.
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
        """The verdict on all its numbers and statements."""
        return Verdict.NOT_MADE if self.finding is None else self.finding.verdict

    @property
    def tally(self) -> str:
        """Number of numbers and statements with each verdict, and of those without a verdict."""
        if self.finding is None:
            return ""
        count = Counter(self.finding.verdicts)
        count[Verdict.NOT_COMPARED] = self.finding.missing
        return ", ".join(
            f"{count[verdict]} {verdict.value}" for verdict in Verdict if count[verdict]
        )
