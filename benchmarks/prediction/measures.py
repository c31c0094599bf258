"""Measures of a pair before it trains: errors of one step, and a replay of one 32-bit run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

import qmaps
from benchmarks import recorded
from qmaps import capture, sweep
from qmaps.capture import Gradients
from reproduction.judges import JUDGES

BYTES = 2**28
"""Most bytes of recorded gradients; of larger models whole rows are sampled."""
WINDOWS = 4
"""The run is replayed as a whole, and in as many windows that each begin with exact states."""
SHARE = 0.25
"""Share of each parameter that is replayed."""


def snapshots(steps: int) -> list[int]:
    """Steps whose states are recorded: the first, the ends of the windows but the last."""
    return [1, *(steps * number // WINDOWS for number in range(1, WINDOWS))]


def record(judge: str, folder: Path) -> Path:
    """Train a judge in 32 bits with all gradients recorded; returns the states' folder.

    Args:
        judge: name of a judge.
        folder: where the run and its states are kept; a finished run is not repeated.
    """
    work = JUDGES[judge]
    return recorded.record(work, folder, snapshots(work.steps), Gradients(work.steps, BYTES))


def measured(
    states: Path, pairs: Sequence[str], report: Callable[[str], None] = print
) -> pd.DataFrame:
    """One row per pair: `quantizer`, and the measures as columns.

    Args:
        states: what `record` returned.
        pairs: the pairs of quantizers.
        report: called with a line after each part.

    Returns:
        Columns ``step_*`` are those of `qmaps.sweep.summarize` of the updates, the mean over the
        snapshots but the first. Columns ``replay_*`` are those of `qmaps.replay.summarize` over
        the whole run, ``window_*`` their mean over the windows.
    """
    steps = capture.load(states).steps
    ends = [*steps[1:], None]
    frames = {"step": [], "replay": [], "window": []}  # type: dict[str, list[pd.DataFrame]]
    whole = qmaps.replay.run(capture.load(states, step=1), pairs, share=SHARE)
    frames["replay"].append(qmaps.replay.summarize(whole))
    report("replayed the whole run")
    for start, end in zip(steps, ends, strict=True):
        count = None if end is None else end - start
        begun = capture.load(states, step=start)
        own = qmaps.replay.run(begun, pairs, steps=count, share=SHARE)
        frames["window"].append(qmaps.replay.summarize(own))
        if start > 1:
            frames["step"].append(sweep.summarize(sweep.run(begun, pairs)))
        report(f"measured from step {start}")
    parts = [_means(part).add_prefix(f"{name}_") for name, part in frames.items()]
    return pd.concat(parts, axis=1).loc[list(pairs)].rename_axis("quantizer").reset_index()


def _means(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The mean of the frames' numbers, pair by pair."""
    numbers = [frame.set_index("quantizer").select_dtypes("number") for frame in frames]
    return sum(numbers[1:], numbers[0]) / len(numbers)
