"""Measuring items of work one after another, in a pool of processes, or on any executor."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

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
    def work(self) -> int:
        """Approximate amount of work, for comparing items."""

    def measure(self, states: CapturedStates | None = None) -> Any:
        """Do the work in this process; without `states` it opens them itself."""


W = TypeVar("W", bound=Work)


def check(states: CapturedStates, executor: Executor | None, workers: int | None) -> None:
    """Raise if these workers cannot measure these states.

    Raises:
        BadTypeError: `executor` or `workers` has a wrong type.
        BadValueError: there are both an executor and workers, fewer than one worker, states in
            memory, or workers in a process that must not start any.
    """
    if executor is not None and not isinstance(executor, Executor):
        raise BadTypeError(
            f"executor={shown(executor)} must be a concurrent.futures.Executor or None"
        )
    if workers is not None:
        if isinstance(workers, bool) or not isinstance(workers, int):
            raise BadTypeError(f"workers={shown(workers)} must be an int or None")
        if executor is not None:
            raise BadValueError(
                f"workers={workers} cannot be combined with an executor, which has workers of its "
                "own"
            )
        if workers < 1:
            raise BadValueError(f"workers={workers} must be at least 1")
        if multiprocessing.current_process().daemon:
            raise BadValueError(
                f"workers={workers} cannot be started by a daemonic process, such as a worker of "
                "multiprocessing.Pool or of a DataLoader; use workers=None there"
            )
    if (executor is not None or workers is not None) and not source_of(states):
        raise BadValueError(
            "states in memory cannot be read by workers; give the path of captured states or of a "
            "checkpoint"
        )


def source_of(states: CapturedStates) -> str:
    """The file or folder of states, for workers; empty for states in memory."""
    return states.source if exists(Path(states.source)) else ""


def measured(
    items: Sequence[W],
    states: CapturedStates | None,
    executor: Executor | None,
    workers: int | None = None,
    *,
    progress: Callable[[int, int, str], None] | None,
    note: Callable[[W], str],
    earlier: Mapping[int, Any] = MappingProxyType({}),
    keep: Callable[[W, Any], None] = lambda _, __: None,
    what: str = "items",
    then: str = RESUMED,
) -> list[Any]:
    """Measure items here, on an executor, or in a pool of processes.

    Args:
        items: the items.
        states: the states of the items, accepted by `check` for these workers.
        executor: where they are measured; None measures them here, or in a pool.
        workers: number of processes of the pool; None for no pool.
        progress: called with the number of items done, the number of all, and a note: that of each
            item before it is measured, or with workers after that; with workers also at the start;
            at the end with an empty note.
        note: text about an item.
        earlier: results by number of items that are done already.
        keep: called with each item and its result.
        what: name of the items, in the plural.
        then: effect of a second call, for messages.

    Returns:
        The result of each item, in the order of the items.

    Raises:
        CommunicationError: as `on_executor` and `in_pool`.
    """
    results = dict(earlier)
    todo = [item for item in items if item.number not in results]

    def tell(text: str) -> None:
        if progress:
            progress(len(results), len(items), text)

    def take(item: W, result: Any) -> None:
        results[item.number] = result
        keep(item, result)

    if executor is None and workers is None:
        for item in todo:
            tell(note(item))
            take(item, item.measure(states))
    elif todo:
        tell(f"{len(todo)} {what} on workers")
        of_workers = (
            in_pool(todo, workers or 1, then)
            if executor is None
            else on_executor(todo, executor, then)
        )
        for item, result in of_workers:
            take(item, result)
            tell(note(item))
    tell("")
    return [results[item.number] for item in items]


def on_executor(
    items: Sequence[W], executor: Executor, then: str = RESUMED
) -> Iterator[tuple[W, Any]]:
    """Yield each item with its result as workers finish them, the most work begun first.

    Raises:
        BadValueError: the executor was shut down.
        CommunicationError: the executor lost its workers.
    """
    try:
        yield from _finished(items, executor)
    except BrokenExecutor:
        raise CommunicationError(
            f"executor={type(executor).__name__} has lost a worker, perhaps for lack of memory; "
            f"call again with a new executor, and {then}"
        ) from None


def in_pool(items: Sequence[W], workers: int, then: str = RESUMED) -> Iterator[tuple[W, Any]]:
    """Yield each item with its result as processes of a pool finish them, the most work first.

    Where a worker is killed, a new pool measures the other items.

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
            for item, result in _finished(list(waiting.values()), pool):
                del waiting[item.number]
                restarts = 0
                yield item, result
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

    def end_after(parent: Any) -> None:
        parent.join()
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    threading.Thread(target=end_after, args=[parent], daemon=True).start()


def _finished(items: Sequence[W], executor: Executor) -> Iterator[tuple[W, Any]]:
    futures: dict[Future[Any], W] = {}
    try:
        for item in sorted(items, key=lambda item: -item.work):
            futures[executor.submit(_measured, item)] = item
    except BrokenExecutor:
        raise
    except RuntimeError as error:  # it was shut down
        name = type(executor).__name__
        raise BadValueError(f"executor={name} accepts no work ({error})") from None
    try:
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        for future in futures:
            future.cancel()


def _measured(item: Work) -> Any:
    """Measure an item with one thread: there are as many workers as processors."""
    with one_thread():
        return item.measure()
