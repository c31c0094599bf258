"""One row per tensor and quantizer, or pair of quantizers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext

import pandas as pd

from qmaps.analyze import executors
from qmaps.analyze._states import MIN_SIZE, States, as_states
from qmaps.maps.codebook import Codebook
from qmaps.storage.files import earlier_frame, write_frame
from qmaps.storage.locks import FolderLock
from qmaps.sweep.parts import RESULT, begin, joined, part
from qmaps.sweep.plan import Item, Spec, identified, items_of


class Meter:
    """Counts the work done, in elements measured with all specs.

    Args:
        items: the items to measure.
        clock: gives seconds.
    """

    def __init__(self, items: Sequence[Item], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun = clock()
        self._all = sum(item.work for item in items)
        self._numel = sum({item.position: item.numel for item in items}.values())
        self._done = 0

    def add(self, item: Item) -> None:
        """Count a measured item."""
        self._done += item.work

    def note(self, item: Item) -> str:
        """The name of an item's parameter, with throughput and time left once they are known."""
        seconds = self._clock() - self._begun
        if not self._done or seconds <= 0:
            return item.parameter
        rate = self._done / seconds
        remaining = (self._all - self._done) / rate
        elements = amount(rate * self._numel / self._all)
        return f"{item.parameter} ({elements} elements/s, {duration(remaining)} left)"


def amount(number: float) -> str:
    """A number with three digits and a letter for thousands, millions or billions.

    >>> amount(1_234_567)
    '1.23M'
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.3g}"


def duration(seconds: float) -> str:
    """A duration in its two largest units.

    >>> duration(42), duration(200), duration(7300)
    ('42 s', '3 min 20 s', '2 h 1 min')
    """
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    minutes, seconds_left = divmod(total, 60)
    if minutes < 60:
        return f"{minutes} min {seconds_left} s"
    return f"{minutes // 60} h {minutes % 60} min"


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
    sample: float | str | None = None,
) -> pd.DataFrame:
    """Measure quantizers on every tensor of captured states.

    A single quantizer is measured on every state, or on those without negative values if its map
    is unsigned. A pair is measured on the Adam update of every parameter that has both moments;
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
            done, the number of all, and the name of its parameter with the throughput and the
            time left; at the end with an empty text.
        executor: where items are measured, each by one thread: any
            `concurrent.futures.Executor`, such as ``Client.get_executor()`` of Dask. Its workers
            read the states themselves, which therefore must have a path that they can read.
        workers: number of processes to start for the sweep, in place of an executor. The items
            of killed ones are measured again. As everywhere with `multiprocessing`, a script that
            calls this needs ``if __name__ == "__main__":``.
        sample: the share of each tensor to measure, such as 0.01 or ``"1%"``: whole rows and whole
            blocks, chosen by a fixed rule (`qmaps.sweep.units`), at least 128 units of them. Scales
            are still those of the whole tensor; maps are fitted to at most 2^24 elements. Beside
            each mean are the ends of its 95 % confidence interval, ``mean_abs_error_low`` and
            ``mean_abs_error_high``; both are NaN where a tensor is so small that all of it is
            measured. An interval is too narrow where few elements hold most of an error, as for
            relative errors of maps without 0. Maxima, code entropy and codes used are those of the
            sample. `mean_square` is exact. By default tensors of at most 50 million elements are
            measured in full, and a sample of 2^20 elements of larger ones. A text above 0.5 needs a
            percent sign: ``"1"`` could mean all or a hundredth.

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
        CommunicationError: workers were killed again and again.
    """
    captured = as_states(states)
    items = items_of(captured, specs, min_quantized_size, tuple(codebooks), sample)
    executors.check(captured, executor, workers)
    with nullcontext() if out is None else FolderLock(out, "sweep") as lock:
        folder = None if lock is None else lock.folder
        parts: dict[int, pd.DataFrame] = {}
        if folder is not None:
            begin(folder, identified(items, captured, min_quantized_size))
            rows = {item.number: earlier_frame(part(folder, item.number)) for item in items}
            parts = {number: frame for number, frame in rows.items() if frame is not None}
        meter = Meter([item for item in items if item.number not in parts])

        def keep(item: Item, frame: pd.DataFrame) -> None:
            if folder is not None:
                write_frame(part(folder, item.number), frame)
            meter.add(item)

        frames = executors.measured(
            items,
            captured,
            executor,
            workers,
            progress=progress,
            note=meter.note,
            earlier=parts,
            keep=keep,
        )
        result = joined(frames, [item.states for item in items])
        if folder is not None:
            write_frame(folder / RESULT, result)
    return result
