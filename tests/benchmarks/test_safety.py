"""The words and sentences of "Is it safe?" follow from the rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest

from benchmarks import safety
from benchmarks.blind.equivalence import percent
from benchmarks.long import MARGINS, NEW, STUDIES, TRIALS, Ended
from benchmarks.trials import FULL

pytestmark = pytest.mark.slow

TEXT = " ".join((safety.ROOT / "docs" / "safety.md").read_text("utf-8").split())


def ended(apart: Sequence[float], preset: str = "8bit", fall: float = 0.5) -> Ended:
    """Runs with losses that differ from those of 32 bits by `apart`."""
    full = np.linspace(1, 1.01, len(apart))
    losses = pd.DataFrame({FULL: full, NEW[preset]: full + np.array(apart)})
    return Ended(8000, losses, fall, 0.001)


@pytest.mark.parametrize(
    ("apart", "preset", "expected"),
    [
        ((0.001, 0.002, 0.0), "8bit", "keeps up"),
        ((0.04, 0.041, 0.042), "8bit", "slower"),
        ((0.04, 0.041, 0.042), "3bit", "keeps up"),  # 9 % of steps
        ((0.0, 0.05, -0.05), "4bit", "cannot tell"),
        ((0.0, 0.0, 0.2), "8bit", "cannot tell"),  # the last has failed
        ((*[0.0] * 18, *[0.2] * 6), "8bit", "slower"),  # six have failed
        ((*[0.0] * 100, 0.2), "8bit", "keeps up"),  # one more has failed than in 32 bits
        ((0.001,), "8bit", "cannot tell"),
        ((0.2,), "8bit", "cannot tell"),
    ],
)
def test_the_word_of_a_training(apart: Sequence[float], preset: str, expected: str) -> None:
    assert safety.word(ended(apart, preset), preset) == expected


def test_without_rows_or_a_slope_there_is_no_verdict() -> None:
    assert safety.word(None, "8bit") == "cannot tell"
    assert safety.word(ended((0.0, 0.0), "4bit"), "8bit") == "cannot tell"
    for fall in (float("nan"), -0.5):
        assert safety.word(ended((0.0, 0.0, 0.0), fall=fall), "8bit") == "cannot tell"


def test_failures_count_beside_those_of_32_bits() -> None:
    result = ended((0.0, 0.001, 0.0, 0.001))
    result.losses.loc[3] += 0.5
    assert safety.word(result, "8bit") == "keeps up"


def test_tables_of_other_rows(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("reports")
    rng = np.random.default_rng(0)
    rows = []
    for rate, cost in ((0.0015, 0.0), (0.006, 0.1)):
        for length, arms in ((0.7, [FULL]), (1.0, [FULL, "32-bit, nudged", NEW["8bit"]]),
                             (1.4, [FULL])):  # fmt: skip
            rows += [
                {"judge": "teacher", "lr": rate, "steps": round(8000 * length), "quantizer": arm,
                 "seed": seed, "loss": 2 - 0.5 * np.log(length) + seed / 100
                 + rng.normal(scale=1e-4) + cost * (arm == NEW["8bit"])}
                for arm in arms for seed in range(4)
            ]  # fmt: skip
    (folder / "long").mkdir()
    pd.DataFrame(rows).to_csv(folder / "long" / TRIALS, index=False)
    monkeypatch.setattr(safety, "REPORTS", folder)
    teacher = safety.words()[2]
    verdict = "keeps up at a quarter of the best rate and slower at the best rate"
    assert teacher == f"| net for tables | {verdict} | cannot tell | cannot tell |"
    assert safety.words()[3] == "| sparse embeddings | cannot tell | cannot tell | cannot tell |"
    assert safety.summary("8bit") == (
        "keeps up with 32 bits in 1 of 8 long trainings, is slower in 1; in 6 the runs cannot tell"
    )
    assert safety.summary("4bit") == (
        "in 8 long trainings the runs cannot tell yet whether it keeps up"
    )
    shorter, _, long, faster = safety.now()[2:6]
    place = "| net for tables (`teacher`) | 0.0015, a quarter of the best rate"
    assert shorter.startswith(f"{place} | 500 | 0 | cannot tell: ")
    assert long.startswith(f"{place} | 8,000 | 4 | keeps up: ")
    assert "| slower: +22." in faster
    assert long.endswith("| cannot tell: no runs | cannot tell: no runs |")


def test_every_study_has_a_kind() -> None:
    assert [(t.study.task, t.study.rate) for t in safety.trainings()] == [
        (task, rate)
        for tasks in safety.TRAININGS.values()
        for task, rates in tasks.items()
        for rate in rates
    ]
    assert len(list(safety.trainings())) == len(STUDIES)
    assert list(MARGINS) == ["8bit", "4bit", "3bit"]


def test_intervals_are_those_of_the_blind_test() -> None:
    """The committed rows have enough digits to round as the report does."""
    report = (safety.REPORTS / "blind" / "README.md").read_text("utf-8")
    _, rows = safety.blind()
    rows = rows[(rows["factor"] == 1) & rows["preset"].notna() & rows["steps"].notna()]
    for row in rows.to_dict("records"):
        cell = f"{percent(row)} {row['outcome']} |"
        assert f"\n| {row['judge']} | {row['preset']} | {cell}" in report, cell
    assert "+24.7 (-2.2 to +58.8)" in TEXT
