"""Options of the long run are the best ones, and do not follow noise."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from benchmarks import long_run

pytestmark = pytest.mark.slow


def test_options_are_those_of_the_committed_sweep() -> None:
    work = long_run.tuned(pd.read_csv(long_run.REPORTS / long_run.TUNING))
    assert (work.lr, work.betas[0], work.weight_decay) == pytest.approx((0.012, 0.95, 0.1))


def test_choice_of_options_is_not_moved_by_noise() -> None:
    losses = pd.DataFrame({0.0: [1.0, 2.0], 0.6: [1.003, 2.0], 0.9: [1.1, 2.1]})
    assert long_run.choose(losses, 0.9) == 0.6
    assert long_run.choose(losses, None) == 0.0
    assert long_run.choose(pd.DataFrame({1.0: [2.0, 2.0], 2.0: [1.0, np.nan]}), None) == 1.0
