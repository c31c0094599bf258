"""Exhibits: figures and tables of papers."""

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
    """The inputs of an exhibit, which decide when it is made anew."""

    STATES = "captured states"
    TRAINING = "training runs"
    REPORTS = "committed tables"
    NOTHING = "nothing but the formulas"


class Kind(StrEnum):
    """Kind of a number of ours, by which it is evidence."""

    MEASURED = "measured"
    COMPUTED = "computed"
    GIVEN = "from the paper's own inputs"


Frames = Mapping[str, pd.DataFrame]
KINDS = ("Figure", "Table")
"""In the order of a page; what is neither comes last."""
LEFT_OUT = Path(__file__).with_name("left-out.csv")
IN_SHORT = Path(__file__).with_name("in-short.csv")
ERRORS = Path(__file__).with_name("errors-in-papers.csv")


@dataclass(frozen=True)
class Finding:
    """The comparison of an exhibit with the paper's.

    Attributes:
        numbers: claims about numbers, of `reproduction.verdict.beside`; None if the paper
            prints no numbers.
        statements: other claims.
        why: explains differences, and how to read them, for any states.
        why_ours: explains differences that are specific to the workloads of this project; pages
            of a user's own states leave it out.
        differences: what differs, and why; see `explain`.
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
        """Number of verdicts by kind and verdict; those without a comparison are left out.

        A measurement that stands for several numbers of the paper counts once for each verdict.

        Args:
            kind_of: the kind of a quantity; statements have that of the quantity ``""``.
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
        """Number of the paper's numbers that are not compared."""
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
    """The finding with the verdicts that its differences give.

    The first difference that fits decides. What none explains keeps the verdict "differs", and
    differences that explain nothing are left out.

    Args:
        finding: the finding of an exhibit.
        timed: `Exhibit.timed`; such statements, and numbers of which there is one of ours, are not
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
    given = []
    both = numbers["paper"].notna() & numbers["ours"].notna()
    for name, old, measured in zip(names, numbers["verdict"], both, strict=True):
        doubted = old == Verdict.DOUBT  # by the paper itself, whatever was timed
        if timed and measured and not doubted and re.search(timed, name):
            given.append(Verdict.NOT_COMPARABLE.value)
        else:
            given.append(verdict(name).value if old == Verdict.DIFFERS else old)
    return numbers.assign(verdict=given)


def _no_pictures(_: Frames) -> dict[str, Figure]:
    return {}


@dataclass(frozen=True)
class Exhibit:
    """A figure or table, or several of one kind.

    Attributes:
        name: name of its files, such as ``table-6``.
        covers: the paper's own labels, such as ``("Table 6",)``.
        title: what it shows.
        needs: the inputs that it is made from.
        build: makes the frames; slow work belongs into it.
        find: compares the frames with the paper.
        draw: pictures by name; their captions stand in `captions`.
        captions: captions of pictures by name.
        source: what the page says it is made from; ``{headline}`` and ``{grid}`` are replaced by
            the workloads and their seeds, or by a user's states.
        timed: regular expression that is found in the names of numbers (``quantity: row: proxy``)
            and in statements which set times of one kind of machine beside those of another.
        command: what made the frames that are read, where another command does.
        kind: of its numbers and statements; None: computed if it needs nothing, else measured.
        computed: quantities that are computed where others are measured.
        pretrained: whether it shows states of pretrained weights too, where they are installed.
        place: on the page, among those whose labels have no number.
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
        """The kind of a quantity's numbers; that of statements for ``""``."""
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
    """A paper and its exhibits.

    Attributes:
        name: name of its folder.
        title, source: title and source of the page.
        exhibits: exhibits in the order of the page.
    """

    name: str
    title: str
    source: str
    exhibits: tuple[Exhibit, ...]

    @classmethod
    def of(cls, package: str, *, name: str, title: str, source: str) -> Paper:
        """With the exhibits in the files of a package: figures, tables, and then what is neither.

        Each file has an ``EXHIBIT``, but for those whose names start with an underscore.
        """
        files = iter_modules(sys.modules[package].__path__, f"{package}.")
        modules = [each.name for each in files if not each.name.startswith(f"{package}._")]
        exhibits: list[Exhibit] = [import_module(module).EXHIBIT for module in modules]
        return cls(name, title, source, tuple(sorted(exhibits, key=_place)))

    @property
    def left_out(self) -> pd.DataFrame:
        """`item` and `why` of figures and tables that are not made, and of parts of those that are.

        A part is named by the figure's or table's label, a comma, and what it is.
        """
        items = pd.read_csv(LEFT_OUT)
        return items[items["paper"] == self.name][["item", "why"]].reset_index(drop=True)

    @property
    def in_short(self) -> dict[str, list[str]]:
        """Claims that hold, do not hold here, or are open, in a sentence each."""
        items = pd.read_csv(IN_SHORT)
        own = items[items["paper"] == self.name]
        return {str(name): list(rows["text"]) for name, rows in own.groupby("verdict", sort=False)}

    @property
    def errors(self) -> pd.DataFrame:
        """Errors of the paper, by itself or by arithmetic: `where`, `printed`, `why`."""
        items = pd.read_csv(ERRORS)
        return items[items["paper"] == self.name][["where", "printed", "why"]].reset_index(
            drop=True
        )

    @property
    def wholly_left_out(self) -> pd.DataFrame:
        """Entries of `left_out` that are whole figures or tables."""
        labels = tuple(f"{label}, " for exhibit in self.exhibits for label in exhibit.covers)
        items = self.left_out
        return items[[not item.startswith(labels) for item in items["item"]]]


def _place(exhibit: Exhibit) -> tuple[int, int, int, str]:
    """The sort key of the exhibits of a page."""
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
