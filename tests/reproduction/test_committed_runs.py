"""Runs of the committed tables have the names of their trainings."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from reproduction import committed
from reproduction.context import Context

pytestmark = pytest.mark.slow

REPORTS = Path(__file__).parents[2] / "reports"
LOSSES = sorted((REPORTS / "losses").glob("*.csv"))
TRAINED = ["judge", "optimizer", "quantizer", "lr", "beta1", "beta2", "eps", "N", "seed"]
PAPER_4BIT = "B128/DE@4s + rank1/linear@4u"


def under_two_names(runs: pd.DataFrame) -> pd.DataFrame:
    """Runs with the loss of another training, to the last digit."""
    ended = runs.dropna(subset="loss").drop_duplicates([*TRAINED, "loss"])
    return ended[ended["loss"].duplicated(keep=False)]


@pytest.mark.parametrize("file", LOSSES, ids=lambda file: file.stem)
def test_no_run_is_committed_under_two_names(file: Path) -> None:
    runs = pd.read_csv(file)
    assert under_two_names(runs)[[*TRAINED, "loss"]].to_dict("records") == []
    ended = runs.dropna(subset="loss")
    wrong = pd.concat([ended, ended.tail(1).assign(optimizer="another")])
    assert len(under_two_names(wrong)) == 2


def test_a_run_in_two_tables_has_one_loss() -> None:
    keys = ["judge", "lr", "seed", "steps"]
    moments = pd.read_csv(REPORTS / "losses" / "four-bit-moments.csv")
    of_pair = moments[(moments["optimizer"] == "AdamW") & (moments["quantizer"] == PAPER_4BIT)]
    judges = pd.read_csv(REPORTS / "judges.csv")
    merged = of_pair.merge(judges[judges["quantizer"] == PAPER_4BIT], on=keys)
    assert len(merged) == 8
    assert merged["loss_x"].tolist() == merged["loss_y"].tolist()


def test_a_run_counts_once_whichever_factor_gives_its_eps() -> None:
    counted = committed.unstable_by_eps(Context(Path(), reports=REPORTS))
    assert set(counted["runs"]) == {3}  # seeds
    assert len(counted) == 2 * 6  # settings, and eps from 1e-8 to 1e-3
