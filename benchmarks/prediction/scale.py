"""The validation loss per step cost: `qmaps.analyze.recommend.verdict.NATS`.

``python -m benchmarks.prediction.scale`` prints the fit to the trials in reports/prediction.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from benchmarks.prediction.report import BASE, of_pairs, parts
from qmaps.analyze.recommend.verdict import NATS, cost_of, dangerous
from qmaps.storage.files import records

RANGE = (0.01, 0.3)
"""Step costs of the pairs that are fitted: below them the seeds' noise is larger than the loss."""


class Scale(NamedTuple):
    """Nats per step cost.

    Attributes:
        slope: of the least-squares line through zero.
        pairs: number of pairs.
        low: lower quartile of the ratio of loss and step cost over pairs.
        median: its median.
        high: its upper quartile.
        noise: largest magnitude of the loss of pairs below `RANGE`, in nats.
    """

    slope: float
    pairs: int
    low: float
    median: float
    high: float
    noise: float


def scale(trials: pd.DataFrame, measures: pd.DataFrame) -> Scale:
    """Fit the loss to the step cost, over pairs without zero points and very large updates.

    Args:
        trials: rows of reports/prediction/trials.csv.
        measures: rows of reports/prediction/measures.csv.
    """
    difference = next(found for name, rate, found in parts(trials) if name == BASE and rate == 1)
    own = of_pairs(measures, BASE, difference.index).filter(like="replay_")
    rows = records(own.rename(columns=lambda name: name.removeprefix("replay_")))
    calm = np.array([not dangerous(row) for row in rows])
    cost, loss = np.array([cost_of(row) for row in rows]), difference.mean(axis=1).to_numpy()
    fitted = calm & (cost >= RANGE[0]) & (cost <= RANGE[1])
    below = calm & (cost < RANGE[0])
    x, y = cost[fitted], loss[fitted]
    return Scale(
        float(x @ y / (x @ x)),
        int(fitted.sum()),
        *(float(each) for each in np.quantile(y / x, [0.25, 0.5, 0.75])),
        float(np.abs(loss[below]).max()),
    )


def main() -> None:
    """Print the fit."""
    folder = Path(__file__).parents[2] / "reports" / "prediction"
    found = scale(pd.read_csv(folder / "trials.csv"), pd.read_csv(folder / "measures.csv"))
    print(f"{found.slope:.3f} nats per step cost (qmaps uses {NATS}), from {found.pairs} pairs")
    print(f"quartiles of the ratio: {found.low:.3f}, {found.median:.3f}, {found.high:.3f}")
    print(f"pairs of lower step cost: at most {found.noise:.3f} nats from 32 bits")


if __name__ == "__main__":
    main()
