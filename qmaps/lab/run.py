"""The whole path in one run folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from qmaps import capture, sweep
from qmaps.analyze._states import MIN_SIZE
from qmaps.capture import CapturedStates, Gradients, StateRecorder
from qmaps.lab import provenance, report
from qmaps.lab.compare import Contender, compare, loss_frame, summarize_losses
from qmaps.lab.frames import analyze_states
from qmaps.lab.pictures import draw
from qmaps.lab.recommendation import contender, main_pair, recommend_for
from qmaps.lab.workloads import Workload
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

    Returns:
        The report, an HTML file.

    Raises:
        OutputError: `out` cannot be written, holds a run of other settings, or is being written
            by another process.
    """
    with FolderLock(out, "lab") as lock:
        return _run(workload, lock.folder, seed, steps, pairs, contenders, command, progress)


def _run(
    workload: Workload,
    folder: Path,
    seed: int,
    steps: int | None,
    pairs: Sequence[str],
    contenders: Sequence[Contender],
    command: str,
    progress: Progress | None,
) -> Path:
    """`run` in a folder that is locked."""
    steps = workload.steps if steps is None else steps
    every = max(1, steps // 2)

    def record(optimizer: torch.optim.Optimizer, _: torch.nn.Module) -> StateRecorder:
        return StateRecorder(
            optimizer,
            folder / "states",
            steps=lambda step: step % every == 0 or step == steps,
            gradients=GRADIENTS,
        )

    def trained(label: str, step: int, total: int, loss: float) -> None:
        if progress:
            progress(f"train {label}", step, total, f"loss {loss:.3f}")

    base = compare(
        workload,
        [BASE],
        out=folder / "train",
        seeds=[seed],
        steps=steps,
        hooks={(BASE.label, seed): [record]},
        progress=trained,
    )
    states = capture.load(folder / "states")
    recommend_for(
        _before(folder / "states", states),
        folder,
        min_quantized_size=MIN_SIZE,
        progress=stage(progress, "recommend quantizers"),
    )
    shown = main_pair(folder)
    sweep.run(
        states,
        [*pairs, *shown],
        out=folder / "sweep",
        progress=stage(progress, "sweep quantizers"),
    )
    analyze_states(states, folder, pairs=shown, progress=stage(progress, "analyze states"))
    quantized = [*contenders, contender(folder)]
    runs = base + compare(
        workload,
        quantized,
        out=folder / "train",
        seeds=[seed],
        steps=steps,
        progress=trained,
    )
    write_frame(folder / "frames" / "loss_curves.parquet", loss_frame(runs))
    write_frame(folder / "frames" / "losses.parquet", summarize_losses(runs))
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
