"""Exchanges during a backward pass, and a process group of their own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Variable


class Background:
    """Runs the jobs of a backward pass in one thread, in the order of `add`.

    All ranks give the same jobs in the same order, so their collectives meet.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="qmaps-comm")
        self._jobs: list[Future[None]] = []
        self._task = -1

    def add(self, job: Callable[[], None], result: Tensor) -> torch.futures.Future[Tensor]:
        """Run `job` after those before it, or not at all if one of them failed.

        Called within a backward pass. Its end waits for the jobs and raises the first error.

        Args:
            job: a function without arguments.
            result: the value of the future.

        Returns:
            A future, done after `job`, even if it failed.
        """
        task = torch._C._current_graph_task_id()
        if task != self._task:
            # Jobs that are left are those of a backward pass that broke off.
            self._task, self._jobs = task, []
            # Callbacks run in the order in which they are queued: this one before DDP's, which
            # would otherwise be handed gradients that never arrived.
            Variable._execution_engine.queue_callback(self._finish)
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        before = list(self._jobs)

        def run() -> None:
            try:
                if not any(future.exception() for future in before):
                    job()
            finally:
                done.set_result(result)

        self._jobs.append(self._pool.submit(run))
        return done

    def _finish(self) -> None:
        jobs, self._jobs = self._jobs, []
        for error in [job.exception() for job in jobs]:
            if error is not None:
                raise error


def group_like(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """A new gloo group of the same ranks with the same timeout; all of them must call this.

    Collectives of two threads in one group could meet in another order on each rank.
    """
    original = group or dist.group.WORLD
    assert original is not None  # DDP needs a default group
    copy: dist.ProcessGroup = dist.new_group(
        dist.get_process_group_ranks(original),
        timeout=original._get_backend(torch.device("cpu")).options._timeout,
        backend="gloo",
        use_local_synchronization=True,
    )
    return copy
