"""Trials: rows are cached, damaged ones run again, and processes do not change results."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks.trials import FULL, Trial, kept, restore, run_all
from qmaps.lab.workloads.stdlib_lm import StdlibLMTiny
from qmaps.storage.files import write_record

pytestmark = pytest.mark.slow

WORK = StdlibLMTiny(steps=2, warmup_steps=1, validation_batches=1)
TRIALS = [Trial("tiny", WORK, q, seed) for q in (FULL, "B128/DE@4s+sr + B128/DE-0@4u") for seed in
          (0, 1)]  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trials")
    run_all(TRIALS, folder, workers=1, report=lambda line: None)
    return folder


def test_rows_stand_in_the_order_of_trials(finished: Path) -> None:
    frame = run_all(reversed(TRIALS), finished, report=lambda line: None)
    assert frame["seed"].tolist() == [1, 0, 1, 0]
    assert frame["quantizer"].tolist() == [t.quantizer for t in reversed(TRIALS)]
    assert (frame["steps"] == 2).all()
    assert frame["loss"].between(4, 6).all()
    assert frame["loss"].nunique() == 4
    exact, quantized = frame["state_mib"][3], frame["state_mib"][1]
    assert quantized < exact / 3


def test_only_missing_and_damaged_trials_run(finished: Path, tmp_path: Path) -> None:
    for path in finished.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    damaged = tmp_path / f"{TRIALS[1].key}.json"
    damaged.write_text(damaged.read_text()[:-20])
    (tmp_path / f"{TRIALS[2].key}.json").unlink()
    assert kept(tmp_path, TRIALS[0])
    assert kept(tmp_path, TRIALS[1]) is None
    lines: list[str] = []
    again = run_all(TRIALS, tmp_path, workers=1, report=lines.append)
    assert lines[0] == "2 of 4 trials are done already"
    assert len(lines) == 3
    before = run_all(TRIALS, finished, report=lines.append)
    assert again["loss"].tolist() == before["loss"].tolist()


def test_rows_of_a_report_are_not_run_again(finished: Path, tmp_path: Path) -> None:
    before = run_all(TRIALS, finished, report=lambda line: None)
    report = tmp_path / "report.csv"
    before.assign(key=[t.key for t in TRIALS], extra=[1.5, None, 2, 3])[:3].to_csv(report)
    folder = tmp_path / "rows"
    restore(tmp_path / "absent.csv", folder)
    restore(report, folder)
    lines: list[str] = []
    again = run_all(TRIALS, folder, workers=1, report=lines.append)
    assert lines[0] == "3 of 4 trials are done already"
    assert again["loss"].tolist() == before["loss"].tolist()
    # What the folder has is left alone.
    write_record(folder / f"{TRIALS[0].key}.json", {"loss": 1.0, "seed": 0})
    restore(report, folder)
    row = kept(folder, TRIALS[0])
    assert row is not None
    assert row["loss"] == 1.0


def test_keys_of_trials_are_distinct() -> None:
    first = TRIALS[0]
    others = [first.at(2), *TRIALS[1:], Trial("tiny", StdlibLMTiny(steps=3), FULL, 0)]
    assert len({trial.key for trial in [first, *others]}) == len(others) + 1
    assert Trial("another name", WORK, FULL, 0).key == first.key
    assert first.at(2).workload.lr == 2 * WORK.lr


def test_a_loss_that_is_no_number_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StdlibLMTiny, "validate", lambda self, model: {"loss": math.nan})
    write_record(tmp_path / f"{TRIALS[0].key}.json", TRIALS[0].run())
    row = kept(tmp_path, TRIALS[0])
    assert row is not None
    assert math.isnan(row["loss"])
    assert row["quantizer"] == FULL
