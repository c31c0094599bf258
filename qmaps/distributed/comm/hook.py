"""Communication hooks of DistributedDataParallel.

No ``from __future__ import annotations`` here: DDP compares the annotations themselves.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable

from qmaps.algebra.quantizer import Quantizer
from qmaps.distributed.comm.coder import Coder
from qmaps.distributed.comm.exchange import Traffic
from qmaps.distributed.comm.reduce import Reducer
from qmaps.errors import BadValueError

OUTSIDE = -1
"""Number of the graph task outside of backward passes."""


class QuantizedHook:
    """Averages gradients over ranks in narrow messages; see `quantized_hook`.

    Attributes:
        traffic: bytes sent and received so far.
        error_feedback: whether the rounding error of a message is added to the next message.
        step: the number of backward passes so far.
    """

    def __init__(
        self,
        coder: Coder,
        *,
        error_feedback: bool = False,
        group: dist.ProcessGroup | None = None,
        seed: int = 0,
        nonfinite: str = "raise",
    ) -> None:
        self.traffic = Traffic()
        self.error_feedback = error_feedback
        self.step = 0
        self._reduce = Reducer(coder, group, self.traffic, seed=seed, nonfinite=nonfinite)
        self._background: Background | None = None
        self._residuals: dict[nn.Parameter, Tensor] = {}
        # DDP logs hooks by their name.
        self.__name__ = self.__qualname__ = f"quantized_hook({coder.name})"

    def __call__(
        self,
        state: object,  # noqa: ARG002 - DDP passes it
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[Tensor]:
        """Average a bucket; DDP calls it when the bucket's gradients are ready."""
        buffer, number, step = bucket.buffer(), bucket.index(), self.step
        # A rank that has left a Join sends zeros, and keeps its residual for its next gradient.
        corrects = self.error_feedback and torch._C._current_graph_task_id() != OUTSIDE
        residual = self._residual(bucket) if corrects else None
        if bucket.is_last():
            self.step = (self.step + 1) % 2**32

        def average() -> None:
            flat = buffer.float()
            self._reduce(flat, "gradients", number=number, step=step, residual=residual)
            if flat is not buffer:
                buffer.copy_(flat)

        if buffer.device.type == "cpu" and dist.get_world_size(self._reduce.group) > 1:
            if self._background is None:
                self._reduce.group = group_like(self._reduce.group)
                self._background = Background()
            return self._background.add(average, buffer)
        average()
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(buffer)
        return future

    def state_dict(self, module: nn.Module) -> dict[str, Any]:
        """The step, and this rank's residuals by the names of `module`'s parameters."""
        names = {parameter: name for name, parameter in _bare(module).named_parameters()}
        copies = {names[p]: residual.clone() for p, residual in self._residuals.items()}
        return {"step": self.step, "residuals": copies}

    def load_state_dict(self, state: Mapping[str, Any], module: nn.Module) -> None:
        """Load a state returned by `state_dict` of this rank; DDP may wrap `module` or not.

        Raises:
            BadValueError: a residual belongs to no parameter of `module`, or has another size.
        """
        parameters = dict(_bare(module).named_parameters())
        for name, residual in state["residuals"].items():
            if name not in parameters or parameters[name].numel() != residual.numel():
                raise BadValueError(f"residual {name!r} belongs to no parameter of the module")
        self.step = int(state["step"])
        self._residuals = {
            parameters[name]: residual.to(parameters[name].device, copy=True)
            for name, residual in state["residuals"].items()
        }

    def _residual(self, bucket: Any) -> Tensor:
        """The residuals of a bucket's parameters, flat; `_residuals` are its parts."""
        parameters = bucket.parameters()
        device = bucket.buffer().device
        for p in parameters:
            if p not in self._residuals:
                self._residuals[p] = torch.zeros(p.numel(), dtype=torch.float32, device=device)
        flat = torch.cat([self._residuals[p] for p in parameters])
        sizes = [p.numel() for p in parameters]
        self._residuals |= zip(parameters, torch.split(flat, sizes), strict=True)
        return flat


def quantized_hook(
    quantizer: Quantizer | str,
    *,
    error_feedback: bool = False,
    group: dist.ProcessGroup | None = None,
    seed: int = 0,
    nonfinite: str = "raise",
) -> QuantizedHook:
    """A hook to average gradients in messages of 2 to 8 bits.

    ``ddp.register_comm_hook(None, quantized_hook("B2048/tree@8s"))``. Each bucket is cut into one
    part for each rank; parts go quantized to their owners, are decoded and added there,
    and the averages go quantized to all. Buckets have any size and dtype; arithmetic is in
    float32. Replicas stay equal bit for bit. Buckets are exchanged one after the other: those on
    the CPU in a thread and a gloo group of their own, while the backward pass goes on; those on
    other devices within the backward pass.

    Within `torch.distributed.algorithms.Join` a rank without inputs sends zeros. Averages are over
    all ranks, whatever its `divide_by_initial_world_size` is.

    Args:
        quantizer: a signed quantizer of 2 to 8 bits, or its spec. With ``+sr`` the rounding depends
            on seed, step, bucket, element and rank.
        error_feedback: whether to add the rounding error of each message to the next one. It takes
            one float32 number for each gradient.
        group: DDP's process group; the default one if None.
        seed: seed of stochastic rounding, 0 to 2**32 - 1.
        nonfinite: policy for NaN or infinity on one rank: "raise" an error on all, or "propagate"
            NaN to the whole bucket, seen by `torch.amp.GradScaler`.

    Raises:
        BadValueError: the quantizer is unsigned, or of other widths. In the backward pass: ranks
            have buckets of different sizes, or other quantizers; on all ranks.
        NonFiniteError: in the backward pass, on all ranks.
        CommunicationError: in the backward pass: a rank has ended, or is later than the group's
            timeout.

    Source: 8-bit approximations for parallelism, section 2.1 and appendix A.2.2.
    """
    return QuantizedHook(
        Coder(quantizer),
        error_feedback=error_feedback,
        group=group,
        seed=seed,
        nonfinite=nonfinite,
    )


class Background:
    """Runs the jobs of a backward pass in one thread, in the order of `add`.

    All ranks give the same jobs in the same order, so their collectives meet.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="qmaps-comm")
        self._jobs: list[Future[None]] = []
        self._task = OUTSIDE

    def add(self, job: Callable[[], None], result: Tensor) -> torch.futures.Future[Tensor]:
        """Run `job` after those before it, or not at all if one of them failed.

        The end of the backward pass waits for the jobs and raises the first error. Outside of one,
        where `torch.distributed.algorithms.Join` calls hooks, this call does both.

        Returns:
            A future of `result`, done after `job`, even if it failed.
        """
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        task = torch._C._current_graph_task_id()
        if task == OUTSIDE:
            self._pool.submit(job).result()
            done.set_result(result)
            return done
        if task != self._task:
            # Jobs that are left are those of a backward pass that broke off.
            self._task, self._jobs = task, []
            # Callbacks run in the order in which they are queued: this one before DDP's, which
            # would otherwise be handed gradients that never arrived.
            Variable._execution_engine.queue_callback(self._finish)
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


def _bare(module: nn.Module) -> nn.Module:
    """The module wrapped by DDP, or the module itself."""
    if isinstance(module, nn.parallel.DistributedDataParallel):
        bare: nn.Module = module.module
        return bare
    return module
