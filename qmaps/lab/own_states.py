"""From a checkpoint of one's own to the report."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

from qmaps import capture, sweep
from qmaps.analyze._states import MIN_SIZE, adam_pairs
from qmaps.capture import CapturedStates, saved
from qmaps.capture.saved import Names
from qmaps.errors import CaptureError, OutputError
from qmaps.lab import provenance, report
from qmaps.lab.frames import analyze_states
from qmaps.lab.pictures import draw
from qmaps.lab.recommendation import main_pair, recommend_for
from qmaps.lab.run import Progress, stage
from qmaps.storage.files import exists, write_record
from qmaps.storage.locks import FolderLock


def run_checkpoint(
    checkpoint: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    names: Names = None,
    pairs: Sequence[str] = sweep.STANDARD,
    min_quantized_size: int = MIN_SIZE,
    command: str = "",
    progress: Progress | None = None,
) -> Path:
    """Capture the states of a checkpoint, recommend, sweep, draw, and report.

    Everything is kept in `out`: ``states/`` (a copy, since trainers delete old checkpoints),
    ``sweep/``, ``frames/``, ``recommend/``, ``figures/``, ``about.json``, ``report.html``. What is
    there already is kept, so a second call goes on where the first was interrupted.

    Args:
        checkpoint: an optimizer's checkpoint, its folder, or captured states, as for
            `qmaps.capture.load`.
        out: the run folder, created if need be.
        names: names of the parameters, as for `qmaps.capture.load`.
        pairs: quantizers of both moments to sweep beside the recommended ones, such as
            ``"B128/DE@4s + rank1/linear@4u"``.
        min_quantized_size: parameters of at most this many elements are left out.
        command: the command that the report names as the one that made it.
        progress: called with the name of a stage, the number of its steps done, the number of all
            its steps, and a note.

    Returns:
        The report, an HTML file.

    Raises:
        CaptureError: the checkpoint cannot be read, its states are not Adam's, none is large
            enough, or one holds NaN or infinity; nothing is written then.
        BadValueError: `names` does not fit.
        OutputError: `out` cannot be written, holds other states, or is being written by another
            process.
    """
    states = capture.load(checkpoint, names=names)
    for _ in adam_pairs(states, min_quantized_size):
        pass  # raises an error before anything is written
    fingerprint = states.fingerprint()
    with FolderLock(out, "lab") as lock:
        folder = lock.folder
        captured = stage(progress, "capture states")
        captured(0, 1, "")
        _keep(states, fingerprint, folder / "states")
        captured(1, 1, "")
        recommend_for(
            states,
            folder,
            min_quantized_size=min_quantized_size,
            progress=stage(progress, "recommend quantizers"),
        )
        shown = main_pair(folder)
        sweep.run(
            states,
            [*pairs, *shown],
            out=folder / "sweep",
            min_quantized_size=min_quantized_size,
            progress=stage(progress, "sweep quantizers"),
        )
        analyze_states(
            states,
            folder,
            pairs=shown,
            min_quantized_size=min_quantized_size,
            progress=stage(progress, "analyze states"),
        )
        draw(folder, keep=True, progress=stage(progress, "draw figures"))
        shapes = [states.shape(name, "exp_avg") for name in _with_moments(states)]
        write_record(
            folder / "about.json",
            {
                "checkpoint": str(checkpoint),
                "captured_step": states.step,
                "parameters": sum(map(math.prod, shapes)),
                "tensors": len(shapes),
                "quantized_tensors": sum(math.prod(s) > min_quantized_size for s in shapes),
                "min_quantized_size": min_quantized_size,
                "naming": states.naming,
                "command": command,
                "versions": provenance.versions(),
                "machine": provenance.machine(),
            },
        )
        return report.write(folder)


def _with_moments(states: CapturedStates) -> list[str]:
    return [n for n in states.parameters() if {"exp_avg", "exp_avg_sq"} <= {*states.states(n)}]


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
    saved.write(states, folder)
