"""Measuring the quantized states of an optimizer while it trains."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.capture.monitor.measures import MEASURES
from qmaps.capture.monitor.outputs import LIMITED, CsvFile, Thresholds, Warner, logs_of, scalars
from qmaps.capture.monitor.ranks import NoStatesError, Ranks, everyone
from qmaps.capture.monitor.window import Row, Window
from qmaps.capture.parameters import (
    Names,
    Parameters,
    StepCount,
    Watcher,
    integer,
    predicate,
    state_counts,
)
from qmaps.capture.step_hooks import inside, unwrapped
from qmaps.errors import BadTypeError, BadValueError, QmapsError, shown
from qmaps.optim.base import QuantizedOptimizer
from qmaps.optim.offload import CPUOffloadOptimizer
from qmaps.optim.records import is_whole
from qmaps.storage import settings

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["Monitor", "Thresholds"]

COLUMNS = ("step", "parameter", "state", "quantizer", "numel", *MEASURES)
WINDOW = 10


class Monitor(Watcher):
    r"""Measures the quantized states of an optimizer every `every` steps, on a sample.

    The monitor adds hooks to ``optimizer.step()``. They read, and change nothing: parameters and
    states have the same bits with a monitor and without one. Most steps only count down. In a
    window of steps up to each measured one, the optimizer's own rule steps a sample of each
    parameter in float32 beside the optimizer.

    Below, q is the decoded state after the measured step, y the state before it was encoded (the
    exact step from the decoded state before), and x the exact state after all steps of the window,
    from the decoded state before its first. All measures are of the sample, and have one row for
    each quantized state:

    - `held_share`: share of elements with the same code at the start and at the end of the window,
    - `moved_share`: share of elements whose exact state has moved, from the start of the window to
      x, by more than the distance to the next code; `stalled_share`: the share of held elements
      among these. As in
      `qmaps.replay.run`, they depend on the number of steps: in 10 steps, a second moment with a
      beta of 0.999 moves by a hundredth of the way,
    - `stuck_share`: for averages of squares, the share of elements whose q is more than 10 times
      the mean of the squared gradients in the window (above 0), and whose code a step with this
      mean would not change: while their scale stays they never fall, and their updates are too
      short. 0 under ``+sr`` and ``+qsr``, which follow,
    - `saturated_share`: share of elements with an end code of the codebook (the largest; the
      smallest too if the map is signed) whose y is smaller in magnitude than their scale. The
      largest element of each block has the end code, and does not count,
    - `sqnr_db`: 10 log10(sum y^2 / sum (y - q)^2), the signal-to-quantization-noise ratio of this
      step's encoding in dB (`qmaps.metrics.sqnr_db`),

    and, in the row of the second moment of Adam (of the first if the second is in 32 bits),

    - `zero_point_share`: share of elements with y > 0 where v decodes to 0 and m does not; the next
      update may be m / eps,
    - `update_mean_rel_error` and `update_median_rel_error`: mean and median of
      \|u(q) - u(y)\| / \|u(y)\| over elements with u(y) != 0, where u is the update
      (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps) of both moments.

    Shares are fractions from 0 to 1. A measure is NaN if it does not apply: `stalled_share` if
    nothing moved, `stuck_share` of other states, it, `held_share` and `stalled_share` in a window
    with a refitted map, and all
    measures of y or x for optimizers without an element-wise rule (LAMB, LARS,
    Adafactor, SM3, APOLLO, and factored second moments). For these every element where v decodes to
    0 and m does not is a zero point. The update's error is measured for
    rules with Adam's two moments as states.

    A skipped step is not measured, nor is a parameter without a gradient in one of the window's
    steps, or the first step. A window is shorter if
    a step in it was skipped, or if training or the monitor begins within it. Gradients are read
    after the step, so no hook may empty them before.

    Resuming: a new monitor goes on in the same file. A step in the file is not written again,
    unless it was cut off: the last column, `rows`, is the number of rows of the step.

    In distributed training, monitor on one process, which measures its own shards, or on all
    processes of a `process_group`: every measured step has one collective. Shares, `sqnr_db` and
    the mean error are then those of the samples of all ranks together, and the median error is the
    largest of the ranks'. Replicas count once. The first rank of the group writes, logs and warns.
    An error on one rank is a `CommunicationError` on all at the next measured step.

    Args:
        optimizer: an optimizer of `qmaps.optim` with at least one quantized state, also as
            accelerate's ``prepare`` returns it.
        out: the CSV file, created with its first rows; None writes none.
        every: measure each multiple of this step; at least 1. The monitor counts the steps of the
            optimizer.
        window: number of steps before and including a measured one for `held_share`, `moved_share`
            and `stalled_share`; 1 to `every`. If left out, 10, or `every` if it is smaller.
        sample: number of elements to sample of each state, at least 8, in runs of 256, spread
            evenly; a smaller state is taken whole.
        parameters: parameters to measure: names with wildcards (``"blocks.*.weight"``), or
            a function of the name; all if left out.
        names: parameter names: a model, or pairs of name and parameter. If left out, those of the
            optimizer's groups, else ``group0.param3``.
        log: also call this with the measures of each measured step: a function
            ``f(values, step)`` such as ``wandb.log``, an object with ``log(values, step=...)`` such
            as a run of W&B or trackio, a ``torch.utils.tensorboard.SummaryWriter``, or a list of
            these. Values are named ``sqnr_db/0.weight.exp_avg``; non-finite ones are left out.
        thresholds: limits of measures for a `StateWarning`, once for each state and measure; None
            for no warnings.
        process_group: measure together with the processes of this group, such as
            ``torch.distributed.group.WORLD``; each makes a monitor with the same options and takes
            the same steps. None measures this process alone.

    Raises:
        BadTypeError, BadValueError: an argument is not allowed, the optimizer has no quantized
            states on any rank, or `parameters` or `names` matches none of its parameters, here or
            on another rank; or ranks have other options, another version of qmaps, or other
            parameters without names. Nothing is written.
        OutputError: `out` cannot be written, is another file, or has another writer.

    Attributes:
        rows: the last measures, a dict by column for each quantized state; on all ranks the same.

    >>> import tempfile, torch, qmaps
    >>> layer = torch.nn.Linear(128, 64)
    >>> optimizer = qmaps.optim.AdamW8bit(layer.parameters())
    >>> folder = tempfile.TemporaryDirectory()
    >>> out = folder.name + "/monitor.csv"
    >>> with qmaps.Monitor(optimizer, out, every=5, names=layer) as monitor:
    ...     for _ in range(10):
    ...         optimizer.zero_grad()
    ...         layer(torch.randn(4, 128)).square().mean().backward()
    ...         optimizer.step()
    >>> [(row["state"], row["sqnr_db"] > 20) for row in monitor.rows]
    [('exp_avg', True), ('exp_avg_sq', True)]
    >>> folder.cleanup()
    """

    optimizer: QuantizedOptimizer

    def __init__(
        self,
        optimizer: QuantizedOptimizer,
        out: str | os.PathLike[str] | None = "monitor.csv",
        *,
        every: int = 100,
        window: int | None = None,
        sample: int = 2048,
        parameters: Parameters = None,
        names: Names = None,
        log: Any = None,
        thresholds: Thresholds | None = Thresholds(),  # noqa: B008 - it is immutable
        process_group: ProcessGroup | None = None,
    ) -> None:
        ranks = self._ranks = Ranks(process_group)
        self._file = None
        try:
            with ranks.agreement() as terms:
                optimizer = _supported(optimizer)
                if thresholds is not None and not isinstance(thresholds, Thresholds):
                    raise BadTypeError(f"thresholds={shown(thresholds)} must be Thresholds or None")
                self._every = integer("every", every, 1)
                self._window = min(WINDOW, self._every)
                if window is not None:
                    self._window = integer("window", window, 1)
                if self._window > self._every:
                    raise BadValueError(f"window={window} must be at most every={every}")
                self._sample = integer("sample", sample, 8)
                super().__init__(optimizer, parameters, names)
                terms["shapes"] = self._shapes(optimizer)
                self._logs = logs_of(log)
                self._warner = None if thresholds is None else Warner(thresholds)
                measures = terms["shapes"] or ranks.together
                if out is not None and ranks.number == 0 and measures:
                    self._file = CsvFile(out, COLUMNS)
                terms["same"].update(every=every, window=self._window, sample=sample)
                terms["labels"] = [label for label, _, _ in self._chosen()]
                groups = optimizer.param_groups
                terms["skips"] = any(group["nonfinite"] == "skip" for group in groups)
                terms["taken"] = self._taken_before()
                which = "" if parameters is None else f" of the parameters {shown(parameters)}"
                terms["lacking"] = (
                    f"optimizer={type(optimizer).__name__} has no quantized states{which}; a "
                    "monitor needs at least one (state_quantizers, min_quantized_size)"
                )
        except Exception:
            if self._file is not None:
                self._file.close()
            raise
        self.rows: list[Row] = []
        # Steps to wait for the window, steps left after the next in it, and the measured step.
        self._wait = self._remaining = self._due = 0
        self._open: Window | None = None
        begin = max(other["taken"] for other in ranks.terms)
        self._count = StepCount(optimizer, self._taken_before, begin)
        self._hooks = self._watch(before=self._before, after=self._after)

    def close(self) -> None:
        """Stop measuring, and let another monitor write the file; closing twice is allowed."""
        for hook in self._hooks:
            hook.remove()
        self._count.close()
        if self._file is not None:
            self._file.close()
        self._ranks.close()

    def _shapes(self, optimizer: QuantizedOptimizer) -> dict[str, tuple[int, ...]]:
        """Shapes of parameters with a quantized state, now or after the first step.

        Raises:
            BadValueError: a monitor cannot measure a chosen parameter.
        """
        shapes = {}
        for label, parameter, group in self._chosen():
            if group.get("reset_every"):
                raise BadValueError(
                    f"{label} has reset_every={group['reset_every']}; a monitor supports states "
                    "that are not reset"
                )
            state = optimizer.state.get(parameter)
            values = state.values() if isinstance(state, Mapping) else ()
            is_quantized = any(isinstance(value, QuantizedTensor) for value in values)
            for name in optimizer.state_shapes(parameter, group):
                q = optimizer.quantizer_of(name, parameter, group)
                is_quantized |= q is not None
                if q is not None and q.low_rank is not None:
                    raise BadValueError(
                        f"{name} of {label} has the quantizer {q.spec}; a monitor supports "
                        "quantizers without a low-rank part"
                    )
            if is_quantized:
                shapes[label] = tuple(parameter.shape)
        return shapes

    def _before(self) -> None:
        """Before a step: open the window if it begins here, and look again before its last step."""
        if self._wait:
            return
        optimizer = self.optimizer
        if self._open is None:
            step = self._count.taken + 1
            until_measured = -step % self._every  # steps from this one to the measured one
            if until_measured >= self._window:
                self._wait = until_measured - self._window + 1
                return
            # They do not exist yet; on one of several ranks perhaps never.
            if not optimizer.state and (step == 1 or not self._ranks.together):
                return
            self._open = Window(optimizer, (), self._sample)
            with self._ranks.holding():
                self._open = Window(optimizer, self._chosen(), self._sample)
            self._due, self._remaining = step + until_measured, until_measured
        if self._remaining == 0:
            with self._ranks.holding():
                self._open.before_last()

    def _after(self) -> None:
        """After a step: count it, take its gradients, and measure at the end of the window."""
        self._count.add()
        if self._wait:
            self._wait -= 1
            return
        window = self._open
        if window is None:
            return
        with self._ranks.holding():
            window.after_step()
        if self._remaining:
            self._remaining -= 1
            return
        self._open = None
        # It is another one if steps were skipped, or a checkpoint was loaded.
        if self._count.taken == self._due and not self._just_removed:
            self._wait = self._every - self._window
            optimizer = self.optimizer
            whole = {name for name in optimizer.state_names if is_whole(optimizer, name)}
            rows = self._ranks.report(window.rows, self._chosen(), whole)
            with self._ranks.holding():
                self._measured(rows, self._due)

    def _taken_before(self) -> int:
        """Return the number of steps taken so far, from the states."""
        return max(state_counts(self.optimizer, self._names).values(), default=0)

    def _measured(self, rows: list[Row], step: int) -> None:
        """Hand the rows of a step to all who want them."""
        self.rows = [{"step": step, **row} for row in rows] or self.rows
        if self._ranks.number or (self._file is not None and self._file.inherited):
            return
        if not rows:
            self._tell(
                "nothing",
                f"the monitor measured nothing at step {step}: no chosen parameter has a quantized "
                "state and kept its gradient in each step of the window",
            )
            return
        if self._warner is not None:
            self._warner.look(self.rows, step)
        if self._file is not None:
            self._write(self._file, step)
        values = scalars(rows) if self._logs else {}
        for log in self._logs:
            log(values, step)

    def _write(self, file: CsvFile, step: int) -> None:
        if step <= file.last:
            last = f"has rows up to step {file.last}; earlier steps are not written again"
            self._tell("earlier", f"{str(file.path)!r} {last}")
            return
        try:
            file.append(self.rows, step)
        except OSError as error:  # a full disk is no reason to lose a run
            reason = f"cannot be written ({error.strerror or error})"
            self._tell("written", f"{str(file.path)!r} {reason}")


def _supported(optimizer: Any) -> QuantizedOptimizer:
    """Return the optimizer inside wrappers; raise if a monitor cannot measure its states."""
    optimizer = unwrapped(optimizer)
    expected = f"optimizer must be one of qmaps.optim, got {type(optimizer).__name__}"
    if isinstance(optimizer, CPUOffloadOptimizer):
        raise BadTypeError(f"{expected}; give its host_optimizer")
    if not isinstance(optimizer, QuantizedOptimizer):
        reason = inside(optimizer) or ", which has no quantized states"
        raise BadTypeError(f"{expected}{reason}")
    if optimizer._steps_codes:
        raise BadTypeError(f"{expected}, which drops its gradients within the step")
    return optimizer


VARIABLE = "QMAPS_MONITOR"
"""The environment variable that names a file with arguments of `Monitor`: every optimizer with
quantized states is monitored from its first step on, and the training code stays as it is."""
KEYS = ("out", "every", "window", "sample", "parameters", "thresholds", "all_ranks")


def switch_on(path: str | os.PathLike[str]) -> RemovableHandle:
    """Monitor every optimizer with quantized states from its next step on.

    The file of a second optimizer is ``monitor-1.csv``. On several processes, all measure together,
    unless `all_ranks` is false: then the first measures alone.

    Args:
        path: a file that ends in ``.yaml``, ``.yml`` or ``.json``, with some of `KEYS`: arguments
            of `Monitor`, `thresholds` as a dict of the limits that differ from the default, or
            null.

    Returns:
        A handle; its `remove` leaves further optimizers alone.

    Raises:
        BadTypeError, BadValueError: the file cannot be read, or a value is not allowed.
    """
    about = f"{VARIABLE}={str(path)!r}"
    try:
        options = _read(Path(path))
    except QmapsError as error:
        raise type(error)(f"{about}: {error}") from None
    all_ranks, first = options.pop("all_ranks", True), Path(options.pop("out", "monitor.csv"))
    seen: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
    made = 0

    def before_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Make the monitor of an optimizer before its first step."""
        nonlocal made
        if not isinstance(optimizer, QuantizedOptimizer) or optimizer in seen:
            return
        seen.add(optimizer)
        group = everyone()
        if group is not None and not all_ranks:
            if group.rank():
                return
            group = None
        out = first.with_name(f"{first.stem}-{made}{first.suffix}") if made else first
        try:
            Monitor(optimizer, out, process_group=group, **options)
        except NoStatesError as error:
            warnings.warn(f"{about}: {error}", stacklevel=2)
        else:
            made += 1

    return register_optimizer_step_pre_hook(before_step)


def _read(path: Path) -> dict[str, Any]:
    """The arguments of monitors in a file."""
    options = settings.read(path, settings.yaml_of(path), "settings of a monitor")
    settings.check_keys(options, KEYS)
    for name, least in (("every", 1), ("window", 1), ("sample", 8)):
        if options.get(name) is not None:
            integer(name, options[name], least)
    predicate("parameters", options.get("parameters"))
    if not isinstance(out := options.get("out", ""), str):
        raise BadTypeError(f"out={shown(out)} must be the path of a file")
    if not isinstance(all_ranks := options.get("all_ranks", True), bool):
        raise BadTypeError(f"all_ranks={shown(all_ranks)} must be true or false")
    limits = options.get("thresholds", {})
    if limits is not None:
        if not isinstance(limits, dict):
            raise BadTypeError(f"thresholds={shown(limits)} must be a dict of limits or null")
        settings.check_keys(limits, LIMITED)
        options["thresholds"] = Thresholds(**limits)
    return options
