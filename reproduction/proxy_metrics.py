"""Quantities that replace metrics of a paper which this project cannot measure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

import pandas as pd

from qmaps.errors import BadValueError
from reproduction.claim import TOLERANCE, Claim, Verdict
from reproduction.numbers import MARGIN
from reproduction.verdict import COLUMNS, Measured, beside


class Better(StrEnum):
    """Direction in which a metric improves."""

    MORE = "more"
    LESS = "less"


Scale = tuple["pd.Series[float]", "pd.Series[float]", Better]


@dataclass(frozen=True)
class ProxyMetric:
    """A quantity that is measured in place of a paper's metric.

    Attributes:
        quantity: the paper's quantity; its data have the `better` of it.
        name: name of the measured quantity.
        ours: a number, or a number and its spread, by row.
        better: which way the measured quantity improves.
        margin: rows of ours are equal if their difference with its spreads is at most this.
    """

    quantity: str
    name: str
    ours: Mapping[str, float | tuple[float, float]]
    better: Better = Better.LESS
    margin: float = MARGIN


def in_place(
    paper: pd.DataFrame,
    proxies: Sequence[ProxyMetric],
    ours: Measured | None = None,
    *,
    tolerance: float = TOLERANCE,
) -> pd.DataFrame:
    """The paper's numbers, with what stands for them or ours, and a verdict on each.

    Two metrics have no common scale, so that only orders can be compared: a number that a proxy
    replaces is never reproduced. Two rows of the paper are equal where their spreads touch, or
    where it may have rounded them apart; two of ours where they differ by at most the margin,
    spreads included, and do not lie as the paper's do. Where only spreads hide a difference, the
    pair cannot tell. A row differs if another row of its quantity is better than it in one metric
    and worse in the other. Else it cannot tell if a pair cannot that the paper sets apart, or if
    one cannot and none is alike, which is better in both, worse in both, or equal in both. With a
    pair that is alike it has the same ordering, and without one it differs. A single row is not
    compared.

    Args:
        paper: of `reproduction.claim.published`.
        proxies: several may stand for one quantity; its rows are then repeated.
        ours: measured as the paper does, for the other quantities.
        tolerance: tolerance of the other quantities.

    Returns:
        As `reproduction.verdict.beside`; in the paper's order, with rows that it lacks after those
        of their quantity.

    Raises:
        BadValueError: the data do not say which way the paper's metric improves.
    """
    replaced = {proxy.quantity for proxy in proxies}
    parts = [
        beside(paper[~paper["quantity"].isin(replaced)], ours or {}, tolerance=tolerance),
        *(_rows(paper[paper["quantity"] == proxy.quantity], proxy) for proxy in proxies),
    ]
    frame = pd.concat([part for part in parts if len(part)], ignore_index=True)
    quantities = {name: place for place, name in enumerate(paper["quantity"].unique())}
    rows = {key: n for n, key in enumerate(zip(paper["what"], paper["quantity"], strict=True))}
    keys = zip(frame["what"], frame["quantity"], strict=True)
    places = [(quantities.get(q, len(rows)), rows.get((what, q), len(rows))) for what, q in keys]
    order = sorted(range(len(frame)), key=places.__getitem__)
    return frame.iloc[order].reset_index(drop=True)


def opposed(paper: pd.DataFrame, proxy: ProxyMetric) -> list[tuple[str, str]]:
    """Pairs of rows of which one is better in the paper and the other in ours.

    Args:
        paper: of `reproduction.claim.published`.
        proxy: what stands for one of its quantities.
    """
    rows = paper[paper["quantity"] == proxy.quantity]
    known = beside(rows, _measured(proxy)).dropna(subset=["paper", "ours"])
    scales = _scales(rows, known, proxy)
    return [
        (str(known.at[one, "what"]), str(known.at[two, "what"]))
        for one, two in combinations(known.index, 2)
        if _relation(*scales[0], one, two) * (_ours(scales, proxy.margin, one, two) or 0) < 0
    ]


def _measured(proxy: ProxyMetric) -> dict[tuple[str, str], float | tuple[float, float]]:
    return {(what, proxy.quantity): value for what, value in proxy.ours.items()}


def _scales(paper: pd.DataFrame, known: pd.DataFrame, proxy: ProxyMetric) -> tuple[Scale, Scale]:
    """Values, spreads and direction of the paper's metric, and of ours."""
    theirs = _better(paper, proxy.quantity)
    rounding = known["what"].map(dict(zip(paper["what"], paper["rounding"], strict=True)))
    spread = known["paper_spread"].fillna(0).clip(lower=rounding)
    return (
        (known["paper"], spread, theirs),
        (known["ours"], known["ours_spread"].fillna(0), proxy.better),
    )


def _rows(paper: pd.DataFrame, proxy: ProxyMetric) -> pd.DataFrame:
    """The rows of one quantity with one proxy."""
    rows = beside(paper, _measured(proxy))
    rows["proxy"] = proxy.name
    known = rows.dropna(subset=["paper", "ours"])
    scales = _scales(paper, known, proxy)
    rows["verdict"] = Verdict.NOT_COMPARED.value
    for index in known.index if len(known) > 1 else ():
        pairs = [
            (_relation(*scales[0], index, other), _ours(scales, proxy.margin, index, other))
            for other in known.index.drop(index)
        ]
        # Rows that differ in one metric and are equal in the other are not counted.
        told = [(one, two) for one, two in pairs if two is not None]
        alike = [one == two for one, two in told if one == two or one * two < 0]
        hidden = [one for one, two in pairs if two is None]
        claim = Claim(
            rows.loc[index, "what"],
            alike,
            paper=known["paper"][index],
            ours=known["ours"][index],
            tolerance=None,
            undecided=all(alike) and (any(hidden) or (bool(hidden) and not alike)),
        )
        rows.loc[index, "verdict"] = claim.verdict.value
    return rows[list(COLUMNS)]


def _better(paper: pd.DataFrame, quantity: str) -> Better:
    directions = set(paper["better"]) if "better" in paper else {""}
    if len(directions) != 1 or not directions <= set(Better):
        raise BadValueError(
            f"better={sorted(map(str, directions))} of {quantity!r} must be one of "
            f"{', '.join(Better)} in all its rows"
        )
    return Better(directions.pop())


def _ours(scales: tuple[Scale, Scale], margin: float, one: int, two: int) -> int | None:
    """The relation of two rows of ours; None if spreads hide it.

    Rows within the margin are equal, unless they lie to each other as the paper's do.
    """
    values, spreads, _ = scales[1]
    relation = _relation(*scales[1], one, two)
    same = values[one] == values[two]  # two runs that diverged, too
    if same or abs(values[one] - values[two]) + spreads[one] + spreads[two] <= margin:
        return relation if relation == _relation(*scales[0], one, two) else 0
    return relation or None


def _relation(
    values: pd.Series[float],
    spreads: pd.Series[float],
    better: Better,
    one: int,
    two: int,
) -> int:
    """1 if the first is better, -1 if it is worse, 0 if they are equal within their spreads."""
    a, b = values[one], values[two]
    if a == b:
        return 0
    apart, touching = abs(a - b), spreads[one] + spreads[two]
    # Printed decimal numbers have no exact difference in binary.
    if apart <= touching or math.isclose(apart, touching, rel_tol=1e-9):
        return 0
    return 1 if (a > b) == (better is Better.MORE) else -1
