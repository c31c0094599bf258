"""A training loop, resumed with the same bits after a stop at any step."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from qmaps.capture.parameters import integer
from qmaps.errors import BadTypeError
from qmaps.lab.workloads.base import Workload, seeded
from qmaps.lab.workloads.run_folder import RunFolder, TrainingRun, optimizer_settings
from qmaps.storage.locks import FolderLock

MakeOptimizer = Callable[[nn.Module, Workload], torch.optim.Optimizer]
Hook = Callable[[torch.optim.Optimizer, nn.Module], AbstractContextManager[Any]]
Progress = Callable[[int, int, float], None]


def train(
    workload: Workload,
    make_optimizer: MakeOptimizer,
    *,
    out: str | os.PathLike[str],
    label: str | None = None,
    seed: int = 0,
    steps: int | None = None,
    checkpoint_every: int = 50,
    validate_every: int = 50,
    hooks: Sequence[Hook] = (),
    progress: Progress | None = None,
) -> TrainingRun:
    """Train a workload in the run folder `out`, or go on with an earlier run.

    A finished run is returned at once. An interrupted one goes on from its checkpoint and ends
    with the bits of an uninterrupted one, on the same versions, machine and number of threads.
    Ctrl-C waits for the step to end and then writes a checkpoint. An error in `progress`
    writes one too. After an error within a step the last checkpoint remains.
    `qmaps.lab.workloads.run_folder.RunFolder` lists the files.

    A NaN or infinite loss is recorded like any other, and training goes on.

    Args:
        workload: the model and data to train.
        make_optimizer: called with the model and the workload, returns the optimizer. The
            learning rate of a parameter group is the group's peak: the workload's schedule scales
            it.
        out: the run folder, created if need be.
        label: name of the run; the optimizer's class if left out.
        seed: seed of the weights and the batches, at least 0.
        steps: number of steps, at least 1; the workload's default if left out.
        checkpoint_every: steps between checkpoints, at least 1.
        validate_every: steps between validations, at least 1; one follows the last step too.
        hooks: each is called with the optimizer and the model, and returns a context manager that
            is entered for the time of the run, such as a `StateRecorder`.
        progress: called after each step with the step, the number of steps, and the training
            loss.

    Returns:
        The finished run.

    Raises:
        BadValueError, BadTypeError: an argument is not allowed.
        OutputError: `out` cannot be written, holds another run, has a damaged file, or is being
            written by another process.
    """
    steps = integer("steps", workload.steps if steps is None else steps, 1)
    seed = integer("seed", seed, 0)
    checkpoint_every = integer("checkpoint_every", checkpoint_every, 1)
    validate_every = integer("validate_every", validate_every, 1)
    model = workload.model(seed)
    with seeded(seed):
        optimizer = make_optimizer(model, workload)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise BadTypeError(
            f"make_optimizer must return a torch.optim.Optimizer, got {type(optimizer).__name__}"
        )
    run = TrainingRun(type(optimizer).__name__ if label is None else label, seed, steps)
    settings = {
        "workload": workload.name,
        "label": run.label,
        "seed": seed,
        "steps": steps,
        "validate_every": validate_every,
        **workload.settings(),
        **optimizer_settings(optimizer),
    }
    # Before resuming, which brings back the rates of the step that was saved.
    # A scale, not a peak: 1 leaves the bits of the workload's own rates alone.
    scales = [float(group["lr"]) / workload.lr for group in optimizer.param_groups]
    with FolderLock(out, "run"):
        folder = RunFolder.claim(out, settings)
        if folder.finished(run):
            return run
        done = folder.resume(model, optimizer, run)
        with _held_interrupts() as raise_interrupt, ExitStack() as stack:
            for hook in hooks:
                stack.enter_context(hook(optimizer, model))
            for step in range(done + 1, steps + 1):
                rate = workload.learning_rate(step, steps)
                for group, scale in zip(optimizer.param_groups, scales, strict=True):
                    group["lr"] = rate * scale
                with seeded(_step_seed(seed, step)):
                    loss = _step(workload, model, optimizer, step, seed)
                    run.record(step, "train", {"loss": loss})
                    if step % validate_every == 0 or step == steps:
                        run.record(step, "val", _validate(workload, model))
                try:
                    if progress:
                        progress(step, steps, loss)
                    raise_interrupt()
                except BaseException:
                    folder.save(model, optimizer, run, step)
                    raise
                if step % checkpoint_every == 0 and step < steps:
                    folder.save(model, optimizer, run, step)
            run.state_nbytes = _state_nbytes(optimizer)
            folder.finish(model, run)
    return run


def _step_seed(seed: int, step: int) -> int:
    """Seed of torch's generator in a step: whatever draws from it needs no state to resume."""
    return int(np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0])


def _step(
    workload: Workload, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, seed: int
) -> float:
    optimizer.zero_grad()
    loss = workload.loss(model, workload.batch(step, seed))
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return float(loss.detach())


def _validate(workload: Workload, model: nn.Module) -> dict[str, float]:
    model.eval()
    try:
        return workload.validate(model)
    finally:
        model.train()


def _state_nbytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of all states but the step counts."""
    return sum(
        value.nbytes
        for state in optimizer.state.values()
        for name, value in state.items()
        if name != "step" and hasattr(value, "nbytes")
    )


@contextmanager
def _held_interrupts() -> Iterator[Callable[[], None]]:
    """Hold Ctrl-C back until the yielded function is called or the block ends.

    So no step is left half done. A second Ctrl-C raises KeyboardInterrupt at once, for steps
    without an end. Where the program handles Ctrl-C in its own
    way, or ignores it, nothing changes. Threads other than the main one never receive Ctrl-C.
    """
    arrived = False

    def check() -> None:
        nonlocal arrived
        if arrived:
            arrived = False
            raise KeyboardInterrupt

    def note(*_: object) -> None:
        nonlocal arrived
        if arrived:
            raise KeyboardInterrupt
        arrived = True

    on_main_thread = threading.current_thread() is threading.main_thread()
    holding = on_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if holding:
        signal.signal(signal.SIGINT, note)
    try:
        yield check
    finally:
        if holding:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    check()
