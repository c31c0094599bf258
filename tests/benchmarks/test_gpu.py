"""The harness for devices runs on the CPU and reports failures."""

from __future__ import annotations

import json
import math
import os
import time
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from benchmarks.case import OURS, Setup, UnavailableError
from benchmarks.gpu import __main__ as command
from benchmarks.gpu import case as cases
from benchmarks.gpu import first_step, predictions
from benchmarks.gpu import items as all_items
from benchmarks.gpu import table as tables
from benchmarks.gpu.case import COPY, GpuCase, launches
from benchmarks.gpu.cases import CASES
from benchmarks.gpu.checks import CHECKS, Check, differing, hard_numerators
from benchmarks.gpu.clock import MOST_CALLS, SHORT, DeviceClock, at_most
from benchmarks.gpu.place import LEAST, Place
from benchmarks.gpu.table import table
from benchmarks.gpu.worker import LostError, Worker
from qmaps.cuda import engine

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
DRY = Place(CPU, 1e-5, 1, dry=True)


def test_every_case_and_check_runs(tmp_path: Path) -> None:
    assert command.main(["--dry", "--out", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "gpu.json").read_text())
    assert [row["name"] for row in results["cases"]] == [case.name for case in CASES]
    assert [row["name"] for row in results["checks"]] == [check.name for check in CHECKS]
    assert not any(row["failed"] for row in results["checks"])
    for row in results["cases"]:
        if "graph" in row["name"]:
            assert row["skipped"][OURS] == "CUDA graphs need a CUDA device"
            continue
        if row["name"].startswith("error metrics") and row["skipped"]:
            assert row["skipped"] == {OURS: "the engine in use has no such kernel"}
            continue
        assert row["values"][OURS]["median"] > 0, row["name"]
        assert math.isfinite(row["share_of_bound"][OURS])
        assert COPY not in row["values"]
    text = (tmp_path / "gpu.md").read_text()
    assert all(f"| {case.name} |" in text or "graph" in case.name for case in CASES)
    assert "A dry run: one call of everything on the CPU, no measurement" in text
    assert "All 29: the same bits" in text
    assert (tmp_path / "gpu.png").read_bytes().startswith(b"\x89PNG")


def doing(work=lambda: sum(range(100)), **options) -> GpuCase:
    def make(device: torch.device, elements: int) -> Setup:
        return Setup(
            {OURS: lambda: work, "peer": lambda: lambda: sum(range(100)), "other": missing},
            elements=elements,
            nbytes={OURS: 4.0},
        )

    return GpuCase("a case", make, 1 << 20, 8.0, **options)


def missing() -> None:
    raise UnavailableError("not installed")


def test_predictions_stand_beside_the_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "sass.csv"
    assert predictions.predictions("NVIDIA H100 80GB HBM3", file) == {}
    file.write_text(
        'case,gpu,ms_per_billion\n"8bit, float32",H100 SXM,5.1\n"8bit, float32",L40S,19\n'
    )
    by_case = {"8bit, float32": "5.1 (H100 SXM)"}
    assert predictions.predictions("NVIDIA H100 80GB HBM3", file) == by_case
    assert predictions.predictions("NVIDIA L40S", file) == {"8bit, float32": "19 (L40S)"}
    assert predictions.predictions("NVIDIA L4", file) == {}
    assert predictions.predictions("NVIDIA H100 PCIe", file) == {}
    monkeypatch.setattr(tables, "predictions", lambda device: by_case)
    row = doing(predicted={OURS: "8bit, float32"}).measure(DRY)
    row["ns_per_element"][OURS] = 0.0123
    settings = command.about([], CPU) | {"scale": 1, "rounds": 1, "budget": 1.0, "seconds": 1.0}
    text = table({"about": settings | {"dry": True}, "checks": [], "bandwidth": [], "cases": [row]})
    (line,) = [line for line in text.splitlines() if line.startswith("| a case | qmaps |")]
    assert [cell.strip() for cell in line.split("|")][4:6] == ["12.3", "5.1 (H100 SXM)"]
    sizes = {case.full for case in CASES if case.name.endswith("parameters")}
    assert sizes == {10**6, 10**7, 10**8, 10**9}


def test_goals() -> None:
    result = doing(share=1e9, most_ns=1e9, floors={"peer": 0.0, "other": 2}).measure(DRY)
    share, ns, peer, missing = result["goals"]
    assert (share["what"], share["reached"]) == ("share of the bound", False)
    assert (ns["what"], ns["reached"]) == ("ns per element", True)
    assert (peer["what"], peer["reached"]) == ("times peer", True)
    assert (missing["found"], missing["reached"], missing["skipped"]) == (
        None,
        None,
        "not installed",
    )
    bound = 4 * result["elements"] / result["copy_bytes_per_second"] * 1e3
    assert result["bound_ms"][OURS] == pytest.approx(bound)
    median = result["values"][OURS]["median"]
    assert result["share_of_bound"][OURS] == pytest.approx(bound / median)
    assert result["ns_per_element"][OURS] == pytest.approx(1e6 * median / LEAST)


def wrong() -> None:
    raise ValueError("no such kernel")


def run(items: dict, place: Place = DRY, minutes: float = 1.0) -> command.Run:
    def ask(name: str, where: Place, _: float) -> dict:
        all_items.ITEMS.update(items)
        try:
            return all_items.perform(name, where)
        finally:
            for added in items:
                all_items.ITEMS.pop(added)

    return command.Run(place, ask, minutes)


def test_a_wrong_answer_and_a_failure_are_reported_and_the_rest_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([1.0, 1.0, 2.0])
    check = Check("a check", lambda device, rows: {"codes": torch.tensor([0.0, next(answers)])})
    raises = Check("another check", lambda device, rows: wrong())
    bad, good = doing(wrong, share=0.8), GpuCase("fine", doing().make, 1 << 20, 8.0)
    items = {item.name: item for item in (check, raises)}
    items |= {"case a case": bad, "case fine": good}
    results = command.measure([bad, good], [check, raises], run(items))
    differs = "codes differs from qmaps on the CPU in 1 of 2 elements"
    assert [row["wrong"] for row in results["checks"]] == [
        [differs],
        ["ValueError: no such kernel"],
    ]
    failed, fine = results["cases"]
    assert failed["failed"]
    assert failed["goals"][0]["reached"] is None
    assert OURS in fine["values"]
    assert "no such kernel" in capsys.readouterr().err
    settings = command.about([], CPU) | {"scale": 1, "rounds": 1, "budget": 1.0, "seconds": 1.0}
    command.write({"about": settings | {"dry": True}, **results}, tmp_path)
    text = (tmp_path / "gpu.md").read_text()
    assert "**2 of 2 failed.**" in text
    assert f"- **a check**: {differs}" in text
    assert "not measured: ValueError: no such kernel" in text
    monkeypatch.setattr(command, "measure", lambda *_: results)
    assert command.main(["--dry", "--case", "quantiles", "--out", str(tmp_path)]) == 1


def test_cases_without_time_are_named() -> None:
    check = Check("a check", lambda device, rows: {})
    results = command.measure([doing()], [check], run({}, minutes=1e-3))
    assert results["cases"][0]["skipped"] == {OURS: "not measured: out of time"}
    assert results["checks"][0]["wrong"] == ["not measured: out of time"]
    # Checks may not take all of it.
    plenty = run({"a check": check, "case a case": doing()}, minutes=60.0)
    assert plenty.row("a check", 1, share=1e-6) == {"error": "not measured: out of time"}
    assert "error" not in plenty.row("case a case", 1)


def test_differences() -> None:
    x = torch.tensor([0.0, 1.0, float("nan")])
    assert differing(x, x.clone(), 0.0) == 0
    assert differing(x, -x, 0.0) == 2
    assert differing(x, x * (1 + 1e-6), 0.0) == 1
    assert differing(x, x * (1 + 1e-6), 1e-5) == 0
    assert differing(x, x.double(), 0.0) == 3
    assert differing(torch.tensor([1, 2]), torch.tensor([1, 3]), 0.0) == 1


def test_numerators_are_next_to_a_tie() -> None:
    d = torch.rand(1000, generator=torch.Generator().manual_seed(0)) + 1
    d = (d.view(torch.int32) | 1).view(torch.float32)
    for x, by in zip(hard_numerators(d).tolist(), d.tolist(), strict=True):
        quotient = Fraction(x) / Fraction(by)
        # In units of the last place of a float32.
        place = quotient / Fraction(2) ** (math.frexp(float(quotient))[1] - 24)
        assert abs(place % 1 - Fraction(1, 2)) <= Fraction(1, 2**23)


def test_kernels_of_the_first_step() -> None:
    states = "Format<8, 256, false, false, true, 1>, Format<8, 256, false, true, false, 1>"
    assert list(map(str, first_step.kernels("AdamW8bit", torch.bfloat16))) == [
        "write_words",
        "begin_step",
        f"step<Kind<AdamW, Bf16, Bf16, false, {states}>>",
        "step<Kind<AdamW, Bf16, Bf16, false, Plain, Plain>>",
    ]


def test_a_process_that_ends_or_hangs_is_replaced() -> None:
    with Worker(time.sleep) as worker:
        assert worker.ask(0.0, timeout=30.0) is None
        with pytest.raises(LostError, match=r"^took more than 0\.2 s; its process was ended$"):
            worker.ask(60.0, timeout=0.2)
        assert worker.ask(0.0, timeout=30.0) is None
    with (
        Worker(os._exit) as worker,
        pytest.raises(LostError, match=r"^its process ended with exit code 7$"),
    ):
        worker.ask(7, timeout=30.0)


def test_the_items_in_a_process_of_their_own() -> None:
    # Which does not import a package's __main__.
    assert not all_items.perform.__module__.endswith("__main__")
    with Worker(all_items.perform) as worker:
        result = worker.ask("case exact quantiles", DRY, timeout=60.0)
        assert result["values"][OURS]["median"] > 0
        assert not result["broken"]
        error = worker.ask("no such thing", DRY, timeout=60.0)
        assert error == {"error": "KeyError: 'no such thing'", "broken": False}


class Event:
    """A CUDA event on the host; work runs in order."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Event) -> float:
        return 1e3 * (end.at - self.at)


@pytest.fixture
def as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU stands for a device with 100 million free bytes."""
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (10**8, 10**9))
    allocated = {"memory_allocated": 1 << 20, "max_memory_allocated": 3 << 20}
    for name, value in allocated.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    for name in ("synchronize", "reset_peak_memory_stats", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    monkeypatch.setattr(Place, "on_gpu", True)


@pytest.mark.usefixtures("as_on_a_device")
def test_short_works_are_timed_many_in_a_row() -> None:
    calls: list[float] = []
    DeviceClock()(lambda: calls.append(0.0))
    assert len(calls) == 1 + MOST_CALLS
    calls.clear()
    assert DeviceClock()(lambda: (calls.append(0.0), time.sleep(SHORT))) >= SHORT
    assert len(calls) == 1


def test_patience_ends() -> None:
    with pytest.raises(TimeoutError, match=r"^took more than 0\.05 s$"), at_most(0.05):
        time.sleep(10)
    with at_most(math.inf):
        pass


@pytest.mark.usefixtures("as_on_a_device")
def test_measures_of_a_device() -> None:
    result = doing().measure(Place(CPU, 1.0, 2))
    assert result["peak_mib"] == {OURS: 2.0, "peer": 2.0}
    assert result["host_ms"][OURS] > 0
    assert result["own_kernels"] == 0
    assert len(result["samples"][OURS]) == 2
    assert result["scaled_down_from"] is None
    assert result["elements"] == 1 << 20
    large = GpuCase("large", doing().make, 10**8, 8.0).measure(Place(CPU, 1.0, 2))
    assert large["elements"] == 10**7
    assert large["scaled_down_from"] == 10**8
    results = {"checks": [], "bandwidth": [], "cases": [result, large]}
    settings = command.about([], CPU) | {"scale": 1, "rounds": 1, "budget": 1.0, "seconds": 1.0}
    text = table({"about": settings | {"dry": False}, **results})
    assert "scaled down from 100,000,000 elements to 10,000,000" in text
    assert "**the reference**: no kernel of its own" in text


def test_kernels_of_our_own_are_counted() -> None:
    class Counting(engine.Engine):
        device, blocks = CPU, 1

        def launch(self, entry: object, blocks: int, argument: object) -> None:
            pass

    stand_in = Counting()
    token = engine.stand_in.set(stand_in)
    try:
        assert launches(lambda: [stand_in.launch_over(None, 3, None) for _ in range(4)], CPU) == 4
        assert launches(lambda: None, CPU) == 0
    finally:
        engine.stand_in.reset(token)
    assert launches(lambda: None, CPU) == 0


def test_a_copy_counts_bytes_read_and_written() -> None:
    copy = cases.Copy(DRY)
    copy()
    assert torch.equal(copy._from, copy._to)
    assert copy.nbytes == 2 * copy._from.nbytes


def test_choices(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list", "--case", "quantiles"]) == 0
    names = capsys.readouterr().out.splitlines()
    assert "SRAM quantiles" in names
    assert not any("AdamW" in name for name in names)
    assert command.arguments(["--dry"]).out == Path("runs/gpu")
    assert command.arguments([]).out == Path("reports/gpu")
    if not torch.cuda.is_available():
        assert command.main([]) == 1
        expected = "error: torch finds no CUDA device; --dry runs all cases on the CPU\n"
        assert capsys.readouterr().err == expected
