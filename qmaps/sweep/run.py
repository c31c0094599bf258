"""One row per tensor and quantizer, or pair of quantizers."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from contextlib import nullcontext
from pathlib import Path

import pandas as pd

from qmaps.analyze import executors
from qmaps.analyze.states import MIN_SIZE, States, as_states
from qmaps.capture.moments import Moments
from qmaps.maps.codebook import Codebook
from qmaps.storage.files import claim, earlier_frame, output_folder, write_frame
from qmaps.storage.locks import FolderLock
from qmaps.sweep.plan import Item, Spec, items_of, specs_of, sweep_digest

RECORD, RESULT = "sweep.json", "sweep.parquet"


def summarize(sweep: pd.DataFrame, *, state: str = "update") -> pd.DataFrame:
    """One row per quantizer: means over tensors weighted by size, and the largest maxima.

    The weighted mean of an absolute or squared error is its mean over all elements. A relative
    error is averaged over elements other than 0 alone, and a tensor without such counts as an
    error of 0; its weighted mean is exact where no tensor holds zeros. Quantiles (median, p99,
    p999) of several tensors cannot be computed from those of each;
    `qmaps.analyze.update_error` measures them over all elements together. Columns whose names begin
    with ``max_`` are maxima.

    Args:
        sweep: a frame of `qmaps.sweep.run`.
        state: ``update`` for pairs, or a state's name.

    Returns:
        `quantizer`, `first`, `second`, `numel`, and the sweep's columns of floating-point numbers
        other than quantiles, in the order of the sweep. The frame is empty if the sweep has no
        rows of `state`.
    """
    rows = sweep[sweep["state"] == state]
    joined = ("quantile", "median", "p99", "p999")
    columns = [
        name
        for name in rows.columns
        if pd.api.types.is_float_dtype(rows[name])
        and rows[name].notna().any()
        and not name.startswith(joined)
    ]
    records = []
    for spec, group in rows.groupby("quantizer", sort=False):
        weight = group["numel"] / group["numel"].sum()
        record = {"quantizer": spec, "first": group["first"].iloc[0]}
        record |= {"second": group["second"].iloc[0], "numel": int(group["numel"].sum())}
        for name in columns:
            values = group[name]
            if name.endswith(("_low", "_high")):  # of a tensor that is measured in full: its mean
                values = values.fillna(group[name.rpartition("_")[0]])
            record[name] = (
                values.max() if name.startswith("max_") else float((values * weight).sum())
            )
        records.append(record)
    return pd.DataFrame(records)


def run(
    states: States,
    specs: Spec | Iterable[Spec],
    *,
    out: str | os.PathLike[str] | None = None,
    min_quantized_size: int = MIN_SIZE,
    codebooks: Iterable[Codebook] = (),
    progress: Callable[[int, int, str], None] | None = None,
    executor: Executor | None = None,
    workers: int | None = None,
    sample: float | None = None,
    moments: Moments | None = None,
) -> pd.DataFrame:
    """Measure quantizers on every tensor of captured states.

    A single quantizer is measured on every state, or on those without negative values if its map
    is unsigned. States of integers and booleans, such as codes of other libraries, are left out
    with a warning. A pair is measured on the Adam update of every parameter that has both moments;
    each of its quantizers is measured on its moment as well. The result has the same bits for any
    number of workers.

    Args:
        states: captured states, their path, or tensors by parameter and state name.
        specs: quantizers (``"B128/DE@4s"``) and pairs (``"B128/DE@4s + rank1/linear@4u"``, or the
            name of a preset such as ``"4bit"``), or one of them.
        out: a folder for the result. One file per item is written into its folder ``parts``
            as the sweep proceeds, and ``sweep.parquet`` at the end. An interrupted sweep goes on
            from the parts; damaged ones are measured again.
        min_quantized_size: parameters of at most this many elements are left out, as
            optimizers leave them in 32 bits.
        codebooks: codebooks of the caller's own that the specs name.
        progress: called before each item, or with workers after each, with the number of items
            done, the number of all, and the name of its parameter; at the end with an empty text.
        executor: where items are measured, each by one thread: any
            `concurrent.futures.Executor`, such as ``Client.get_executor()`` of Dask. Its workers
            read the states themselves, which therefore must have a path that they can read.
        workers: number of processes to start for the sweep, in place of an executor. As everywhere
            with `multiprocessing`, a script that calls this needs ``if __name__ == "__main__":``.
        sample: the share of each tensor to measure, such as 0.01: whole rows and whole blocks,
            chosen by a fixed rule (`qmaps.sweep.sample`), at least 128 units of them. Scales are
            still those of the whole tensor; maps are fitted to at most 2^24 elements. Beside
            each mean are the ends of its 95 % confidence interval, ``mean_abs_error_low`` and
            ``mean_abs_error_high``; both are NaN where a tensor is so small that all of it is
            measured. An interval is too narrow where few elements hold most of an error, as for
            relative errors of maps without 0. Maxima, code entropy and codes used are those of the
            sample. `mean_square` is exact. By default tensors of at most 2^24 elements are
            measured in full, and a sample of 2^20 elements of larger ones.
        moments: own names of Adam's moments, or patterns, where states have others:
            ``{"exp_avg": "momentum", "exp_avg_sq": "fim"}``. Names of other packages that are known
            (`qmaps.capture.moments.KNOWN`) need not be given. Rows have Adam's names, and the
            update is Adam's, whatever the optimizer makes of its moments.

    Returns:
        One row per parameter, state and quantizer, and one per parameter and pair. The columns
        are `step`, `parameter`, `shape` (such as ``768x3072``), `numel`, `state` (a state's name,
        or ``update``), `quantizer`, `first`, `second` (the quantizers of a pair, else None),
        `bits_per_element` (of a pair: the mean of both), and

        - for states the metrics of `qmaps.metrics` and `mean_square` (mean of the squared values),
        - for updates ``{mean,median,p99,p999,max}_{abs,rel}_error`` and `zeroed_share` as in
          `qmaps.analyze.update_error`.

    Raises:
        SpecError: a spec does not parse; nothing has been measured.
        CaptureError: there are no states, none is large enough, a pair is given and no parameter
            has both moments, or a state holds NaN or infinity.
        BadTypeError: `executor` or `workers` has a wrong type.
        BadValueError: states without a path are given to workers, `executor` and `workers` are
            combined, or `sample` is no share above 0 and at most 1.
        OutputError: `out` cannot be written, holds another sweep, or is being written by
            another process.
        CommunicationError: a worker was killed.
    """
    captured = as_states(states, moments)
    items = items_of(captured, specs, min_quantized_size, tuple(codebooks), sample)
    executors.check(captured, executor, workers)
    if text := captured.left_out():
        warnings.warn(text, stacklevel=2)
    with nullcontext() if out is None else FolderLock(out, "sweep") as lock:
        folder = None if lock is None else lock.folder
        parts: dict[int, pd.DataFrame] = {}
        if folder is not None:
            _begin(folder, items, sweep_digest(items, captured, min_quantized_size))
            rows = {item.number: earlier_frame(_part(folder, item.number)) for item in items}
            parts = {number: frame for number, frame in rows.items() if frame is not None}

        def keep(job: executors.Job, frame: pd.DataFrame) -> None:
            if folder is not None:
                write_frame(_part(folder, job.number), frame)

        frames = executors.measured(
            [executors.Job(i.number, i.parameter, i.work, i.measure) for i in items],
            captured,
            executor,
            workers,
            progress=progress,
            earlier=parts,
            keep=keep,
        )
        # A column without a text in one frame has another dtype there.
        result: pd.DataFrame = pd.concat(frames, ignore_index=True).infer_objects()
        if folder is not None:
            write_frame(folder / RESULT, result)
    return result


def _begin(out: Path, items: list[Item], digest: str) -> None:
    """Prepare the locked folder of a sweep of these items, or go on with the parts of another call.

    Raises:
        OutputError: the folder cannot be written, or holds another sweep or a damaged record.
    """
    parts = output_folder(out / "parts")
    if not (out / RECORD).exists():
        for unknown in parts.glob("*.parquet"):
            unknown.unlink()
    description = {
        "sweep": digest,
        "specs": specs_of(items),
        "parameters": [item.parameter for item in items],
    }
    claim(out / RECORD, description, "a sweep of other specs or states")


def _part(folder: Path, number: int) -> Path:
    """The file of an item's rows."""
    return folder / "parts" / f"{number:05d}.parquet"
