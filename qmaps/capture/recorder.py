"""Recording the states of an optimizer while it trains."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from qmaps.capture import snapshot
from qmaps.capture.coded_states import About, decoded_codes
from qmaps.capture.collect import collect, plain_options, skips_of_no_parameter
from qmaps.capture.gradients import KIND as GRADIENTS
from qmaps.capture.gradients import Gradients, GradientWriter
from qmaps.capture.parameters import (
    Names,
    Parameters,
    StepCount,
    Watcher,
    integer,
    members,
    state_counts,
)
from qmaps.capture.snapshot import Key, Lazy, Snapshot
from qmaps.capture.states import CapturedStates
from qmaps.capture.step_hooks import HOOKS, unwrapped
from qmaps.errors import BadTypeError, CaptureError, OutputError, shown
from qmaps.storage.locks import FolderLock

KIND = "capture"
"""Of the folder's lock."""


def write(states: CapturedStates, out: str | os.PathLike[str]) -> Path:
    """Write states of one step as a snapshot of a capture folder, and return the new file."""
    names = states.parameters()
    info = snapshot.Info(
        step=states.step,
        optimizer=states.optimizer,
        hyperparameters={name: states.hyperparameters(name) for name in names},
        scalars={name: states.scalars(name) for name in names},
        skipped=states.skipped,
    )
    tensors = {(parameter, state): lazy for parameter, state, lazy in states.lazies()}
    with FolderLock(out, KIND) as lock:
        path = snapshot.path_of(_claimed(lock, info.of(tensors)), states.step)
        snapshot.write(path, info, tensors)
    return path


def _claimed(lock: FolderLock, info: snapshot.Info) -> Path:
    """Prepare a locked folder for snapshots such as `info`, and return it.

    Remains of an interrupted write are removed. The optimizer and the shapes of parameters (of
    states if those are not known) must be those of the newest snapshot in the folder, and the
    parameters must include those of the first.
    """
    folder = lock.folder
    steps = snapshot.steps_in(folder)
    if steps:
        first_path, newest_path = (snapshot.path_of(folder, steps[i]) for i in (0, -1))
        try:
            first = newest = Snapshot(newest_path).info
        except CaptureError as error:
            raise OutputError(
                f"out={str(folder)!r} holds a snapshot that cannot be read: {error}; delete it or "
                "give another folder"
            ) from None
        with suppress(CaptureError):
            first = Snapshot(first_path).info
        if difference := _difference(first, newest, info):
            raise OutputError(f"out={str(folder)!r} holds states of {difference}")
    # Without a lock these files may belong to another writer.
    for pattern in (".step-*.tmp", ".gradients-*.tmp") if lock.exclusive else ():
        for leftover in folder.glob(pattern):
            leftover.unlink(missing_ok=True)
    return folder


def _difference(first: snapshot.Info, newest: snapshot.Info, info: snapshot.Info) -> str:
    """Describe the other states in the folder, with advice; ``''`` if `info` goes on from them."""
    if newest.optimizer != info.optimizer:
        return f"{newest.optimizer}; give another folder for {info.optimizer}"
    infos = (first, newest, info)
    shapes = [each.parameters for each in infos]
    if not all(shapes):  # a checkpoint does not say what its parameters are, only its states
        shapes = [{f"{e.parameter}: {e.state}": e.shape for e in each.tensors} for each in infos]
        if not all(shapes):
            return ""
    first_shapes, newest_shapes, new_shapes = shapes
    if missing := sorted(first_shapes.keys() - new_shapes.keys()):
        return (
            f"other parameters ({missing[0]!r} is only there); give another folder for this choice "
            "of parameters"
        )
    for name, shape in new_shapes.items():
        if newest_shapes.get(name, shape) != shape:
            return (
                f"{name!r} of shape {tuple(newest_shapes[name])}; give another folder for shape "
                f"{tuple(shape)}"
            )
    return ""


class StateRecorder(Watcher):
    """Writes the states of any ``torch.optim`` optimizer at chosen steps.

    The recorder adds a hook to ``optimizer.step()``. Each chosen step becomes one file,
    ``out/step-00000250.safetensors``, which appears whole. While it writes, the recorder holds one
    tensor at a time on the CPU (in two copies if it is not contiguous), and nothing between steps.

    Resuming: a new recorder continues in the same folder, and a repeated step overwrites its file.
    The recorder counts the steps of the optimizer from `start` on; steps skipped for gradients that
    are not finite do not count. Without `start` it begins at 0 if the optimizer has no states.
    Otherwise it takes the newest snapshot with step counts (``state["step"]``) of at most those of
    the optimizer, and adds the steps since. Optimizers without step counts, such as SGD, continue
    after the newest snapshot. Loading states into the optimizer later repeats this.

    Parameter groups may be added later: their parameters are recorded from then on, without
    gradients. A step without a parameter that the groups had before is an error: a wrapper steps
    the optimizer in parts, which are no steps.

    In distributed training, record on one rank: a folder belongs to one recorder until it is
    closed, or the process ends.

    Args:
        optimizer: any optimizer, also as accelerate's ``prepare`` returns it; quantized states of
            qmaps are decoded to float32. For a wrapper without torch's hooks, such as Lookahead of
            timm, give the optimizer inside it.
        out: the folder, created if need be.
        every: record each multiple of this step; at least 1.
        steps: record these steps instead: a collection, or a function of the step.
        parameters: parameters to record: names with wildcards (``"blocks.*.weight"``), or
            a function of the name; all if left out.
        names: parameter names: a model, or pairs of name and parameter. If left out, those of the
            optimizer's groups, else ``group0.param3``.
        gradients: record also the gradients of this many steps after each snapshot, for
            `qmaps.replay`: a number of steps, or `qmaps.capture.Gradients`, with a number of bytes
            as well. They are taken after the step, as the optimizer got them, and each step
            becomes one file, ``out/gradients-00000251.safetensors``.
        start: number of steps taken so far; see above if it is left out.

    Raises:
        OutputError: `out` cannot be written, holds states of another optimizer or of other
            parameters, or is being written by another recorder; or, while
            training, the disk is full.
        CaptureError: while training, a wrapper steps the optimizer in parts.
        BadValueError, BadTypeError: an argument is not allowed, or no parameter matches.

    >>> import tempfile, torch, qmaps
    >>> layer = torch.nn.Linear(4, 2)
    >>> optimizer = torch.optim.AdamW(layer.parameters())
    >>> folder = tempfile.TemporaryDirectory()
    >>> with StateRecorder(optimizer, folder.name, every=2, names=layer):
    ...     for _ in range(4):
    ...         layer(torch.ones(1, 4)).sum().backward()
    ...         optimizer.step()
    >>> states = qmaps.capture.load(folder.name)
    >>> states.steps, states.states("weight")
    ([2, 4], ['exp_avg', 'exp_avg_sq'])
    >>> folder.cleanup()
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        out: str | os.PathLike[str],
        *,
        every: int = 1,
        steps: Collection[int] | Callable[[int], bool] | None = None,
        parameters: Parameters = None,
        names: Names = None,
        gradients: Gradients | int | None = None,
        start: int | None = None,
    ) -> None:
        optimizer = unwrapped(optimizer)
        if not isinstance(optimizer, torch.optim.Optimizer) or not hasattr(optimizer, HOOKS):
            raise BadTypeError(
                f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}"
            )
        super().__init__(optimizer, parameters, names)
        self.every = integer("every", every, 1)
        self._due = _due(steps, self.every)
        options = Gradients.of(gradients)
        self._writer = None if options is None else GradientWriter(options, self._parameters())
        begin = None if start is None else integer("start", start, 0)
        self._lock = FolderLock(out, KIND)
        try:
            self.folder = _claimed(self._lock, self._info(step=0))
            self._count = StepCount(optimizer, self._taken_before, begin)
            self._hooks = self._watch(after=self._after_step)
        except BaseException:
            self._lock.release()
            raise

    def close(self) -> None:
        """Stop recording, and let another record in the folder; closing twice is allowed."""
        for hook in self._hooks:
            hook.remove()
        self._count.close()
        self._lock.release()

    def record(self) -> Path | None:
        """Write a snapshot of the current states, at any step.

        Returns:
            The file, or None if nothing was written. Nothing is written, with a warning the first
            time, if there is no state to record, or this is a child process forked from the
            recorder's.
        """
        if self._lock.inherited:
            self._tell(
                "forked",
                f"this process was forked from the one that records in {str(self.folder)!r}; "
                "nothing is recorded here",
            )
            return None
        step = self._count.taken
        info = self._info(step)
        tensors: dict[Key, Lazy] = {}
        for label, parameter, group in self._chosen():
            # `get`: indexing a parameter without state would give it an empty one.
            state = self.optimizer.state.get(parameter)
            if not state:
                continue
            about = About(group, vars(self.optimizer), tuple(parameter.shape))
            collected = collect(decoded_codes(state, about))
            info.hyperparameters[label] = plain_options(group)
            info.scalars[label] = collected.scalars
            info.skipped.extend(collected.skips(label))
            tensors |= {(label, name): lazy for name, lazy in collected.tensors.items()}
        info.skipped.extend(
            skips_of_no_parameter(e for e in self.optimizer.state.items() if isinstance(e[0], str))
        )
        if not tensors:
            self._tell(
                "empty",
                f"{type(self.optimizer).__name__} has no chosen tensor state at step {step}; "
                "nothing was recorded",
            )
            return None
        path = snapshot.path_of(self.folder, step)
        snapshot.write(path, info, tensors)
        if self._writer is not None:
            self._writer.begin(path, step)
        return path

    def _after_step(self) -> None:
        step = self._count.advance()
        if step is None or self._just_removed:  # the next step may be another part of this one
            return
        if self._writer is not None and self._writer.due(step) and not self._lock.inherited:
            self._record_gradients(self._writer, step)
        if self._due(step):
            self.record()

    def _record_gradients(self, writer: GradientWriter, step: int) -> None:
        """Write the gradients of the last step."""
        tensors, skipped = writer.prepare(
            {name: parameter.grad for name, parameter in self._parameters().items()}
        )
        if not tensors:
            self._tell(
                "gradients",
                f"no chosen parameter has a dense gradient after step {step}; its gradients were "
                "not recorded",
            )
            return
        info = replace(self._info(step), skipped=skipped, window=writer.window)
        snapshot.write(snapshot.path_of(self.folder, step, GRADIENTS), info, tensors)

    def _parameters(self) -> dict[str, Tensor]:
        """Return the chosen parameters by name."""
        return {label: parameter for label, parameter, _ in self._chosen()}

    def _taken_before(self) -> int:
        """Return the number of steps taken so far, from the states and the snapshots."""
        if not self.optimizer.state:
            return 0
        counts = state_counts(self.optimizer, self._names)
        largest = max(counts.values(), default=0)
        wanted = {label: count for label, count in counts.items() if self._wanted(label)}
        for step in reversed(snapshot.steps_in(self.folder)):
            try:
                scalars = Snapshot(snapshot.path_of(self.folder, step)).info.scalars
            except CaptureError:
                continue
            earlier = {name: states["step"] for name, states in scalars.items() if "step" in states}
            is_known = bool(earlier) == bool(counts)  # snapshots of early versions have no counts
            if is_known and all(counts.get(name, -1) >= count for name, count in earlier.items()):
                since = [count - earlier.get(name, 0) for name, count in wanted.items()]
                return max(largest, step + int(max(since, default=0)))
        return largest

    def _info(self, step: int) -> snapshot.Info:
        return snapshot.Info(
            step=step,
            optimizer=type(self.optimizer).__name__,
            parameters={label: list(p.shape) for label, p in self._parameters().items()},
        )


def _due(
    steps: Collection[int] | Callable[[int], bool] | None, every: int
) -> Callable[[int], bool]:
    """Return a function of a step: True if it is to be recorded."""
    if steps is None:
        return lambda step: step % every == 0
    if callable(steps):
        return steps
    chosen = members(steps)
    if chosen is None:
        raise BadTypeError(
            f"steps={shown(steps)} must be a collection of ints or a function of the step"
        )
    return frozenset(integer("steps", step, 0) for step in chosen).__contains__
