"""Cost of quantized updates in training."""

from __future__ import annotations

import math


def step_cost(update_gain: float, update_noise: float, largest_update: float) -> float:
    """Cost of quantized updates in training, from three measures of `qmaps.replay.run`.

    It is -log(update_gain) + update_noise^2 / 50 + 0.03 log10(largest_update / 10): the missing
    length of updates, their noise, and 0.03 for each factor of 10 of the largest update above 10. A
    gain below 0.001 counts as 0.001, a largest update above 1e9 as 1e9. Exact updates have 0.
    Updates longer than exact ones can have less than 0, which is no advantage: compare costs as
    max(cost, 0).

    The formula was chosen by its rank correlation with the loss of 120 pairs on the workload
    `docstring-lm`, which is 0.93 (reports/prediction/README.md).

    Args:
        update_gain: the part of the exact updates in the quantized ones.
        update_noise: how large the rest is.
        largest_update: the largest magnitude of an update, in learning rates.

    Returns:
        The cost; NaN if a measure is NaN.

    >>> step_cost(1, 0, 7)
    0.0
    >>> round(step_cost(0.9, 1, 1000), 3)  # 0.105 + 0.02 + 0.06
    0.185
    """
    if any(map(math.isnan, (update_gain, update_noise, largest_update))):
        return math.nan
    largest = min(max(largest_update, 10.0), 1e9)
    length = 0.0 - math.log(max(update_gain, 1e-3))
    return length + update_noise**2 / 50 + 0.03 * math.log10(largest / 10)
