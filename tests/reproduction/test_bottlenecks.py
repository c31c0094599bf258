"""Why steps in few bits are slower: what shows that they wait for arithmetic, and what does not."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from reproduction import bottlenecks
from reproduction.context import Context

CASE = "AdamW 8-bit DE, four matrices"
OTHER = "SGD with momentum 8-bit, four matrices"
CASES = {CASE: "time: .*Adam: ", OTHER: "time: .*Momentum: "}


def steps(*rows: tuple[str, str, float, float, float]) -> pd.DataFrame:
    columns = ["machine", "case", "ratio", "bandwidth", "bandwidth_fused"]
    return pd.DataFrame(rows, columns=columns)


def cores(cached: float = 0.9, bound: bool = True) -> pd.DataFrame:
    return pd.DataFrame(
        [{"machine": "M", "optimizer": "AdamW", "step": "8 bits", "cached": cached, "bound": bound,
          "fewer": 1.75}]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("frame", "given", "shown"),
    [
        (steps(("M", CASE, 1.2, 0.3, 0.5)), cores(), True),  # it is as slow in a cache
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
    (found,) = bottlenecks.slower(frame, given, CASES)
    assert found.elsewhere is shown
    assert ("may wait" in found.why) is not shown


def test_each_case_explains_its_own_rows() -> None:
    frame = steps(("M", CASE, 1.2, 0.3, 0.5), ("M", OTHER, 1.4, 0.3, 0.5))
    adam, momentum = bottlenecks.slower(frame, cores(), CASES)
    assert (adam.elsewhere, momentum.elsewhere) == (True, False)
    assert "AdamW, 8 bits: 90 % of its time with everything in a core's cache" in adam.why
    assert "32 bits move 1.75 times as many bytes" in adam.why
    assert adam.explains("GLUE, time: 8-bit Adam: step, M")
    assert not adam.explains("GLUE, time: 8-bit Adam: step, N")
    assert not adam.explains("ImageNet, time: 8-bit Momentum: step, M")
    assert momentum.explains("ImageNet, time: 8-bit Momentum: step, M")
    assert bottlenecks.slower(frame.assign(ratio=0.9), cores(), CASES) == []


@pytest.mark.parametrize(
    ("arithmetic", "measured", "bound"),
    [
        (1.0, 1.1, True),
        (1.0, 1.4, False),  # 0.71 of its time: something else takes the rest
        (0.3, 0.35, False),  # its bytes take 0.32
    ],
)
def test_a_step_is_bound_by_what_takes_its_time(
    arithmetic: float, measured: float, bound: bool, tmp_path: Path
) -> None:
    rows = [
        {"machine": "M", "optimizer": "LAMB", "threads": threads, "step": step, "bytes": moved,
         "arithmetic": took, "bytes_per_second": threads * 50e9, "measured": whole}
        for threads in (1, 2)
        for step, moved, took, whole in (("32 bits, qmaps", 40.0, 0.5, 0.9),
                                         ("8 bits", 16.0, arithmetic, measured))
    ]  # fmt: skip
    (tmp_path / "bench").mkdir()
    pd.DataFrame(rows).to_csv(tmp_path / "bench" / "cores.csv", index=False)
    found = bottlenecks.cores(Context(tmp_path, reports=tmp_path))
    (row,) = found.to_dict("records")
    assert (row["optimizer"], row["bound"], row["fewer"]) == ("LAMB", bound, 2.5)
    assert row["cached"] == pytest.approx(arithmetic / measured)
    control = bottlenecks.measured(found, "M", "LAMB 8-bit, four matrices")
    assert control is not None
    assert control.arithmetic is bound
    assert bottlenecks.measured(found, "M", "LARS 8-bit, four matrices") is None
    assert bottlenecks.measured(found, "M", "a case without a control") is None


def test_the_committed_measurement_of_cores() -> None:
    reports = Path(__file__).parents[2] / "reports"
    found = bottlenecks.cores(Context(Path(), reports=reports))
    assert found["machine"].unique().tolist() == ["AMD EPYC (family 25, model 17)"]
    text = (reports / "bench" / "cores.md").read_text(encoding="utf-8")
    for row in found.to_dict("records"):
        named = rf"^\| {row['optimizer']} \| "
        (part,) = re.findall(named + rf"{row['step']} \| ([\d.]+) \|", text, re.MULTILINE)
        (whole,) = re.findall(
            named + rf"1 \| \d+ \| {row['step']} \| ([\d.]+) \|", text, re.MULTILINE
        )
        share = min(1.0, float(part) / float(whole))
        assert share == pytest.approx(row["cached"], abs=0.005)
    assert {
        one for pair in found[["optimizer", "step"]].to_numpy() for one in [tuple(pair)]
    } >= set(bottlenecks.SAME.values())
