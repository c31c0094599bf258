"""The judges' page: rates are inside their range, power is that of paired differences."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest

from benchmarks import judges
from benchmarks.trials import FULL
from qmaps.errors import BadValueError
from reproduction.judges import JUDGES, judge

pytestmark = pytest.mark.slow

REPORT = Path(__file__).parents[2] / "reports" / "judges.csv"


def rows(differences: dict[str, list[float]]) -> pd.DataFrame:
    """Rows on ``lm-tiny``: 32 bits at three rates, others at its own."""
    own = JUDGES["lm-tiny"].lr
    found = [(FULL, own * factor, seed, 2.0 + abs(factor - 1) + 0.1 * seed)
             for factor in (0.5, 1, 2) for seed in range(3)]  # fmt: skip
    found += [(q, own, seed, 2.0 + 0.1 * seed + d)
              for q, each in differences.items() for seed, d in enumerate(each)]  # fmt: skip
    frame = pd.DataFrame(found, columns=["quantizer", "lr", "seed", "loss"])
    return frame.assign(judge="lm-tiny", steps=300, seconds=1.0)


def test_the_best_rate_is_the_one_of_least_mean_loss() -> None:
    table = judges.rates(rows({}))
    assert table["lr"].tolist() == [JUDGES["lm-tiny"].lr * f for f in (0.5, 1, 2)]
    assert table["best"].tolist() == [False, True, False]
    assert table["mean"].tolist() == pytest.approx([2.6, 2.1, 3.1])


def test_power_is_of_paired_differences() -> None:
    table = judges.power(rows({judges.PAPER: [0.3, 0.2, 0.4], "other": [0.01, -0.01, 0.0]}))
    by = table.set_index("quantizer")
    assert by.loc[judges.PAPER, "difference"] == pytest.approx(0.3)
    assert by.loc["other", "std"] == pytest.approx(0.01)
    assert by.loc["other", "gap_ratio"] == pytest.approx(30)
    # t-test with 2 degrees of freedom: (4.3027 + 1.0607) * 0.01 / sqrt(3)
    assert by.loc["other", "detectable"] == pytest.approx(0.030966, rel=1e-3)
    assert by.loc["other", "high"] == pytest.approx(4.3027 * 0.01 / 3**0.5, rel=1e-3)


def other_lengths() -> pd.DataFrame:
    """32 bits on ``lm-tiny``, whose loss falls by half the logarithm of the steps."""
    found = [(round(300 * length), seed, 2.0 + 0.1 * seed - 0.5 * math.log(length))
             for length in (0.7, 1.4) for seed in range(3)]  # fmt: skip
    frame = pd.DataFrame(found, columns=["steps", "seed", "loss"])
    return frame.assign(judge="lm-tiny", quantizer=FULL, lr=JUDGES["lm-tiny"].lr)


def test_differences_in_steps() -> None:
    few = {"more": [0.25, 0.25, 0.25], "two seeds": [0.005, 0.005]}
    table = judges.slower(rows(few), other_lengths()).set_index("quantizer")
    assert table.loc["more", "steps"] == pytest.approx(math.exp(0.25 / 0.5) - 1)
    assert table["outcome"].to_dict() == {"more": "worse", "two seeds": "equivalent"}
    assert table["seeds"].to_dict() == {"more": 3, "two seeds": 2}


def test_the_page_and_the_picture(tmp_path: Path) -> None:
    frame = rows({judges.PAPER: [0.3, 0.2, 0.4]})
    text = judges.page(frame, other_lengths(), "python -m benchmarks.judges")
    assert "| lm-tiny | 300 | **0.003** | 3 | 2.1000 |" in text
    assert "+0.3000" in text
    assert "| +82.2 (+10.9 to +199.5) | worse |" in text
    judges.draw(frame, tmp_path / "judges.png")
    assert (tmp_path / "judges.png").stat().st_size > 5000


def test_rows_of_judges_that_were_not_run_stay(tmp_path: Path) -> None:
    earlier = pd.concat([rows({}), rows({}).assign(judge="digits")])
    earlier.to_csv(tmp_path / "judges.csv", index=False)
    found = judges.in_order(rows({}).assign(loss=7.0), tmp_path / "judges.csv")
    assert list(dict.fromkeys(found["judge"])) == ["digits", "lm-tiny"]
    assert found.groupby("judge")["loss"].max().to_dict() == {"digits": 3.2, "lm-tiny": 7.0}
    assert len(judges.in_order(rows({}), tmp_path / "none")) == len(rows({}))


def test_an_unknown_judge() -> None:
    with pytest.raises(BadValueError, match=r"judge='lm-tny' is unknown; allowed are digits, lm-"):
        judge("lm-tny")
    with pytest.raises(SystemExit):
        judges.main(["lm-tny"])


@pytest.mark.parametrize("name", sorted(set(pd.read_csv(REPORT)["judge"]) if REPORT.exists() else
                                        ()))  # fmt: skip
def test_the_committed_rates_are_the_best_of_a_sweep_and_inside_it(name: str) -> None:
    swept = judges.rates(pd.read_csv(REPORT))
    own = swept[swept["judge"] == name].reset_index()
    (best,) = own.index[own["best"]]
    assert 0 < best < len(own) - 1
    assert own["lr"][best] == pytest.approx(JUDGES[name].lr)
