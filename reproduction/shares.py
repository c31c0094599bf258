"""Shares of few runs, and tests of their differences."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from scipy import stats

LEVEL = 0.05
"""Significance level of a difference of shares."""


def decided(
    paper: pd.DataFrame, counts: Mapping[str, tuple[int, int]], runs: int | None = None
) -> pd.DataFrame:
    """The paper's shares, with `undecided` where chance alone can set ours apart from them.

    Where the number of the paper's runs is known, two shares are the same unless Fisher's exact
    test sets them apart; otherwise unless the paper's lies outside the 95 % interval of ours
    (Clopper and Pearson's).

    Args:
        paper: of `reproduction.claim.published`, shares in percent.
        counts: how many of our runs, of how many, by row.
        runs: number of the paper's runs; None if it does not say.
    """
    undecided = [
        what in counts and share == share and same(*counts[what], share / 100, runs)
        for what, share in zip(paper["what"], paper["paper"], strict=True)
    ]
    return paper.assign(undecided=undecided)


def same(ours: int, total: int, theirs: float, runs: int | None) -> bool:
    """True if chance can set `ours` of `total` runs apart from the share `theirs` (0 to 1)."""
    if runs is not None:
        count = round(theirs * runs)
        table = [[ours, total - ours], [count, runs - count]]
        return float(stats.fisher_exact(table).pvalue) >= LEVEL
    bounds = stats.binomtest(ours, total).proportion_ci(1 - LEVEL)
    return bool(bounds.low <= theirs <= bounds.high)
