"""Short training runs, several at once, each kept as one small file.

A trial is AdamW with two quantizers on a workload with one seed. Its row is written at its end, so
an interrupted study continues with the missing trials.
"""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from qmaps.errors import OutputError
from qmaps.lab.compare import Contender
from qmaps.lab.workloads import Workload, train
from qmaps.storage.files import output_folder, read_record, write_record

FULL = "32-bit"
"""The quantizer of trials with both moments in 32 bits."""


@dataclass(frozen=True)
class Trial:
    """One training run.

    Attributes:
        judge: name of the workload's variant, for tables.
        workload: the workload, with its learning rate.
        quantizer: a pair such as ``"B128/DE@4s + B128/DE-0@4u"``, or `FULL`.
        seed: seed of weights and batches.
    """

    judge: str
    workload: Workload
    quantizer: str
    seed: int

    def at(self, factor: float) -> Trial:
        """The same trial with the learning rate times `factor`."""
        return replace(self, workload=replace(self.workload, lr=self.workload.lr * factor))

    @property
    def key(self) -> str:
        """A hash of all inputs of the result, except versions and the machine."""
        told = {
            "workload": self.workload.name,
            **self.workload.settings(),
            "steps": self.workload.steps,
            "quantizer": self.quantizer,
            "seed": self.seed,
        }
        text = json.dumps(told, sort_keys=True, default=asdict)
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    def run(self) -> dict[str, Any]:
        """Train, and return the row."""
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            done = train(
                self.workload,
                self.optimizer,
                out=folder,
                label=self.quantizer,
                seed=self.seed,
                checkpoint_every=self.workload.steps,
                validate_every=self.workload.steps,
            )
        return {
            "judge": self.judge,
            "quantizer": self.quantizer,
            "lr": self.workload.lr,
            "steps": self.workload.steps,
            "seed": self.seed,
            **done.final,
            "state_mib": done.state_nbytes / 2**20,
            "seconds": time.perf_counter() - start,
        }

    def optimizer(self, model: nn.Module, workload: Workload) -> torch.optim.Optimizer:
        """The optimizer of the run."""
        quantizers = None if self.quantizer == FULL else self.quantizer
        return Contender(self.quantizer, quantizers).optimizer(model, workload)


def run_all(
    trials: Iterable[Trial],
    folder: str | os.PathLike[str],
    *,
    workers: int = 0,
    report: Callable[[str], None] = print,
) -> pd.DataFrame:
    """Run the trials without a row in `folder`, and return all rows in the order of `trials`.

    Each process uses one thread, so the number of processes does not affect results. One worker is
    this process.

    Args:
        trials: the trials.
        folder: folder of the rows, one JSON file each.
        workers: number of processes; one per core if 0.
        report: called with a line after each trial.

    Returns:
        One row per trial: `judge`, `quantizer`, `lr`, `steps`, `seed`, the metrics of the
        workload after the last step (`loss` is one), `state_mib` and `seconds`.
    """
    trials = list(trials)
    rows_in = output_folder(folder)
    rows = {trial.key: row for trial in trials if (row := kept(rows_in, trial)) is not None}
    pending = {trial.key: trial for trial in trials if trial.key not in rows}
    report(f"{len(rows)} of {len(rows) + len(pending)} trials are done already")
    for number, (trial, row) in enumerate(_run(list(pending.values()), workers), 1):
        write_record(rows_in / f"{trial.key}.json", row)
        rows[trial.key] = row
        report(
            f"{number}/{len(pending)} {trial.judge} {trial.quantizer} lr {trial.workload.lr:g} "
            f"seed {trial.seed}: {row['loss']:.4f} ({row['seconds']:.0f} s)"
        )
    frame = pd.DataFrame([rows[trial.key] for trial in trials])
    return frame.assign(judge=[trial.judge for trial in trials])


def restore(report: Path, folder: str | os.PathLike[str]) -> None:
    """Copy rows of an earlier report to `folder`, to skip their trials.

    Args:
        report: a CSV with the columns of `run_all` and `key`; it may be absent.
        folder: as for `run_all`. Existing rows are left alone.
    """
    if not report.exists():
        return
    rows_in = output_folder(folder)
    for row in pd.read_csv(report).drop_duplicates("key").to_dict("records"):
        path = rows_in / f"{row.pop('key')}.json"
        if not path.exists():
            write_record(path, {name: value for name, value in row.items() if not pd.isna(value)})


def _run(trials: list[Trial], workers: int) -> Iterator[tuple[Trial, dict[str, Any]]]:
    if not trials:
        return
    if workers == 1:  # pretrained weights are made once, not in a new process for each call
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield from ((trial, trial.run()) for trial in trials)
        finally:
            torch.set_num_threads(threads)
        return
    pool = ProcessPoolExecutor(
        workers or os.cpu_count(),
        multiprocessing.get_context("spawn"),
        initializer=torch.set_num_threads,
        initargs=(1,),
    )
    try:
        waiting: dict[Future[dict[str, Any]], Trial] = {pool.submit(t.run): t for t in trials}
        for done in as_completed(waiting):
            yield waiting[done], done.result()
    finally:
        pool.shutdown(cancel_futures=True)


def kept(folder: Path, trial: Trial) -> dict[str, Any] | None:
    """The row of a trial; None if it has not been run, or its file is damaged."""
    path = folder / f"{trial.key}.json"
    if not path.exists():
        return None
    try:
        row = read_record(path)
    except OutputError:
        return None
    return {name: math.nan if value is None else value for name, value in row.items()}
