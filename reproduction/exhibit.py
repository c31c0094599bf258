"""Figures and tables of papers."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pandas as pd
from matplotlib.figure import Figure

from reproduction.claim import Claim, Verdict
from reproduction.context import Context
from reproduction.differences import Difference


class Needs(StrEnum):
    """The inputs of a figure or table; if they change, it is made again."""

    STATES = "captured states"
    TRAINING = "training runs"
    REPORTS = "committed tables"
    NOTHING = "nothing but the formulas"


class Kind(StrEnum):
    """Kind of a number of ours: how it is evidence."""

    MEASURED = "measured"
    COMPUTED = "computed"
    GIVEN = "from the paper's own inputs"


Frames = Mapping[str, pd.DataFrame]
KINDS = ("Figure", "Table")
"""In the order of a page; the remaining kinds come last."""
LEFT_OUT = Path(__file__).with_name("left-out.csv")
IN_SHORT = Path(__file__).with_name("in-short.csv")
ERRORS = Path(__file__).with_name("errors-in-papers.csv")


@dataclass(frozen=True)
class Finding:
    """The comparison of a figure or table with the paper's.

    Attributes:
        numbers: claims about numbers, of `reproduction.verdict.beside`; None without printed
            numbers.
        statements: other claims.
        why: explains differences, and how to read them, for any states.
        why_ours: explains differences specific to the workloads of this project; pages of a user's
            own states leave it out.
        differences: causes of differences; see `explain`.
        tables: other tables worth a CSV file, by name.
    """

    numbers: pd.DataFrame | None = None
    statements: Sequence[Claim] = ()
    why: str = ""
    why_ours: str = ""
    differences: Sequence[Difference] = ()
    tables: Frames = field(default_factory=dict)

    @property
    def explanation(self) -> str:
        """`why` and `why_ours`, one after the other."""
        return " ".join(part for part in (self.why, self.why_ours) if part)

    @property
    def verdicts(self) -> list[Verdict]:
        """The verdicts on every number and every statement."""
        of_numbers = [] if self.numbers is None else list(map(Verdict, self.numbers["verdict"]))
        return of_numbers + [statement.verdict for statement in self.statements]

    def counts(self, kind_of: Callable[[str], Kind]) -> Counter[tuple[Kind, Verdict]]:
        """Number of verdicts by kind and verdict; rows without a comparison are left out.

        A measurement for several numbers of the paper counts once for each verdict.

        Args:
            kind_of: returns the kind of a quantity; for statements, the quantity is ``""``.
        """
        counts = Counter((kind_of(""), statement.verdict) for statement in self.statements)
        if self.numbers is not None:
            stands = self.numbers["proxy"] != ""
            again = self.numbers.duplicated(["what", "proxy", "ours", "verdict"]) & stands
            rows = self.numbers[~again]
            pairs = zip(rows["quantity"], rows["verdict"], strict=True)
            counts += Counter((kind_of(quantity), Verdict(verdict)) for quantity, verdict in pairs)
        return Counter({k: n for k, n in counts.items() if k[1] is not Verdict.NOT_COMPARED})

    @property
    def missing(self) -> int:
        """Number of the paper's numbers without a comparison."""
        if self.numbers is None:
            return 0
        printed = self.numbers[self.numbers["paper"].notna()]
        compared = printed["verdict"] != Verdict.NOT_COMPARED
        return int((~compared.groupby([printed["what"], printed["quantity"]]).any()).sum())

    @property
    def verdict(self) -> Verdict:
        """The weakest verdict; "not compared" for a table without compared numbers."""
        combined = weakest(self.verdicts)
        if self.numbers is None or any(statement.covers for statement in self.statements):
            return combined
        nothing = set(self.numbers["verdict"]) == {Verdict.NOT_COMPARED}
        good = combined not in (Verdict.DIFFERS, Verdict.CONTRADICTS, Verdict.ELSEWHERE)
        return Verdict.NOT_COMPARED if nothing and good else combined


def explain(finding: Finding, timed: str = "") -> Finding:
    """Return the finding with verdicts from its differences.

    The first matching difference decides. Without one, the verdict stays "differs". Differences
    without a match are left out.

    Args:
        finding: the finding of a figure or table.
        timed: `Exhibit.timed`; such statements, and numbers with a value of ours, are not
            comparable.
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
        if timed and re.search(timed, claim.text):
            return replace(claim, comparable=False)
        if claim.verdict is not Verdict.DIFFERS:
            return claim
        return replace(claim, difference=verdict(claim.text))

    statements = [statement(difference) for difference in finding.statements]
    numbers = None if finding.numbers is None else _explained(finding.numbers, verdict, timed)
    used_differences = [difference for difference in finding.differences if difference in used]
    return replace(finding, statements=statements, numbers=numbers, differences=used_differences)


def _explained(
    numbers: pd.DataFrame, verdict: Callable[[str], Verdict], timed: str
) -> pd.DataFrame:
    names = numbers["quantity"] + ": " + numbers["what"] + ": " + numbers["proxy"]
    verdicts = []
    compared = numbers["paper"].notna() & numbers["ours"].notna()
    for name, old, measured in zip(names, numbers["verdict"], compared, strict=True):
        doubted = old == Verdict.DOUBT  # by the paper itself, whatever was timed
        if timed and measured and not doubted and re.search(timed, name):
            verdicts.append(Verdict.NOT_COMPARABLE.value)
        else:
            verdicts.append(verdict(name).value if old == Verdict.DIFFERS else old)
    return numbers.assign(verdict=verdicts)


def _no_pictures(_: Frames) -> dict[str, Figure]:
    return {}


@dataclass(frozen=True)
class Exhibit:
    """A figure or table, or several of one kind.

    Attributes:
        name: name of its files, such as ``table-6``.
        covers: the paper's own labels, such as ``("Table 6",)``.
        title: title on the page.
        needs: its inputs.
        build: makes the frames; slow work belongs here.
        find: compares the frames with the paper.
        draw: returns pictures by name; their captions are in `captions`.
        captions: captions of pictures by name.
        source: inputs, in words for the page; ``{headline}`` and ``{grid}`` are replaced by the
            workloads and their seeds, or by a user's states.
        timed: regular expression for the names of numbers (``quantity: row: proxy``) and for
            statements that compare times of different machines.
        command: the command of the frames, if another command makes them.
        kind: of its numbers and statements; None: computed without inputs, else measured.
        computed: computed quantities, where the others are measured.
        pretrained: show states of pretrained weights too, where they are installed.
        place: on the page, among those with labels without a number.
    """

    name: str
    covers: tuple[str, ...]
    title: str
    needs: Needs
    build: Callable[[Context], Frames]
    find: Callable[[Frames], Finding]
    draw: Callable[[Frames], Mapping[str, Figure]] = _no_pictures
    captions: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    timed: str = ""
    command: str = ""
    kind: Kind | None = None
    computed: tuple[str, ...] = ()
    pretrained: bool = False
    place: int = 0

    def kind_of(self, quantity: str) -> Kind:
        """The kind of a quantity's numbers; for ``""``, the kind of statements."""
        if quantity in self.computed:
            return Kind.COMPUTED
        return self.kind or (Kind.COMPUTED if self.needs is Needs.NOTHING else Kind.MEASURED)

    @property
    def label(self) -> str:
        """The paper's labels, those of a row of figures as a range."""
        runs = _ranges(self.covers)
        return (", " if len(runs) > 2 else " and ").join(runs)


@dataclass(frozen=True)
class Paper:
    """A paper with its figures and tables.

    Attributes:
        name: name of its folder.
        title, source: title and source of the page.
        exhibits: figures and tables in the order of the page.
    """

    name: str
    title: str
    source: str
    exhibits: tuple[Exhibit, ...]

    @classmethod
    def of(cls, package: str, *, name: str, title: str, source: str) -> Paper:
        """A paper from a package: its figures, then its tables, then anything else.

        Each file has an ``EXHIBIT``, except those with names that start with an underscore.
        """
        files = iter_modules(sys.modules[package].__path__, f"{package}.")
        modules = [file.name for file in files if not file.name.startswith(f"{package}._")]
        exhibits: list[Exhibit] = [import_module(module).EXHIBIT for module in modules]
        return cls(name, title, source, tuple(sorted(exhibits, key=_place)))

    @property
    def left_out(self) -> pd.DataFrame:
        """`item` and `why` of omitted figures and tables, and of omitted parts.

        The name of a part is the label of the figure or table, a comma, and a description.
        """
        items = pd.read_csv(LEFT_OUT)
        return items[items["paper"] == self.name][["item", "why"]].reset_index(drop=True)

    @property
    def in_short(self) -> dict[str, list[str]]:
        """Claims that hold, do not hold here, or are open, in a sentence each."""
        items = pd.read_csv(IN_SHORT)
        groups = items[items["paper"] == self.name].groupby("verdict", sort=False)
        return {str(name): list(rows["text"]) for name, rows in groups}

    @property
    def errors(self) -> pd.DataFrame:
        """Errors of the paper, by itself or by arithmetic: `where`, `printed`, `why`."""
        items = pd.read_csv(ERRORS)
        return items[items["paper"] == self.name][["where", "printed", "why"]].reset_index(
            drop=True
        )

    @property
    def wholly_left_out(self) -> pd.DataFrame:
        """Entries of `left_out` for entire figures or tables."""
        labels = tuple(f"{label}, " for exhibit in self.exhibits for label in exhibit.covers)
        items = self.left_out
        return items[[not item.startswith(labels) for item in items["item"]]]


def _place(exhibit: Exhibit) -> tuple[int, int, int, str]:
    """The sort key of the figures and tables of a page."""
    label = exhibit.covers[0]
    kind, _, number = label.rpartition(" ")
    rank = KINDS.index(kind) if kind in KINDS else len(KINDS)
    return rank, int(number) if number.isdigit() else 0, exhibit.place, label


def _ranges(labels: Sequence[str]) -> list[str]:
    """``Figure 5, Figure 6, Figure 7`` as ``Figures 5 to 7``; others as they are."""
    ranges: list[list[tuple[str, int]]] = []
    plain = []
    for label in labels:
        kind, _, number = label.rpartition(" ")
        if not number.isdigit():
            plain.append(label)
        elif ranges and ranges[-1][-1] == (kind, int(number) - 1):
            ranges[-1].append((kind, int(number)))
        else:
            ranges.append([(kind, int(number))])
    runs = []
    for run in ranges:
        (kind, first), (_, last) = run[0], run[-1]
        joint = "and" if len(run) == 2 else "to"
        runs.append(f"{kind} {first}" if len(run) == 1 else f"{kind}s {first} {joint} {last}")
    return [*runs, *plain]


def weakest(verdicts: Iterable[Verdict]) -> Verdict:
    """The weakest verdict among those of comparisons."""
    given_verdicts = set(verdicts)
    for verdict in (
        Verdict.CONTRADICTS,
        Verdict.DIFFERS,
        Verdict.ELSEWHERE,
        Verdict.PARTLY,
        Verdict.ORDERING,
        Verdict.DOUBT,
        Verdict.UNDECIDED,
        Verdict.REPRODUCED,
        Verdict.NOT_COMPARABLE,
    ):
        if verdict in given_verdicts:
            return verdict
    return Verdict.NOT_COMPARED
