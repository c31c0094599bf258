"""Measuring items of work one after another, in a pool of processes, or on any executor."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Protocol, TypeVar

import pandas as pd

from qmaps.capture import CapturedStates
from qmaps.engines.threads import one_thread
from qmaps.errors import BadTypeError, BadValueError, CommunicationError, shown
from qmaps.storage.files import exists

RESTARTS = 3
"""Pools that are made in place of broken ones until an item is done again."""

RESUMED = "the sweep goes on from its parts"


class Work(Protocol):
    """A piece of work for any process: small, for workers read the states themselves."""

    @property
    def number(self) -> int:
        """Its place among the items, from 0 on."""

    @property
    def source(self) -> str:
        """The file or folder of the states; empty for states in memory."""

    @property
    def work(self) -> int:
        """Approximate amount of work, for comparing items."""

    def measure(self, states: CapturedStates | None = None) -> pd.DataFrame:
        """Measure the item in this process; without `states` they are read from `source`."""


W = TypeVar("W", bound=Work)


def check(items: Sequence[Work], executor: Executor | None, workers: int | None) -> None:
    """Raise if the items cannot be measured by these workers.

    Raises:
        BadTypeError: `executor` or `workers` has a wrong type.
        BadValueError: there are both an executor and workers, fewer than one worker, states in
            memory, or workers in a process that must not start any.
    """
    if executor is not None and not isinstance(executor, Executor):
        raise BadTypeError(
            f"executor={shown(executor)} must be a concurrent.futures.Executor or None"
        )
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int)):
        raise BadTypeError(f"workers={shown(workers)} must be an int or None")
    if executor is not None and workers is not None:
        raise BadValueError(
            f"workers={workers} cannot be combined with an executor, which has workers of its own"
        )
    if workers is not None and workers < 1:
        raise BadValueError(f"workers={workers} must be at least 1")
    if workers is not None and multiprocessing.current_process().daemon:
        raise BadValueError(
            f"workers={workers} cannot be started by a daemonic process, such as a worker of "
            "multiprocessing.Pool or of a DataLoader; use workers=None there"
        )
    if (executor is not None or workers is not None) and not items[0].source:
        raise BadValueError(
            "states in memory cannot be read by workers; give the path of captured states or of a "
            "checkpoint"
        )


def source_of(states: CapturedStates) -> str:
    """The file or folder of states, for workers; empty for states in memory."""
    return states.source if exists(Path(states.source)) else ""


def measured(
    items: Sequence[W],
    states: CapturedStates,
    executor: Executor | None,
    workers: int | None,
    *,
    progress: Callable[[int, int, str], None] | None,
    note: Callable[[W], str],
    earlier: Mapping[int, pd.DataFrame] = MappingProxyType({}),
    keep: Callable[[W, pd.DataFrame], None] = lambda _, __: None,
    what: str = "items",
    then: str = RESUMED,
) -> list[pd.DataFrame]:
    """Measure items here, on an executor, or in a pool of processes.

    Args:
        items: the items, accepted by `check` for these workers.
        states: the states of the items.
        executor: where they are measured; None measures them here, or in a pool.
        workers: number of processes of the pool; None for no pool.
        progress: called with the number of items done, the number of all, and a note: that of each
            item before it is measured, or with workers after that; with workers also at the start;
            at the end with an empty note.
        note: text about an item.
        earlier: rows by number of items that are done already.
        keep: called with each item and its rows.
        what: name of the items, in the plural.
        then: effect of a second call, for messages.

    Returns:
        The rows of each item, in the order of the items.

    Raises:
        CommunicationError: as `on_executor` and `in_pool`.
    """
    frames = dict(earlier)
    todo = [item for item in items if item.number not in frames]

    def tell(text: str) -> None:
        if progress:
            progress(len(frames), len(items), text)

    def take(item: W, frame: pd.DataFrame) -> None:
        frames[item.number] = frame
        keep(item, frame)

    if executor is None and workers is None:
        for item in todo:
            tell(note(item))
            take(item, item.measure(states))
    elif todo:
        tell(f"{len(todo)} {what} on workers")
        if executor is not None:
            results = on_executor(todo, executor, then)
        else:
            results = in_pool(todo, workers or 1, then)
        for item, frame in results:
            take(item, frame)
            tell(note(item))
    tell("")
    return [frames[item.number] for item in items]


@contextmanager
def communication_errors(executor: Executor, then: str) -> Iterator[None]:
    """Raise a `CommunicationError` where an executor loses its workers within the block.

    Args:
        executor: the executor.
        then: effect of a second call, for the message.
    """
    try:
        yield
    except BrokenExecutor:
        raise CommunicationError(
            f"executor={type(executor).__name__} has lost a worker, perhaps for lack of memory; "
            f"call again with a new executor, and {then}"
        ) from None


def on_executor(
    items: Sequence[W], executor: Executor, then: str = RESUMED
) -> Iterator[tuple[W, pd.DataFrame]]:
    """Yield each item with its rows as workers finish them, the most work begun first.

    Raises:
        CommunicationError: the executor lost its workers.
    """
    with communication_errors(executor, then):
        yield from _finished(items, executor)


def in_pool(
    items: Sequence[W], workers: int, then: str = RESUMED
) -> Iterator[tuple[W, pd.DataFrame]]:
    """Yield each item with its rows as processes of a pool finish them, the most work begun first.

    Where a worker is killed, the items without rows are measured by a new pool.

    Raises:
        CommunicationError: `RESTARTS` pools in a row have lost a worker and finished no item, or no
            worker has started.
    """
    waiting = {item.number: item for item in items}
    restarts = 0
    while waiting:
        count = min(workers, len(waiting))
        pool, started = new_pool(count), False
        try:
            next(as_completed([pool.submit(os.getpid) for _ in range(count)])).result()
            started = True
            for item, frame in _finished(list(waiting.values()), pool):
                del waiting[item.number]
                restarts = 0
                yield item, frame
        except BrokenExecutor:
            restarts += 1
            if not started:
                raise CommunicationError(
                    f"workers={workers}: no worker process could start; a script that passes "
                    'workers must do so under if __name__ == "__main__":'
                ) from None
            if restarts > RESTARTS:
                raise CommunicationError(
                    f"workers={workers}: a worker was killed {restarts} times in a row, perhaps "
                    f"for lack of memory; use fewer workers, and {then}"
                ) from None
        finally:
            pool.shutdown(cancel_futures=True)


def new_pool(workers: int) -> Executor:
    """A pool of new processes: OpenMP of a forked one would hang."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_end_with_the_parent)


def _end_with_the_parent() -> None:
    """Let a worker end silently at Ctrl-C, and when the main process is killed."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_after_parent, daemon=True).start()


def _end_after_parent() -> None:
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)


def _finished(items: Sequence[W], executor: Executor) -> Iterator[tuple[W, pd.DataFrame]]:
    most_first = sorted(items, key=lambda item: -item.work)
    futures = {}
    try:
        for item in most_first:
            futures[_submitted(item, executor)] = item
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        for future in futures:
            future.cancel()


def _submitted(item: Work, executor: Executor) -> Future[pd.DataFrame]:
    try:
        return executor.submit(_measured, item)
    except BrokenExecutor:
        raise
    except RuntimeError as error:  # it was shut down
        raise BadValueError(
            f"executor={type(executor).__name__} accepts no work ({error})"
        ) from None


def _measured(item: Work) -> pd.DataFrame:
    """Measure an item with one thread: there are as many workers as processors."""
    with one_thread():
        return item.measure()
