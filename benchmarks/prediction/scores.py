"""Agreement of predictors with the order of pairs by their cost in training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from benchmarks.trials import FULL
from qmaps.analyze.replay import step_cost

NET = "net progress"
CHOSEN = "gain, noise and largest update"
ONE_STEP = "mean abs. error of one step"
FITTED = "fitted to the replay"
FITTED_STEP = "fitted to errors of one step"
DRAWS = 2000
PENALTIES = 10.0 ** np.arange(-2, 4)


def outcomes(trials: pd.DataFrame) -> pd.DataFrame:
    """Loss minus that of 32 bits with the same seed and rate, a row per pair, a column per seed.

    Infinity stands for a loss that is no number.
    """
    losses = trials.pivot_table("loss", ["lr", "quantizer"], "seed", sort=False, dropna=False)
    full = losses.xs(FULL, level="quantizer")
    difference = losses.drop(FULL, level="quantizer").sub(full, level="lr")
    return difference.fillna(np.inf)


def ceiling(difference: pd.DataFrame) -> float:
    """The rank correlation of two halves of the seeds, corrected to their number."""
    seeds = difference.shape[1]
    if seeds < 2:
        return float("nan")
    one, other = (difference.iloc[:, start::2].mean(axis=1) for start in (0, 1))
    half = correlation(one, other)
    return 2 * half / (1 + half)


def correlation(one: pd.Series, other: pd.Series) -> float:
    """Spearman's rank correlation; infinity is the largest number. NaN if one is constant."""
    first, second = (_centred(stats.rankdata(values)) for values in (one, other))
    size = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(first @ second) / size if size else float("nan")


def interval(one: pd.Series, other: pd.Series) -> tuple[float, float]:
    """The 95 % interval of `correlation`, by bootstrap over rows."""
    random = np.random.default_rng(0)
    first, second = one.to_numpy(), other.to_numpy()
    correlations = []
    for _ in range(DRAWS):
        rows = random.integers(0, len(first), len(first))
        correlations.append(correlation(pd.Series(first[rows]), pd.Series(second[rows])))
    low, high = np.nanpercentile(correlations, [2.5, 97.5])
    return float(low), float(high)


def net_loss(measures: pd.DataFrame, rate: float = 1.0, prefix: str = "replay") -> pd.Series:
    """Loss of a pair by net progress at a rate, in units of the tuned one.

    Args:
        measures: rows of `benchmarks.prediction.measures.measured`.
        rate: the learning rate by the tuned one.
        prefix: ``replay`` for the whole run, ``window`` for the windows.
    """
    progress = measures[f"{prefix}_progress"]
    spent = measures[f"{prefix}_spent_cost"] / measures[f"{prefix}_cost"]
    return (2 * rate - rate**2) - (2 * rate * progress - rate**2 * spent)


def chosen(measures: pd.DataFrame) -> pd.Series:
    """The predictor that was chosen on the part that predictors are fitted on: `step_cost`."""
    names = ("update_gain", "update_noise", "largest_update")
    columns = (measures[f"replay_{name}"] for name in names)
    return pd.Series(list(map(step_cost, *columns)), index=measures.index)


@dataclass(frozen=True)
class Fitted:
    """Ridge regression of the outcome's rank on ranks of columns, among the pairs it is given.

    Attributes:
        columns: the columns.
        weights: one for each.
        penalty: chosen by leave-one-out.
    """

    columns: tuple[str, ...]
    weights: np.ndarray
    penalty: float

    @staticmethod
    def of(measures: pd.DataFrame, prefix: str, outcome: pd.Series) -> Fitted:
        """Fit to `outcome`, in the order of `measures`' rows."""
        columns = tuple(
            name
            for name in measures.columns
            if name.startswith(prefix) and measures[name].nunique() > 1
        )
        x, y = _ranks(measures[list(columns)]), _centred(stats.rankdata(outcome))
        best = min(PENALTIES, key=lambda penalty: _left_out(x, y, penalty))
        return Fitted(columns, _ridge(x, y, best), float(best))

    def predict(self, measures: pd.DataFrame) -> pd.Series:
        """A number for each row: the larger, the more it costs."""
        return pd.Series(_ranks(measures[list(self.columns)]) @ self.weights)


def _ranks(frame: pd.DataFrame) -> np.ndarray:
    filled = frame.fillna(frame.median()).fillna(0.0)
    return np.column_stack([_centred(stats.rankdata(filled[name])) for name in filled])


def _centred(ranks: np.ndarray) -> np.ndarray:
    """Ranks from -1 to 1."""
    return np.asarray((2 * ranks - len(ranks) - 1) / max(1, len(ranks) - 1))


def _ridge(x: np.ndarray, y: np.ndarray, penalty: float) -> np.ndarray:
    return np.asarray(np.linalg.solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T @ y))


def _left_out(x: np.ndarray, y: np.ndarray, penalty: float) -> float:
    hat = x @ np.linalg.solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T)
    return float((((y - hat @ y) / (1 - np.diag(hat))) ** 2).mean())
