"""Why steps in few bits are slower: what shows that they wait for arithmetic, and what does not."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from reproduction import waiting
from reproduction.context import Context

CASE = "AdamW 8-bit DE, four matrices"
OTHER = "SGD with momentum 8-bit, four matrices"
CASES = {CASE: "time: .*Adam: ", OTHER: "time: .*Momentum: "}


def steps(*rows: tuple[str, str, float, float, float]) -> pd.DataFrame:
    columns = ["machine", "case", "ratio", "bandwidth", "bandwidth_fused"]
    return pd.DataFrame(rows, columns=columns)


def cores(one: float = 0.6, more: float = 0.9, bound: bool = True) -> pd.DataFrame:
    return pd.DataFrame(
        [{"machine": "M", "step": "8 bits", "threads": 2, "one": one, "more": more, "bound": bound}]
    )


@pytest.mark.parametrize(
    ("frame", "given", "shown"),
    [
        (steps(("M", CASE, 1.2, 0.3, 0.5)), cores(), True),  # more cores make it gain
        (steps(("M", CASE, 1.2, 0.3, 0.5)), cores(more=0.7), False),  # by too little
        (steps(("M", CASE, 1.2, 0.3, 0.5)), cores(bound=False), False),
        (steps(("N", CASE, 1.2, 0.3, 0.5)), cores(), False),  # measured on another machine
        (steps(("M", OTHER, 1.2, 0.3, 0.5)), cores(), False),  # another step
        (steps(("M", OTHER, 1.2, 0.3, 0.9)), cores(), True),  # torch's step fills the memory's bus
        (steps(("M", OTHER, 1.2, 0.8, 0.9)), cores(), False),  # and so does ours
        (steps(("M", OTHER, 1.2, 0.3, 0.5), ("N", OTHER, 0.9, 0.8, 0.9)), cores(), True),
    ],
)
def test_what_shows_that_a_step_waits_for_arithmetic(
    frame: pd.DataFrame, given: pd.DataFrame, shown: bool
) -> None:
    (found,) = waiting.slower(frame, given, CASES)
    assert found.elsewhere is shown
    assert ("may wait" in found.why) is not shown


def test_each_case_explains_its_own_rows() -> None:
    frame = steps(("M", CASE, 1.2, 0.3, 0.5), ("M", OTHER, 1.4, 0.3, 0.5))
    adam, momentum = waiting.slower(frame, cores(), CASES)
    assert (adam.elsewhere, momentum.elsewhere) == (True, False)
    assert "8 bits have 0.6 times the speed of torch's step with one thread, 0.9 times with 2" in (
        adam.why
    )
    assert adam.explains("GLUE, time: 8-bit Adam: step, M")
    assert not adam.explains("GLUE, time: 8-bit Adam: step, N")
    assert not adam.explains("ImageNet, time: 8-bit Momentum: step, M")
    assert momentum.explains("ImageNet, time: 8-bit Momentum: step, M")
    assert waiting.slower(frame.assign(ratio=0.9), cores(), CASES) == []


def test_the_committed_measurement_of_cores() -> None:
    reports = Path(__file__).parents[2] / "reports"
    found = waiting.cores(Context(Path(), reports=reports)).set_index("step")
    assert found["machine"].unique().tolist() == ["AMD EPYC"]
    text = (reports / "bench" / "cores.md").read_text(encoding="utf-8")
    assert "AMD EPYC" in text
    for step, row in found.iterrows():
        for threads, column in ((1, "one"), (row["threads"], "more")):
            (said,) = re.findall(
                rf"^\| AdamW \| {threads} \| \d+ \| {step} \|.* ([\d.]+) \|$", text, re.MULTILINE
            )
            assert float(said) == pytest.approx(row[column], abs=0.006)
