"""Training runs side by side, each in a process with one thread."""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Self

from qmaps.engines.threads import one_thread
from qmaps.errors import CommunicationError
from qmaps.lab.workloads.run_folder import RunFolder, TrainingRun
from qmaps.lab.workloads.training import Progress, train
from qmaps.storage.files import exists, output_folder

INTERVAL = 0.25
"""Seconds between two messages of a process on its progress."""


@dataclass(frozen=True, eq=False)
class Training:
    """A training run. Another process can do it if all of it can be pickled.

    Attributes:
        name: name of the run in progress and in messages.
        out: its folder.
        options: the other arguments of `train`, but `progress`.
    """

    name: str
    out: Path
    options: Mapping[str, Any]

    def run(self, progress: Progress | None) -> TrainingRun:
        """Train in this process; `progress` as for `train`."""
        return train(out=self.out, progress=progress, **self.options)


class Trainings:
    """Context manager of training runs in processes.

    At the end of the block, also after an error or Ctrl-C, unfinished runs write a checkpoint and
    stop; `train` resumes them. They do so as well if this process is killed. A run has the same
    bits for any number of processes.

    Args:
        workers: number of processes, each with one thread. With 1 the runs are done in this
            process, one after another; with None as well, and with torch's number of threads.
        progress: called in this process with the name of the run, the step, the number of steps,
            and the training loss.
    """

    def __init__(
        self,
        workers: int | None = None,
        progress: Callable[[str, int, int, float], None] | None = None,
    ) -> None:
        self._workers = workers
        self._progress = progress or (lambda *_: None)
        self._waiting: list[Training] = []
        self._processes: dict[Connection, tuple[Training, BaseProcess]] = {}
        self._begun: set[Connection] = set()
        self._results: dict[Training, TrainingRun | Exception] = {}

    def __enter__(self) -> Self:
        return self

    def start(self, trainings: Sequence[Training]) -> None:
        """Start these runs, as many at once as there are processes.

        Raises:
            BadValueError, BadTypeError, OutputError: as `train`, in this or a later call.
        """
        for training in trainings:
            is_done = exists(RunFolder(output_folder(training.out)).result)
            if self._workers is None or self._workers == 1 or is_done:
                with one_thread() if self._workers else contextlib.nullcontext():
                    self._results[training] = training.run(partial(self._progress, training.name))
            else:
                self._waiting.append(training)
        self._fill()

    def poll(self, timeout: float | None = 0) -> None:
        """Report the progress so far, and start the next run if a process is free.

        It waits `timeout` seconds for news, with None as long as it takes.

        Raises:
            CommunicationError: a process ended without a result; the message names its run.
        """
        for pipe in wait([*self._processes], timeout) if self._processes else ():
            assert isinstance(pipe, Connection)
            training, process = self._processes[pipe]
            try:
                news = pipe.recv()
            except EOFError:
                process.join()
                news = CommunicationError(
                    f"the training of {training.name!r} ended with exit code {process.exitcode}, "
                    "perhaps for lack of memory; call again to resume it"
                )
            if isinstance(news, tuple):
                self._begun.add(pipe)
                self._progress(training.name, *news)
                continue
            process.join()
            pipe.close()
            del self._processes[pipe]
            self._begun.discard(pipe)
            self._results[training] = news
            if isinstance(news, Exception):
                raise news
        self._fill()

    def results(self, trainings: Sequence[Training]) -> list[TrainingRun]:
        """Wait for started runs, and return them in this order.

        Raises:
            As `start` and `poll`.
        """
        while any(training not in self._results for training in trainings):
            self.poll(timeout=None)
        runs = []
        for training in trainings:
            result = self._results[training]
            if isinstance(result, Exception):
                raise result
            runs.append(result)
        return runs

    def __exit__(self, *error: object) -> None:
        self._waiting.clear()
        for pipe, (_, process) in self._processes.items():
            if pipe not in self._begun and not pipe.poll():
                process.terminate()  # there is nothing to save yet
            pipe.close()
        try:
            for _, process in self._processes.values():
                process.join()
        except BaseException:  # Ctrl-C once more
            for _, process in self._processes.values():
                process.terminate()
            raise
        finally:
            self._processes.clear()

    def _fill(self) -> None:
        while self._waiting and len(self._processes) < (self._workers or 1):
            training = self._waiting.pop(0)
            context = multiprocessing.get_context("spawn")
            ours, theirs = context.Pipe()
            process = context.Process(target=_train, args=(training, theirs))
            with _no_interrupts():
                process.start()
            theirs.close()
            self._processes[ours] = training, process


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    """Let processes started in the block ignore Ctrl-C, sent to all by terminals."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _train(training: Training, pipe: Connection) -> None:
    """Do a run in this process; `pipe` gets some of its steps, then the run or the error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    due = 0.0

    def tell(step: int, steps: int, loss: float) -> None:
        nonlocal due
        # Few messages, since a full pipe would stop the run until someone reads it.
        if (now := time.monotonic()) >= due or step == steps:
            pipe.send((step, steps, loss))
            due = now + INTERVAL
        if pipe.poll():  # the other end is closed
            raise KeyboardInterrupt

    result: Any
    try:
        with one_thread():
            result = training.run(tell)
    except (KeyboardInterrupt, BrokenPipeError, ConnectionResetError):
        return
    except Exception as error:
        result = error
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            result = CommunicationError(
                f"the training of {training.name!r} failed: {type(error).__name__}: {error}"
            )
        result.add_note(f"in the training of {training.name!r}:\n{traceback.format_exc()}")
    with contextlib.suppress(OSError):
        pipe.send(result)
