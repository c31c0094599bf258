"""Doing jobs one after another, in a pool of processes, or on any executor."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from qmaps.algebra.own_maps import LOADED, load_files
from qmaps.analyze.states import opened
from qmaps.capture import CapturedStates
from qmaps.engines.threads import one_thread
from qmaps.errors import BadTypeError, BadValueError, CommunicationError, shown
from qmaps.storage.files import exists


@dataclass(frozen=True)
class Job:
    """A piece of work for any process: small, for workers open the states themselves.

    Attributes:
        number: its place among the jobs, from 0 on.
        name: text about it, for progress.
        work: approximate amount of work, for comparing jobs.
        measure: does the work in this process, with the states.
    """

    number: int
    name: str
    work: int
    measure: Callable[[Any], Any]


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
    jobs: Sequence[Job],
    states: CapturedStates,
    executor: Executor | None,
    workers: int | None = None,
    *,
    progress: Callable[[int, int, str], None] | None,
    earlier: Mapping[int, Any] = MappingProxyType({}),
    keep: Callable[[Job, Any], None] = lambda _, __: None,
) -> list[Any]:
    """Do jobs here, on an executor, or in a pool of processes.

    Args:
        jobs: the jobs.
        states: their states, accepted by `check` for these workers.
        executor: where they are done; None does them here, or in a pool.
        workers: number of processes of the pool; None for no pool.
        progress: called with the number of jobs done, the number of all, and the name of each job
            before it is done, or with workers after that; with workers also at the start; at the
            end with an empty text.
        earlier: results by number of jobs that are done already.
        keep: called with each job and its result.

    Returns:
        The result of each job, in the order of the jobs.

    Raises:
        CommunicationError: as `on_executor` and `in_pool`.
    """
    results = dict(earlier)
    todo = [job for job in jobs if job.number not in results]

    def tell(text: str) -> None:
        if progress:
            progress(len(results), len(jobs), text)

    def take(job: Job, result: Any) -> None:
        results[job.number] = result
        keep(job, result)

    if executor is None and workers is None:
        for job in todo:
            tell(job.name)
            take(job, job.measure(states))
    elif todo:
        tell(f"{len(todo)} jobs on workers")
        on_workers = (
            on_executor(todo, executor, states)
            if executor is not None
            else in_pool(todo, workers or 1, states)
        )
        for job, result in on_workers:
            take(job, result)
            tell(job.name)
    tell("")
    return [results[job.number] for job in jobs]


def on_executor(
    jobs: Sequence[Job], executor: Executor, states: CapturedStates
) -> Iterator[tuple[Job, Any]]:
    """Yield each job with its result as workers finish them, the most work begun first.

    Raises:
        BadValueError: the executor was shut down.
        CommunicationError: the executor lost its workers.
    """
    try:
        yield from _finished(jobs, executor, states)
    except BrokenExecutor:
        raise CommunicationError(
            f"executor={type(executor).__name__} has lost a worker, perhaps for lack of memory; "
            "call again with a new executor"
        ) from None


def in_pool(jobs: Sequence[Job], workers: int, states: CapturedStates) -> Iterator[tuple[Job, Any]]:
    """Yield each job with its result as processes of a pool finish them, the most work first.

    Raises:
        CommunicationError: a worker was killed, or none has started.
    """
    pool = new_pool(min(workers, len(jobs)))
    problem = (
        "no worker process could start; a script that passes workers must do so under "
        'if __name__ == "__main__":'
    )
    try:
        pool.submit(os.getpid).result()
        problem = "a worker was killed, perhaps for lack of memory; call again with fewer workers"
        yield from _finished(jobs, pool, states)
    except BrokenExecutor:
        raise CommunicationError(f"workers={workers}: {problem}") from None
    finally:
        pool.shutdown(cancel_futures=True)


def new_pool(workers: int) -> Executor:
    """A pool of new processes: OpenMP of a forked one would hang."""
    context = multiprocessing.get_context("spawn")
    # Classes of jobs are found by name, so files of the user's maps are run there first.
    return ProcessPoolExecutor(
        workers, mp_context=context, initializer=_begin, initargs=(tuple(LOADED),)
    )


def _begin(files: Sequence[Path]) -> None:
    """Load the user's maps in a worker, which ends silently at Ctrl-C and with its parent."""

    def end_after(parent: Any) -> None:
        parent.join()
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    threading.Thread(target=end_after, args=[parent], daemon=True).start()
    load_files(files)


def _finished(
    jobs: Sequence[Job], executor: Executor, states: CapturedStates
) -> Iterator[tuple[Job, Any]]:
    place = source_of(states), states.parameters(), tuple(states.given.items()), states.own_moments
    futures: dict[Future[Any], Job] = {}
    try:
        try:
            for job in sorted(jobs, key=lambda job: -job.work):
                futures[executor.submit(_measured, job, place)] = job
        except BrokenExecutor:
            raise
        except RuntimeError as error:  # it was shut down
            name = type(executor).__name__
            raise BadValueError(f"executor={name} accepts no work ({error})") from None
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        for future in futures:
            future.cancel()


def _measured(
    job: Job,
    place: tuple[str, list[str], tuple[tuple[str, Any], ...], dict[str, str] | None],
) -> Any:
    """Do a job with one thread: there are as many workers as processors."""
    with one_thread():
        return job.measure(opened(*place))
