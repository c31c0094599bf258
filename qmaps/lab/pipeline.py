"""The whole path in one run folder: from a training, or from a checkpoint, to the report."""

from __future__ import annotations

import math
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from qmaps import capture, sweep
from qmaps.algebra.pair import Pair
from qmaps.analyze import executors, recommend
from qmaps.analyze.recommend.run import ENOUGH
from qmaps.analyze.recommend.verdict import CLEAN, FOLLOWS, LEVELS, UNPROVEN, UNSAFE
from qmaps.analyze.states import MIN_SIZE, adam_pairs, as_states, with_gradients
from qmaps.capture import CapturedStates, Gradients, StateRecorder
from qmaps.capture.moments import Moments
from qmaps.capture.naming import Names
from qmaps.capture.recorder import write
from qmaps.engines.threads import one_thread
from qmaps.errors import CaptureError, OutputError
from qmaps.lab import report
from qmaps.lab.compare import Contender, loss_frame, summarize_losses
from qmaps.lab.frames import analyze_states
from qmaps.lab.pictures import draw
from qmaps.lab.workloads import Workload
from qmaps.lab.workloads.processes import Trainings
from qmaps.ops.backends import backend
from qmaps.optim.choice_file import load_choice
from qmaps.storage import __version__, units
from qmaps.storage.files import exists, read_record, write_frame, write_record
from qmaps.storage.locks import FolderLock

BASE = Contender("32-bit AdamW")
PAPER = Contender("4-bit AdamW (B128/DE, rank1/linear)", "paper-4bit", key="paper-4bit")

GRADIENTS = Gradients(steps=60, max_bytes=2**26)
"""Gradients recorded after the states in the middle of the 32-bit run."""

Progress = Callable[[str, int, int, str], None]


def recorder(
    folder: Path, steps: int, optimizer: torch.optim.Optimizer, _: torch.nn.Module
) -> StateRecorder:
    """Record states in a folder in the middle and at the end of a training run of some steps."""
    every = max(1, steps // 2)
    return StateRecorder(
        optimizer,
        folder,
        steps=lambda step: step % every == 0 or step == steps,
        gradients=GRADIENTS,
    )


@dataclass(frozen=True)
class Stages:
    """The stages common to trainings and checkpoints.

    Attributes:
        folder: the run folder.
        executor: processes to share the work of a stage; None for this one alone.
        progress: as for `run`.
        trainings: training runs in the background.
    """

    folder: Path
    executor: Executor | None
    progress: Progress | None
    trainings: Trainings

    def tell(self, stage: str) -> Callable[[int, int, str], None]:
        """Return a function to report the progress of a stage."""

        def told(done: int, total: int, note: str) -> None:
            self.trainings.poll()
            if self.progress:
                self.progress(stage, done, total, note)

        return told

    def recommend(self, states: CapturedStates, min_quantized_size: int) -> None:
        """Recommend quantizers; see `recommend_for`."""
        recommend_for(
            states,
            self.folder,
            min_quantized_size=min_quantized_size,
            progress=self.tell("recommend quantizers"),
            executor=self._readers(states),
        )

    def analyze(
        self, states: CapturedStates, pairs: Sequence[str], min_quantized_size: int
    ) -> None:
        """Sweep these pairs and the recommended one, and compute the frames of figures."""
        quantizers = load_choice(self.folder / "recommend" / "choice.json")["state_quantizers"]
        chosen = [Pair(*quantizers.values()).spec] if quantizers else []  # of most elements
        sweep.run(
            states,
            [*pairs, *chosen],
            out=self.folder / "sweep",
            min_quantized_size=min_quantized_size,
            progress=self.tell("sweep quantizers"),
            executor=self._readers(states),
        )
        analyze_states(
            states,
            self.folder,
            pairs=chosen,
            min_quantized_size=min_quantized_size,
            progress=self.tell("analyze states"),
            executor=self._readers(states),
        )

    def report(self, about: Mapping[str, Any]) -> Path:
        """Draw the figures, write ``about.json`` and the page, and return the page."""
        draw(self.folder, progress=self.tell("draw figures"))
        made_by = {"versions": versions(), "machine": machine()}
        write_record(self.folder / "about.json", {**about, **made_by})
        return report.write(self.folder)

    def _readers(self, states: CapturedStates) -> Executor | None:
        """Return the processes, if they can read these states."""
        return self.executor if executors.source_of(states) else None


def run(
    workload: Workload,
    out: str | os.PathLike[str],
    *,
    seed: int = 0,
    steps: int | None = None,
    pairs: Sequence[str] = sweep.STANDARD,
    contenders: Sequence[Contender] = (PAPER,),
    command: str = "",
    progress: Progress | None = None,
    workers: int | None = None,
) -> Path:
    """Train, capture, recommend, sweep, train again with quantized states, draw, and report.

    Everything is kept in `out`: ``train/`` (one folder per run), ``states/`` (captured from the
    32-bit run, with a window of gradients), ``sweep/``, ``frames/``, ``recommend/``, ``figures/``,
    ``about.json``, ``report.html``. Existing training runs, sweeps and frames are kept, so a
    second call goes on where the first was interrupted.

    Args:
        workload: the model and data to train.
        out: the run folder, created if need be.
        seed: seed of the weights and the batches, at least 0.
        steps: number of steps of each training run; the workload's default if left out.
        pairs: quantizers of both moments to sweep beside the recommended ones, such as
            ``"B128/DE@4s + rank1/linear@4u"``.
        contenders: the quantized optimizers to train with; one with the recommended choice is
            added.
        command: the command to name in the report.
        progress: called with the name of a stage, the number of its steps done, the number of all
            its steps, and a note.
        workers: number of processes to share the work, each with one thread: trainings run side
            by side. The results have the same bits for any number of them. With 1 everything is
            done in this process; by default as well, and with torch's number of threads. A script
            giving workers needs ``if __name__ == "__main__":``.

    Returns:
        The report, an HTML file.

    Raises:
        OutputError: `out` cannot be written, holds a run of other settings, or is being written
            by another process.
        CommunicationError: a process was killed; the message names its work.
    """
    steps = workload.steps if steps is None else steps
    with _stages(out, workers, progress) as stages:
        folder, trainings = stages.folder, stages.trainings
        place = folder / "train"
        recording = partial(recorder, folder / "states", steps)
        base = BASE.training(workload, place, seed, steps, hooks=[recording])
        jobs = [base, *(entrant.training(workload, place, seed, steps) for entrant in contenders)]
        trainings.start(jobs)
        trainings.results([base])
        states = capture.load(folder / "states")
        stages.recommend(with_gradients(folder / "states", states, ENOUGH), MIN_SIZE)
        quantized = [*contenders, _recommended(folder / "recommend")]
        jobs.append(quantized[-1].training(workload, place, seed, steps))
        trainings.start(jobs[-1:])
        stages.analyze(states, pairs, MIN_SIZE)
        runs = trainings.results(jobs)
        write_frame(folder / "frames" / "loss_curves.parquet", loss_frame(runs))
        write_frame(folder / "frames" / "losses.parquet", summarize_losses(runs))
        return stages.report(
            {
                "workload": workload.name,
                "architecture": workload.architecture,
                "data": workload.data,
                "unit": workload.unit,
                "trained": {entrant.key: entrant.label for entrant in quantized if entrant.key},
                "parameters": sum(p.numel() for p in workload.model(seed).parameters()),
                "seed": seed,
                "steps": steps,
                "captured_step": states.step,
                "settings": workload.settings(),
                "command": command,
            }
        )


def run_checkpoint(
    checkpoint: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    names: Names = None,
    moments: Moments | None = None,
    pairs: Sequence[str] = sweep.STANDARD,
    min_quantized_size: int = MIN_SIZE,
    command: str = "",
    progress: Progress | None = None,
    workers: int | None = None,
) -> Path:
    """Capture the states of a checkpoint, recommend, sweep, draw, and report.

    Everything is kept in `out`: ``states/`` (a copy, since trainers delete old checkpoints),
    ``sweep/``, ``frames/``, ``recommend/``, ``figures/``, ``about.json``, ``report.html``. Existing
    files are kept, so a second call goes on where the first was interrupted.

    Args:
        checkpoint: an optimizer's checkpoint, its folder, or captured states, as for
            `qmaps.capture.load`.
        out: the run folder, created if need be.
        names: names of the parameters, as for `qmaps.capture.load`.
        moments: own names of Adam's moments, as for `qmaps.sweep.run`.
        pairs: as for `run`.
        min_quantized_size: parameters of at most this many elements are left out.
        command: as for `run`.
        progress: as for `run`.
        workers: as for `run`; each process reads the checkpoint itself.

    Returns:
        The report, an HTML file.

    Raises:
        CaptureError: the checkpoint cannot be read, its states are not Adam's, none is large
            enough, or one holds NaN or infinity; nothing is written then.
        BadValueError: `names` does not fit.
        OutputError: `out` cannot be written, holds other states, or is being written by another
            process.
        CommunicationError: a process was killed.
    """
    states = as_states(capture.load(checkpoint, names=names), moments)
    for _ in adam_pairs(states, min_quantized_size):
        pass  # raises an error before anything is written
    fingerprint = states.fingerprint()
    with _stages(out, workers, progress) as stages:
        captured = stages.tell("capture states")
        captured(0, 1, "")
        _keep(states, fingerprint, stages.folder / "states")
        captured(1, 1, "")
        stages.recommend(states, min_quantized_size)
        stages.analyze(states, pairs, min_quantized_size)
        sizes = [math.prod(states.shape(name, "exp_avg")) for name in states.with_moments()]
        return stages.report(
            {
                "checkpoint": str(checkpoint),
                "captured_step": states.step,
                "parameters": sum(sizes),
                "tensors": len(sizes),
                "quantized_tensors": sum(size > min_quantized_size for size in sizes),
                "min_quantized_size": min_quantized_size,
                "naming": states.naming,
                "command": command,
            }
        )


def recommend_for(
    states: CapturedStates,
    run: Path,
    *,
    min_quantized_size: int,
    progress: Callable[[int, int, str], None] | None = None,
    executor: Executor | None = None,
) -> None:
    """Recommend quantizers for states in ``run/recommend``; an earlier result for them is kept."""
    folder = run / "recommend"
    identity: dict[str, Any] = {
        "states": states.fingerprint(),
        "gradients": states.window(),
        "min_quantized_size": min_quantized_size,
        "verdicts": [*LEVELS, CLEAN, UNPROVEN, UNSAFE, *FOLLOWS],  # earlier versions had others
    }
    if recommend.holds(folder, identity):
        return
    result = recommend.run(
        states, min_quantized_size=min_quantized_size, progress=progress, executor=executor
    )
    recommend.write(result, folder, states=identity)


@contextmanager
def _stages(
    out: str | os.PathLike[str], workers: int | None, progress: Progress | None
) -> Iterator[Stages]:
    """Lock a run folder, with processes of one thread each for as long as the block runs."""

    def trained(label: str, step: int, total: int, loss: float) -> None:
        if progress:
            progress(f"train {label}", step, total, f"loss {loss:.3f}")

    with FolderLock(out, "lab") as lock, Trainings(workers, trained) as trainings:
        executor = None if workers in (None, 1) else executors.new_pool(workers)
        try:
            with nullcontext() if workers is None else one_thread():
                yield Stages(lock.folder, executor, progress, trainings)
        finally:
            if executor is not None:
                executor.shutdown(cancel_futures=True)


def versions() -> dict[str, str]:
    """The versions of qmaps, torch and Python, by name."""
    return {"qmaps": __version__, "torch": torch.__version__, "python": sys.version.split()[0]}


def machine() -> str:
    """Architecture, cores, threads and the engine in use."""
    threads = torch.get_num_threads()
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, {threads} thread{'s' * (threads > 1)}, "
        f"{backend()} back end"
    )


def _recommended(folder: Path) -> Contender:
    """An AdamW with the choice of a folder."""
    bits = read_record(folder / "summary.json")["bits_per_element"]
    choice = load_choice(folder / "choice.json")
    return Contender(f"recommended ({units.bits(bits)} bits)", **choice, key="recommended")


def _keep(states: CapturedStates, fingerprint: str, folder: Path) -> None:
    """Write the states to a folder, unless an earlier call has done so."""
    if exists(folder) and any(folder.glob("step-*.safetensors")):
        try:
            held = capture.load(folder)
            same = held.steps == [states.step] and held.fingerprint() == fingerprint
        except CaptureError as error:
            raise OutputError(f"{error}; delete it, and it will be written again") from None
        if not same:
            raise OutputError(
                f"out={str(folder.parent)!r} holds other states than {states.source!r}; delete the "
                "folder or give another one"
            )
        return
    write(states, folder)
