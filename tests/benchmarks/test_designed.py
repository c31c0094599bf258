"""The benchmark of designs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import qmaps
from benchmarks import designed
from benchmarks.designed import KNOWN, PAPER, SEEDS, TRAINED, TRAINED_ON
from benchmarks.trials import FULL
from qmaps.lab.judges import JUDGES
from tests.analyze.replay.test_replay import record


def test_designs_are_trained_as_choices(tmp_path: Path) -> None:
    states = qmaps.capture.load(record(tmp_path / "states", window=4))
    due = designed.trials(states, tmp_path)
    assert len({trial.key for trial in due}) == len(TRAINED) * len(TRAINED_ON) * SEEDS
    for trial, bits in ((due[0], TRAINED[0]), (due[-1], TRAINED[-1])):
        chosen = qmaps.load_choice(trial.choice)["state_quantizers"]
        assert " + ".join(q.spec for q in chosen.values()) == trial.quantizer
        assert {q.map.bits for q in chosen.values()} == {bits}


def test_losses_are_compared_seed_by_seed_at_the_rate_of_the_judge() -> None:
    lr = JUDGES["lm-tiny"].lr
    judged = pd.DataFrame(
        {"judge": "lm-tiny", "quantizer": pair, "lr": rate, "seed": seed, "loss": loss + seed}
        for pair, rate, loss in [(FULL, lr, 1), (FULL, 2 * lr, 9), (PAPER, lr, 1.5)]
        for seed in range(4)
    )
    trained = pd.DataFrame(
        {"judge": "lm-tiny", "quantizer": "new", "seed": seed, "loss": 1.25 + seed}
        for seed in range(3)
    )
    found = designed.differences(trained, judged).set_index("quantizer")
    assert found["difference"].to_dict() == pytest.approx({"new": 0.25, PAPER: 0.5})
    assert found["seeds"].to_dict() == {"new": 3, PAPER: 4}
    errors = pd.DataFrame(
        {"judge": "digits", "quantizer": pair, "bits_per_element": 4.25,
         "mean_abs_error": error, "median_rel_error": 2 * error}
        for pair, error in ((PAPER, 0.1), (KNOWN[1], 0.05))
    )  # fmt: skip
    text = designed.page(errors, found.reset_index(), [qmaps.algebra.pair.Pair.parse(PAPER)], "C")
    assert f"| `{KNOWN[1]}` | 4.25 | 0.05 | 2.00 | 0.1 | 2.00 |" in text
    assert "| lm-tiny | `new` | 3 | +0.2500 | +0.2500 to +0.2500 |" in text
