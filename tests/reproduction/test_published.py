"""All numbers of the papers are stored, with or without a number of ours."""

from __future__ import annotations

import pytest

from reproduction import PAPERS
from reproduction.claim import published

pytestmark = pytest.mark.slow

EIGHT, FOUR = "8-bit-optimizers", "4-bit-optimizers"


@pytest.mark.parametrize(
    ("paper", "table", "what", "quantity", "value"),
    [
        (EIGHT, "table-1", "32-bit Adam, reference", "MT", 29.3),
        (EIGHT, "table-1", "8-bit Momentum", "MoCo v2", 67.4),
        (EIGHT, "table-1", "Adafactor", "LM, Transformer-1.5B", 8.9),
        (EIGHT, "table-1", "8-bit Adam", "Masked LM, RoBERTa-base", 3.48),
        (EIGHT, "table-1", "Adafactor", "LM, GPT3-Medium, time", 816),
        (EIGHT, "table-1", "8-bit Adam", "MT, time", 115),
        (EIGHT, "table-1", "Transformer (MT): 8-bit Adam", "memory saved", 1.1),
        (EIGHT, "table-3", "1.3B: 8 | yes | no | yes", "unstable runs", 80),
        (EIGHT, "table-3", "1.5B: 8 | yes | yes | yes", "perplexity", 9.0),
        (EIGHT, "appendix-f", "Govindaraju and others (2005)", "time per element", 300),
        (EIGHT, "appendix-f", "Dunning and Ertl (2019)", "time per element", 5),
        (FOUR, "table-2", "Adafactor, beta1 = 0", "CLS", 79.5),
        (FOUR, "table-2", "Adafactor", "CLS", 80.0),
        (FOUR, "table-4", "4-bit AdamW, fused", "time, LLaMA-7B", 3.11),
        (FOUR, "table-4", "4-bit Factor", "time, GPT-2 Medium", 2.30),
        (FOUR, "table-4", "LLaMA-7B: 4-bit AdamW", "memory in all", 31.87),
    ],
)
def test_numbers_of_the_papers(
    paper: str, table: str, what: str, quantity: str, value: float
) -> None:
    rows = published(paper, table).set_index(["what", "quantity"])["paper"]
    assert rows[what, quantity] == value


@pytest.mark.parametrize(
    ("paper", "table", "count"),
    [
        (EIGHT, "table-1", 54),  # 23 metrics and 19 times of the 23 rows, 12 savings
        (EIGHT, "table-3", 25),  # 13 rows; one of 1.3B has no perplexity
        (FOUR, "table-1", 23),  # 11 rows and the BLEU of 32 bits
        (FOUR, "table-2", 35),  # 7 rows, 5 tasks
        (FOUR, "table-4", 36),  # 13 rows, three of which save nothing
        (FOUR, "table-6", 5),
    ],
)
def test_whole_tables(paper: str, table: str, count: int) -> None:
    rows = published(paper, table)
    assert len(rows) == count
    assert not rows.duplicated(["what", "quantity"]).any()
    assert rows["paper"].notna().all()


@pytest.mark.parametrize("name", PAPERS)
def test_a_metric_has_one_direction_and_one_unit(name: str) -> None:
    for exhibit in PAPERS[name].exhibits:
        try:
            rows = published(name, exhibit.name)
        except ValueError:  # a table of models, or none
            continue
        assert (
            rows.groupby("quantity")[["better", "unit"]].nunique(dropna=False).eq(1).all(axis=None)
        )
        assert set(rows["better"]) <= {"", "more", "less"}
