"""The whole path in one run folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from qmaps import capture, sweep
from qmaps.analyze import executors
from qmaps.analyze._states import MIN_SIZE
from qmaps.capture import CapturedStates, Gradients, StateRecorder
from qmaps.engines.threads import one_thread
from qmaps.lab import provenance, report
from qmaps.lab.compare import Contender, loss_frame, summarize_losses
from qmaps.lab.frames import analyze_states
from qmaps.lab.pictures import draw
from qmaps.lab.recommendation import contender, main_pair, recommend_for
from qmaps.lab.workloads import Workload
from qmaps.lab.workloads.processes import Trainings
from qmaps.storage.files import write_frame, write_record
from qmaps.storage.locks import FolderLock

BASE = Contender("32-bit AdamW")
PAPER = Contender("4-bit AdamW (B128/DE, rank1/linear)", "paper-4bit", key="paper-4bit")

GRADIENTS = Gradients(steps=60, max_bytes=2**26)
"""What is recorded after the states in the middle of the 32-bit run."""

Progress = Callable[[str, int, int, str], None]


def stage(progress: Progress | None, name: str) -> Callable[[int, int, str], None]:
    """Return what reports the progress of one stage.

    Args:
        progress: as for `run`; None reports nothing.
        name: name of the stage.
    """
    return lambda done, total, note: progress(name, done, total, note) if progress else None


@dataclass(frozen=True)
class Recording:
    """Records the states of a run in its middle and at its end, as a hook of `train`.

    Attributes:
        folder: folder of the captured states.
        steps: number of steps of the run.
    """

    folder: Path
    steps: int

    def __call__(self, optimizer: torch.optim.Optimizer, _: torch.nn.Module) -> StateRecorder:
        every = max(1, self.steps // 2)
        return StateRecorder(
            optimizer,
            self.folder,
            steps=lambda step: step % every == 0 or step == self.steps,
            gradients=GRADIENTS,
        )


@contextmanager
def pool(workers: int | None) -> Iterator[Executor | None]:
    """Processes of one thread each for a block, in which this process uses one thread too.

    Args:
        workers: number of processes; 1 for none besides this one, None for torch's threads.
    """
    if workers is None:
        yield None
        return
    with one_thread():
        if workers == 1:
            yield None
            return
        executor = executors.new_pool(workers)
        try:
            yield executor
        finally:
            executor.shutdown(cancel_futures=True)


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
    ``about.json``, ``report.html``. Training
    runs, sweeps and frames that are there already are kept, so a second call goes on where the
    first was interrupted.

    Args:
        workload: what to train.
        out: the run folder, created if need be.
        seed: seed of the weights and the batches, at least 0.
        steps: number of steps of each training run; the workload's default if left out.
        pairs: quantizers of both moments to sweep beside the recommended ones, such as
            ``"B128/DE@4s + rank1/linear@4u"``.
        contenders: the quantized optimizers to train with; one with the recommended choice is
            added.
        command: the command that the report names as the one that made it.
        progress: called with the name of a stage, the number of its steps done, the number of all
            its steps, and a note.
        workers: number of processes that train, measure and replay side by side, each with one
            thread; the results have the same bits for any number of them. With 1 everything is
            done in this process; by default as well, and with torch's number of threads. A script
            that gives workers needs ``if __name__ == "__main__":``.

    Returns:
        The report, an HTML file.

    Raises:
        OutputError: `out` cannot be written, holds a run of other settings, or is being written
            by another process.
        CommunicationError: a process was killed.
    """

    def trained(label: str, step: int, total: int, loss: float) -> None:
        if progress:
            progress(f"train {label}", step, total, f"loss {loss:.3f}")

    with (
        FolderLock(out, "lab") as lock,
        pool(workers) as executor,
        Trainings(workers, trained) as trainings,
    ):
        return _run(
            workload,
            lock.folder,
            seed,
            steps,
            pairs,
            contenders,
            command,
            progress,
            trainings,
            executor,
        )


def _run(
    workload: Workload,
    folder: Path,
    seed: int,
    steps: int | None,
    pairs: Sequence[str],
    contenders: Sequence[Contender],
    command: str,
    progress: Progress | None,
    trainings: Trainings,
    executor: Executor | None,
) -> Path:
    """`run` in a folder that is locked."""
    steps = workload.steps if steps is None else steps

    def advance(name: str) -> Callable[[int, int, str], None]:
        tell = stage(progress, name)

        def told(done: int, total: int, note: str) -> None:
            trainings.poll()
            tell(done, total, note)

        return told

    place = folder / "train"
    recording = Recording(folder / "states", steps)
    base = BASE.training(workload, place, seed, steps, hooks=[recording])
    runs = [base, *(entrant.training(workload, place, seed, steps) for entrant in contenders)]
    trainings.start(runs)
    trainings.results([base])
    states = capture.load(folder / "states")
    recommend_for(
        _before(folder / "states", states),
        folder,
        min_quantized_size=MIN_SIZE,
        progress=advance("recommend quantizers"),
        executor=executor,
    )
    quantized = [*contenders, contender(folder)]
    runs.append(quantized[-1].training(workload, place, seed, steps))
    trainings.start(runs[-1:])
    shown = main_pair(folder)
    sweep.run(
        states,
        [*pairs, *shown],
        out=folder / "sweep",
        progress=advance("sweep quantizers"),
        executor=executor,
    )
    analyze_states(
        states, folder, pairs=shown, progress=advance("analyze states"), executor=executor
    )
    losses = trainings.results(runs)
    write_frame(folder / "frames" / "loss_curves.parquet", loss_frame(losses))
    write_frame(folder / "frames" / "losses.parquet", summarize_losses(losses))
    draw(folder, keep=True, progress=stage(progress, "draw figures"))
    write_record(
        folder / "about.json",
        {
            "workload": workload.name,
            "unit": workload.unit,
            "trained": {c.key: c.label for c in quantized if c.key},
            "parameters": sum(p.numel() for p in workload.model(seed).parameters()),
            "seed": seed,
            "steps": steps,
            "captured_step": states.step,
            "settings": workload.settings(),
            "command": command,
            "versions": provenance.versions(),
            "machine": provenance.machine(),
        },
    )
    return report.write(folder)


def _before(folder: Path, last: CapturedStates) -> CapturedStates:
    """The last states that have recorded gradients after them; `last` if none have."""
    for step in reversed(last.steps):
        states = capture.load(folder, step=step)
        if len(states.window()) > 1:
            return states
    return last
