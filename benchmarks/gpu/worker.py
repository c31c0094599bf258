"""A process for one task after another, replaced after a broken one.

A faulty kernel ends its process's use of the device, and an endless one cannot be interrupted. The
next tasks need a new process.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

_READY = "ready"


class LostError(Exception):
    """The process ended by itself or after a timeout, as the message says."""


class Worker:
    """Performs `task` in another process, started at its first use.

    Args:
        task: a function; it must be picklable.
        start: seconds for the process to import the modules of `task`.
    """

    def __init__(self, task: Callable[..., Any], start: float = 60.0) -> None:
        self._task = task
        self._start = start
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None

    def ask(self, *arguments: Any, timeout: float) -> Any:
        """``task(*arguments)``.

        Args:
            arguments: must be picklable.
            timeout: seconds; after them the process is ended, and the next task starts a new one.

        Raises:
            LostError: there is no answer.
        """
        if self._process is None:
            self._begin()
        assert self._pipe is not None
        self._pipe.send(arguments)
        return self._answer(time.monotonic() + timeout, f"took more than {timeout:.3g} s")

    def end(self) -> None:
        """End the process, whatever it is doing."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
        if self._pipe is not None:
            self._pipe.close()
        self._process = self._pipe = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _begin(self) -> None:
        # A fork would share the parent's use of the device.
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(self._task, theirs), daemon=True)
        self._process.start()
        theirs.close()
        deadline = time.monotonic() + self._start
        self._answer(deadline, f"did not start within {self._start:.3g} s")

    def _answer(self, deadline: float, late: str) -> Any:
        assert self._pipe is not None
        assert self._process is not None
        try:
            if self._pipe.poll(max(0.0, deadline - time.monotonic())):
                return self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(5)
            code = self._process.exitcode
            self.end()
            raise LostError(f"its process ended with exit code {code}") from None
        self.end()
        raise LostError(f"{late}; its process was ended")


def _serve(task: Callable[..., Any], pipe: Connection) -> None:
    pipe.send(_READY)
    while True:
        try:
            arguments = pipe.recv()
        except EOFError:
            return
        pipe.send(task(*arguments))
