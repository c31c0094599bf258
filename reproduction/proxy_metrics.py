"""Proxy metrics: measured quantities in place of a paper's metrics."""

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
    """Better direction of a metric."""

    MORE = "more"
    LESS = "less"


Scale = tuple["pd.Series[float]", "pd.Series[float]", Better]


@dataclass(frozen=True)
class ProxyMetric:
    """A measured quantity in place of a paper's metric.

    Attributes:
        quantity: the paper's quantity; its data have its direction `better`.
        name: name of the measured quantity.
        ours: a number, or a number and its spread, by row.
        better: better direction of the measured quantity.
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
    """The paper's numbers, with ours or those of a proxy, and a verdict on each.

    Two metrics have no common scale, so only orders are compared: a number with a proxy is never
    "reproduced". Two rows of the paper are equal if their spreads touch, or if rounding may have
    separated them. Two rows of ours are equal if they differ by at most the margin, spreads
    included, and are not in the paper's order. If only spreads hide a difference, the pair cannot
    tell. A row differs if another row of its quantity is better than it in one metric and worse in
    the other. Else it cannot tell if one of its pairs, not equal in the paper, cannot tell; or if
    any pair cannot tell and none is alike: better in both, worse in both, or equal in both. With an
    alike pair it has the same ordering, and without one it differs. A single row is not compared.

    Args:
        paper: of `reproduction.claim.published`.
        proxies: for several proxies of one quantity, its rows are repeated.
        ours: measured as in the paper, for the other quantities.
        tolerance: tolerance of the other quantities.

    Returns:
        As `reproduction.verdict.beside`; in the paper's order, with additional rows after those of
        their quantity.

    Raises:
        BadValueError: the data do not state the better direction of the paper's metric.
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
    """Pairs of rows with opposite orders in the paper and in ours.

    Args:
        paper: of `reproduction.claim.published`.
        proxy: proxy of one of its quantities.
    """
    rows = paper[paper["quantity"] == proxy.quantity]
    compared = beside(rows, _measured(proxy)).dropna(subset=["paper", "ours"])
    scales = _scales(rows, compared, proxy)
    return [
        (str(compared.at[i, "what"]), str(compared.at[j, "what"]))
        for i, j in combinations(compared.index, 2)
        if _relation(*scales[0], i, j) * (_ours(scales, proxy.margin, i, j) or 0) < 0
    ]


def _measured(proxy: ProxyMetric) -> dict[tuple[str, str], float | tuple[float, float]]:
    return {(what, proxy.quantity): value for what, value in proxy.ours.items()}


def _scales(paper: pd.DataFrame, compared: pd.DataFrame, proxy: ProxyMetric) -> tuple[Scale, Scale]:
    """Values, spreads and direction of the paper's metric, and of ours."""
    theirs = _better(paper, proxy.quantity)
    rounding = compared["what"].map(dict(zip(paper["what"], paper["rounding"], strict=True)))
    spread = compared["paper_spread"].fillna(0).clip(lower=rounding)
    return (
        (compared["paper"], spread, theirs),
        (compared["ours"], compared["ours_spread"].fillna(0), proxy.better),
    )


def _rows(paper: pd.DataFrame, proxy: ProxyMetric) -> pd.DataFrame:
    """The rows of one quantity with one proxy."""
    rows = beside(paper, _measured(proxy))
    rows["proxy"] = proxy.name
    compared = rows.dropna(subset=["paper", "ours"])
    scales = _scales(paper, compared, proxy)
    rows["verdict"] = Verdict.NOT_COMPARED.value
    for index in compared.index if len(compared) > 1 else ():
        pairs = [
            (_relation(*scales[0], index, rival), _ours(scales, proxy.margin, index, rival))
            for rival in compared.index.drop(index)
        ]
        # Rows that differ in one metric and are equal in the other are not counted.
        told = [(theirs, ours) for theirs, ours in pairs if ours is not None]
        alike = [theirs == ours for theirs, ours in told if theirs == ours or theirs * ours < 0]
        hidden = [theirs for theirs, ours in pairs if ours is None]
        claim = Claim(
            rows.loc[index, "what"],
            alike,
            paper=compared["paper"][index],
            ours=compared["ours"][index],
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


def _ours(scales: tuple[Scale, Scale], margin: float, i: int, j: int) -> int | None:
    """The relation of two rows of ours; None if spreads hide it.

    Rows within the margin are equal, unless they lie to each other as the paper's do.
    """
    values, spreads, _ = scales[1]
    relation = _relation(*scales[1], i, j)
    same = values[i] == values[j]  # two runs that diverged, too
    if same or abs(values[i] - values[j]) + spreads[i] + spreads[j] <= margin:
        return relation if relation == _relation(*scales[0], i, j) else 0
    return relation or None


def _relation(
    values: pd.Series[float],
    spreads: pd.Series[float],
    better: Better,
    i: int,
    j: int,
) -> int:
    """1 if the first is better, -1 if it is worse, 0 if they are equal within their spreads."""
    a, b = values[i], values[j]
    if a == b:
        return 0
    apart, touching = abs(a - b), spreads[i] + spreads[j]
    # Printed decimal numbers have no exact difference in binary.
    if apart <= touching or math.isclose(apart, touching, rel_tol=1e-9):
        return 0
    return 1 if (a > b) == (better is Better.MORE) else -1
