"""A training loop that can be stopped at any step and goes on with the same bits."""

from __future__ import annotations

import json
import math
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from qmaps.errors import BadTypeError, BadValueError, OutputError
from qmaps.files import output_folder, replacing, write_json
from qmaps.workloads.base import Workload

MakeOptimizer = Callable[[nn.Module, Workload], torch.optim.Optimizer]
Hook = Callable[[torch.optim.Optimizer, nn.Module], AbstractContextManager[Any]]


@dataclass
class Training:
    """A finished run.

    Attributes:
        label: what the run is called.
        seed: of weights and batches.
        steps: how many were taken.
        losses: one dict per measurement: `step`, `split` ("train" or "val"), `metric`, `value`.
        final: validation metrics after the last step.
        first_nonfinite_step: first step whose training loss was NaN or infinite, or None.
        state_nbytes: bytes of the optimizer's states at the end.
    """

    label: str
    seed: int
    steps: int
    losses: list[dict[str, Any]] = field(default_factory=list)
    final: dict[str, float] = field(default_factory=dict)
    first_nonfinite_step: int | None = None
    state_nbytes: int = 0


def train(
    workload: Workload,
    make_optimizer: MakeOptimizer,
    *,
    out: str | os.PathLike[str],
    label: str,
    seed: int = 0,
    steps: int | None = None,
    checkpoint_every: int = 50,
    validate_every: int = 50,
    hooks: Sequence[Hook] = (),
    progress: Callable[[int, int, float], None] | None = None,
) -> Training:
    """Train a workload in the run folder `out`, or go on with the run that is there.

    The folder holds ``run.json`` (settings), ``checkpoint.pt`` while the run lasts, also after
    an interruption (Ctrl-C), and ``result.json`` when it is done. An interrupted and resumed run
    ends with the bits of an uninterrupted one.

    Args:
        workload: what to train.
        make_optimizer: given the model and the workload.
        out: the run folder, created if need be.
        label: what the run is called; together with the settings it tells runs apart.
        seed: of weights and batches, at least 0.
        steps: how many, at least 1; the workload's default if left out.
        checkpoint_every: steps between checkpoints, at least 1.
        validate_every: steps between validations, at least 1; one follows the last step too.
        hooks: each is called with optimizer and model, and entered for the time of the run,
            such as a `StateRecorder`.
        progress: called with the step, the number of steps, and the training loss.

    Raises:
        BadValueError, BadTypeError: an argument is not allowed.
        OutputError: `out` cannot be written, holds another run, or its checkpoint is damaged.
    """
    steps = workload.steps if steps is None else steps
    for name, value, least in (
        ("steps", steps, 1),
        ("seed", seed, 0),
        ("checkpoint_every", checkpoint_every, 1),
        ("validate_every", validate_every, 1),
    ):
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadTypeError(f"{name}={value!r} must be an int")
        if value < least:
            raise BadValueError(f"{name}={value} must be at least {least}")
    folder = output_folder(out)
    _claim(folder, workload, label, seed, steps, validate_every)
    result = folder / "result.json"
    if result.exists():
        return Training(**json.loads(result.read_text(encoding="utf-8")))

    model = workload.model(seed)
    optimizer = make_optimizer(model, workload)
    run = Training(label, seed, steps)
    done = _resume(folder / "checkpoint.pt", model, optimizer, run)
    with ExitStack() as stack:
        for hook in hooks:
            stack.enter_context(hook(optimizer, model))
        for step in range(done + 1, steps + 1):
            with _uninterrupted() as interrupted:
                loss = _step(workload, model, optimizer, step, steps, seed)
                _record(run, step, "train", {"loss": loss})
                if not math.isfinite(loss) and run.first_nonfinite_step is None:
                    run.first_nonfinite_step = step
                if step % validate_every == 0 or step == steps:
                    run.final = workload.validate(model)
                    _record(run, step, "val", run.final)
                if interrupted or (step % checkpoint_every == 0 and step < steps):
                    _save(folder / "checkpoint.pt", model, optimizer, run, step)
            if interrupted:
                raise KeyboardInterrupt
            if progress:
                progress(step, steps, loss)
    run.state_nbytes = _state_nbytes(optimizer)
    with replacing(folder / "model.pt") as temporary:
        torch.save(model.state_dict(), temporary)
    write_json(result, asdict(run))
    (folder / "checkpoint.pt").unlink(missing_ok=True)
    return run


@contextmanager
def _uninterrupted() -> Iterator[list[int]]:
    """Hold Ctrl-C back for the time of the block; the list is not empty if it came.

    So a checkpoint is never taken from a step half done. Other threads than the main one
    cannot set signal handlers, and do not receive Ctrl-C either.
    """
    arrived: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield arrived
        return
    previous = signal.signal(signal.SIGINT, lambda number, _: arrived.append(number))
    try:
        yield arrived
    finally:
        signal.signal(signal.SIGINT, previous)


def _step(
    workload: Workload,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    step: int,
    steps: int,
    seed: int,
) -> float:
    for group in optimizer.param_groups:
        group["lr"] = workload.learning_rate(step, steps)
    optimizer.zero_grad()
    loss = workload.loss(model, workload.batch(step, seed))
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return float(loss.detach())


def _record(run: Training, step: int, split: str, values: dict[str, float]) -> None:
    run.losses += [
        {"step": step, "split": split, "metric": metric, "value": value}
        for metric, value in values.items()
    ]


def _claim(
    folder: Path, workload: Workload, label: str, seed: int, steps: int, validate_every: int
) -> None:
    """Write run.json, or see that the one there says the same."""
    settings = {
        "workload": workload.name,
        "label": label,
        "seed": seed,
        "steps": steps,
        "validate_every": validate_every,
        **workload.settings(),
    }
    path = folder / "run.json"
    if not path.exists():
        about = {"torch": torch.__version__, "threads": torch.get_num_threads()}
        write_json(path, {"settings": settings, "made_with": about})
        return
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["settings"]
    except (ValueError, KeyError):
        raise OutputError(f"{str(path)!r} is damaged; delete the folder or give another") from None
    for name, value in settings.items():
        if found.get(name) != value:
            raise OutputError(
                f"out={str(folder)!r} holds a run with {name}={found.get(name)!r}; {value!r} was "
                "asked for; give another folder, or delete it"
            )


def _save(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, run: Training, done: int
) -> None:
    with replacing(path) as temporary:
        torch.save(
            {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "run": asdict(run),
                "done": done,
            },
            temporary,
        )


def _resume(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, run: Training) -> int:
    """Load the checkpoint if there is one; the number of steps done."""
    if not path.exists():
        return 0
    try:
        checkpoint = torch.load(path, weights_only=True)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        for name, value in checkpoint["run"].items():
            setattr(run, name, value)
        return int(checkpoint["done"])
    except Exception as error:  # torch raises many kinds on damaged files
        raise OutputError(
            f"{str(path)!r} cannot be resumed ({type(error).__name__}); delete it to start anew"
        ) from None


def _state_nbytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of all states but the step counts."""
    return sum(
        value.nbytes
        for state in optimizer.state.values()
        for name, value in state.items()
        if name != "step" and hasattr(value, "nbytes")
    )
