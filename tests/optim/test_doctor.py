"""Reports of `qmaps.doctor`: problems with their repairs, and costs."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import qmaps
from qmaps.engines import native
from qmaps.engines.native import build
from qmaps.errors import BadTypeError, BadValueError
from qmaps.ops.backends import Backend, backends
from qmaps.optim import doctor as doctor_
from qmaps.optim.doctor import NOTE, PROBLEM, WIDTHS, Finding, Report

NO_CUDA = Backend("cuda", False, "torch is built without CUDA")
ALL_RUN = [Backend("reference", True, ""), Backend("native", True, ""), Backend("cuda", True, "")]


def processor(**fields: Any) -> dict[str, Any]:
    defaults = {"name": "a CPU", "cores": 4, "threads": 4, "instructions": "avx2"}
    return {**defaults, **fields}


def findings(engines: list[Backend], cpu: dict[str, Any]) -> list[Finding]:
    return list(doctor_.findings(engines, cpu))


@pytest.fixture(autouse=True)
def sound(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """An installation without problems, on any machine."""
    core = SimpleNamespace(compiler="GCC 1.2", isa=lambda: "avx2")
    core.isas = lambda: ["avx2", "portable"]
    monkeypatch.setattr(native, "core", core)
    monkeypatch.setattr(build, "command", lambda: "pip install THIS")
    for name in ("OMP_NUM_THREADS", "QMAPS_BACKEND", "QMAPS_ISA"):
        monkeypatch.delenv(name, raising=False)
    return core


def test_a_sound_installation_has_no_findings() -> None:
    assert findings(ALL_RUN, processor()) == []
    assert findings(ALL_RUN, processor(threads=2)) == []  # two threads per core


def test_a_missing_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "core", None)
    monkeypatch.setattr(native, "reason", "it was not built (none; or else); reinstall")
    assert findings(ALL_RUN, processor(instructions=None)) == [
        Finding(
            PROBLEM,
            "The native engine is missing, so CPU tensors run on plain PyTorch: with the same "
            f"results, but {build.SLOWER}. Reason: it was not built (none; or else).",
            "Install a C++20 compiler and run:",
            "pip install THIS",
        )
    ]


def test_threads_and_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    assert findings(ALL_RUN, processor(threads=8)) == [
        Finding(PROBLEM, "8 threads share 4 cores; they wait for each other.",
                "Set OMP_NUM_THREADS=4."),
    ]  # fmt: skip
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert findings(ALL_RUN, processor(threads=1)) == [
        Finding(NOTE, "1 thread is used, on 4 cores (OMP_NUM_THREADS=1).",
                "Set OMP_NUM_THREADS=4, unless other processes need the other cores."),
    ]  # fmt: skip
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    (actual,) = findings(ALL_RUN, processor(threads=2, cores=1))
    assert actual.message == (
        "2 threads share 1 core (OMP_NUM_THREADS=2); they wait for each other."
    )


def test_no_cuda_engine() -> None:
    (actual,) = findings([*ALL_RUN[:2], NO_CUDA], processor())
    assert actual.message == "There is no CUDA engine: torch is built without CUDA."
    assert actual.level == NOTE


def test_problems_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QMAPS_BACKEND", "reference")
    monkeypatch.setattr(doctor_, "processor", lambda: processor(threads=8))
    monkeypatch.setattr(
        doctor_, "findings", lambda *_: [Finding(NOTE, "", ""), Finding(PROBLEM, "", "")]
    )
    assert [finding.level for finding in qmaps.doctor(seconds=0).findings] == [PROBLEM, NOTE]


def test_cores_of_a_container(tmp_path: Path) -> None:
    uncontained = doctor_.processor(tmp_path)["cores"]
    assert uncontained >= 1
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n")
    for text, cores in {
        "max 100000\n": uncontained,
        "50000 100000": 1,
        "99900000 100000\n": uncontained,
    }.items():
        (tmp_path / "sys/fs/cgroup/cpu.max").write_text(text)
        actual = doctor_.processor(tmp_path)
        assert (actual["cores"], actual["name"]) == (cores, "Some CPU @ 2 GHz")


def test_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    actual = doctor_.versions()
    assert list(actual) == ["qmaps", "torch", "numpy", "Python", "system", "compiler"]
    assert (actual["torch"], actual["compiler"]) == (torch.__version__, "GCC 1.2")
    monkeypatch.setattr(native, "core", SimpleNamespace())  # of an earlier version
    assert doctor_.versions()["compiler"] == "unknown"
    monkeypatch.setattr(native, "core", None)
    assert doctor_.versions()["compiler"] == "none"


def test_times_are_per_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QMAPS_BACKEND", "reference")
    measured = []
    step = doctor_.AdamW.step

    def counted(optimizer: Any) -> None:
        step(optimizer)
        (parameter,) = optimizer.param_groups[0]["params"]
        measured.append(optimizer.state[parameter]["exp_avg"].nbytes)

    monkeypatch.setattr(doctor_.AdamW, "step", counted)
    monkeypatch.setattr(doctor_, "seconds_of", lambda call, _: call() is not None or 2)
    times = doctor_.measured((128, 64), 0)
    assert times == dict.fromkeys(["32 bits", "8 bits", "4 bits"], 2e9 / (128 * 64))
    sizes = (4 * 8192, 8192 + 4 * 32, 5120 + 4 * 64)
    assert measured == [nbytes for nbytes in sizes for _ in range(2)]  # one step warms up


def test_a_time_is_that_of_one_call() -> None:
    assert 0.001 <= doctor_.seconds_of(lambda: time.sleep(0.001), 0.01) < 1


def test_a_step_is_timed_without_setuptools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "setuptools", None)
    monkeypatch.setitem(sys.modules, "torch.utils.benchmark", None)  # which imports it
    assert doctor_.seconds_of(lambda: None, 0.001) < 1


def test_costs_follow_from_bytes() -> None:
    full, eight, four = doctor_.costs({"32 bits": 2.0, "8 bits": 1.0})
    assert [cost.bits_per_state_element for cost in (full, eight, four)] == [32, 8.125, 4.25]
    assert [cost.ns_per_parameter for cost in (full, eight, four)] == [2.0, 1.0, None]


def test_the_whole_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # as this installation is
    monkeypatch.setattr(doctor_, "SHAPE", (128, 64))
    monkeypatch.setattr(doctor_, "SMALL", (64, 64))
    report = qmaps.doctor(seconds=1e-6)
    assert [item.name for item in report.backends] == ["reference", "native", "cuda", "triton"]
    assert report.backends == backends()
    assert all(item.ns_per_parameter > 0 for item in report.steps)
    text = str(report)
    for part in ("Versions", "Back ends", "Processor", torch.__version__, "A step of AdamW"):
        assert part in text, part
    bits = json.loads(json.dumps(asdict(report)))["steps"][1]["bits_per_state_element"]
    assert bits == report.steps[1].bits_per_state_element


def report(**fields: Any) -> Report:
    defaults: dict[str, Any] = {
        "versions": {"qmaps": "1.2", "system": "x" * 40 + " " + "y" * 60},
        "backends": [*ALL_RUN[:2], NO_CUDA],
        "processor": processor(),
        "steps": doctor_.costs(dict.fromkeys(WIDTHS, 123.4)),
        "findings": [Finding(PROBLEM, "word " * 40, "Run:", "pip install this")],
    }
    return Report(**{**defaults, **fields})


def test_a_report_fits_80_columns() -> None:
    lines = str(report()).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[:3] == ["qmaps 1.2: 1 problem found", "", "problem: " + " ".join(["word"] * 14)]
    assert lines[5:7] == ["  Run:", "    pip install this"]
    assert "  cuda       does not run: torch is built without CUDA" in lines
    assert lines[-4] == "A step of AdamW on the CPU"
    assert lines[-3] == (
        "  32 bits  32.00 bits per state element; per parameter 8.00 bytes, 123.40 ns"
    )


def test_a_report_without_measurements() -> None:
    text = str(report(steps=doctor_.costs({}), findings=[]))
    assert text.startswith("qmaps 1.2: no problems found\n\nVersions\n")
    assert text.endswith("\n  4 bits   4.25 bits per state element; per parameter 1.06 bytes")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"seconds": -1}, BadValueError, "seconds=-1 must be at least 0"),
        ({"seconds": None}, BadTypeError, "seconds=None must be a number"),
    ],
)  # fmt: skip
def test_arguments_that_are_refused(options: Any, error: Any, message: str) -> None:
    with pytest.raises(error) as caught:
        qmaps.doctor(**options)
    assert str(caught.value) == message


def test_a_name_of_no_engine_is_refused_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("QMAPS_BACKEND", "nativ")
    monkeypatch.setattr(doctor_, "measured", None)
    with pytest.raises(BadValueError, match="nearest match: native"):
        qmaps.doctor()
    assert os.environ["QMAPS_BACKEND"] == "nativ"
