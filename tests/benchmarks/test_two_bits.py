"""The benchmark of pairs with about two bits per state element."""

from __future__ import annotations

import pandas as pd
import pytest

from benchmarks import two_bits
from benchmarks.judges import PAPER
from benchmarks.trials import FULL
from benchmarks.two_bits import (
    CANDIDATES,
    COARSE,
    FINE,
    KNOWN,
    SOLO,
    THREE_AND_TWO,
    WITH_ZERO,
    bits,
)
from reproduction.judges import JUDGES

pytestmark = pytest.mark.slow


def test_bits_count_scales() -> None:
    assert bits(COARSE) == pytest.approx(2.25, abs=1e-3)  # 8 bits for 32 codes, 32 for 128
    assert bits(FINE) == pytest.approx((2 + 8 / 16 + 2 + 8 / 32) / 2, abs=1e-3)
    assert bits(THREE_AND_TWO) == pytest.approx((3 + 8 / 64 + 2 + 8 / 32) / 2, abs=1e-3)
    assert bits(FULL) == 32
    assert all(bits(pair) <= 2.75 for pair in CANDIDATES if pair != PAPER)


def test_only_the_first_beta_changes() -> None:
    due = two_bits.trials("digits")
    assert {trial.quantizer for trial in due} == {WITH_ZERO, FINE, THREE_AND_TWO, SOLO, FULL}
    assert {trial.workload.betas for trial in due} == {(0.9, 0.999), (0.8, 0.999), (0.3, 0.999)}
    assert {trial.workload.lr for trial in due} == {JUDGES["digits"].lr}
    assert len({trial.key for trial in due}) == 8 * len(two_bits.TRAINED)
    assert {trial.quantizer for trial in two_bits.trials("minilm")} == {WITH_ZERO, FINE}


def test_differences_are_taken_seed_by_seed_and_a_diverged_run_counts() -> None:
    lr = JUDGES["digits"].lr
    judged = pd.DataFrame(
        {"judge": "digits", "quantizer": pair, "lr": rate, "seed": seed, "loss": loss + seed}
        for pair, rate, loss in [
            (FULL, lr, 1),
            (FULL, 2 * lr, 9),
            (PAPER, lr, 1.5),
            (COARSE, lr, 2),
        ]
        for seed in range(4)
    )
    assert {PAPER, COARSE} == set(KNOWN)
    frame = pd.DataFrame(
        {"judge": "digits", "quantizer": pair, "beta": beta, "seed": seed, "loss": loss + seed}
        for pair, beta, loss in [(FINE, 0.9, 1.25), (SOLO, 0.8, 1.75), (SOLO, 0.3, float("nan"))]
        for seed in range(3)
    )
    found = two_bits.differences(frame, judged)
    by = found.set_index(["quantizer", "beta"])["difference"].to_dict()
    assert by == {
        (PAPER, 0.9): 0.5,
        (COARSE, 0.9): 1.0,
        (FINE, 0.9): 0.25,
        (SOLO, 0.8): 0.75,
        (SOLO, 0.3): float("inf"),
    }
    assert found.set_index("quantizer").loc[FINE, "seeds"] == 3


def test_page_counts_steps_that_are_too_long() -> None:
    windows = pd.DataFrame(
        {
            "quantizer": [COARSE, FINE],
            "judge": "lm-tiny",
            "bits": [bits(COARSE), bits(FINE)],
            "step_cost": [-0.1, 0.0],
            "update_gain": [1.25, 1.0],
            "update_noise": [0.0, 0.0],
            "largest_update": [5.0, 5.0],
        }
    )
    found = pd.DataFrame(
        {"judge": ["digits"], "quantizer": FINE, "beta": 0.9, "bits": bits(FINE), "seeds": 8,
         "difference": 0.01, "low": -0.02, "high": 0.04}
    )  # fmt: skip
    text = two_bits.page(found, windows, "COMMAND")
    fine, coarse = f"| `{FINE}` | 2.38 | 0.000 |", f"| `{COARSE}` | 2.25 | 0.223 |"
    assert 0 < text.index(fine) < text.index(coarse)  # log(1.25)
    assert f"| `{FINE}` | 2.38 | 0.9 | 8 | +0.0100 | -0.0200 to +0.0400 |" in text
