"""Make every figure and table, and a page for each paper."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pandas as pd
from matplotlib.figure import Figure

from qmaps.capture import CapturedStates
from qmaps.errors import BadValueError, OutputError, nearest
from qmaps.lab import pipeline
from qmaps.storage.files import (
    output_folder,
    read_frame,
    read_record,
    replacing,
    write_frame,
    write_record,
)
from qmaps.storage.locks import FolderLock
from reproduction import page, sources, summary
from reproduction.catalogue import PAPERS
from reproduction.context import FULL, QUICK, Context, NotYetError, Progress
from reproduction.exhibit import Exhibit, Frames, Needs, Paper, explain
from reproduction.pictures import save
from reproduction.results import Made, Result
from reproduction.workloads.minilm import MiniLM

LONGEST = 2000
"""Largest number of rows of a table written as CSV."""


def run(
    papers: Sequence[str] = (),
    *,
    out: str | os.PathLike[str] = "reports",
    runs: str | os.PathLike[str] = "runs/papers",
    reports: str | os.PathLike[str] = "reports",
    states: Sequence[CapturedStates] = (),
    quick: bool = False,
    command: str = "python -m reproduction",
    progress: Progress | None = None,
) -> Path:
    """Make the figures and tables of papers, and write their pages.

    Frames of captured states and training runs are kept in `runs`: an interrupted call continues
    (frames only while their code is the same). Pages are written anew. ``out/<paper>`` has
    README.md and a self-contained index.html, pictures, and tables as CSV; ``out/papers.md`` and
    ``out/papers.html`` sum up.

    Args:
        papers: names of the papers; all if left out.
        out: folder of the pages.
        runs: folder of the frames and training runs for the pages.
        reports: folder of the tables of other commands.
        states: captured states to show in place of ours. Figures of our training runs or tables
            are then left out.
        quick: a small size, for tests.
        command: the command line in the pages.
        progress: called with a stage, its steps done, their number, and a note.

    Returns:
        The summary in HTML.

    Raises:
        BadValueError: there is no such paper.
        OutputError: a folder cannot be written.
    """
    chosen = [_paper(name) for name in papers or PAPERS]
    target, run_folder = output_folder(out), output_folder(runs, "runs")
    context = Context(
        run_folder, Path(reports), QUICK if quick else FULL, tuple(states), progress=progress
    )
    made: dict[str, list[Result]] = {}
    todo = {paper.name: _exhibits(paper, context) for paper in chosen}
    total, done = sum(map(len, todo.values())), 0
    for paper in chosen:
        made[paper.name] = []
        for exhibit in todo[paper.name]:
            if progress:
                progress("figures and tables", done, total, f"{paper.name} {exhibit.name}")
            made[paper.name].append(_make(paper, exhibit, context, target / paper.name))
            done += 1
    if progress:
        progress("figures and tables", total, total, "")
    info = _about(context, command)
    for paper in chosen:
        page.write(paper, made[paper.name], info, target)
    return summary.write([(paper, made[paper.name]) for paper in chosen], info, target)


def _paper(name: str) -> Paper:
    if name not in PAPERS:
        raise BadValueError(
            f"paper={name!r} is unknown; allowed are {', '.join(PAPERS)}{nearest(name, PAPERS)}"
        )
    return PAPERS[name]


def _exhibits(paper: Paper, context: Context) -> list[Exhibit]:
    """The figures and tables possible with the context's inputs."""
    if not context.user_states:
        return list(paper.exhibits)
    return [exhibit for exhibit in paper.exhibits if exhibit.needs in (Needs.STATES, Needs.NOTHING)]


def _about(context: Context, command: str) -> dict[str, Any]:
    shown = context.user_states[0] if context.user_states else None
    workload = (
        f"states of {shown.optimizer}, step {shown.step}"
        if shown is not None
        else f"{context.size.headline} (seed 0); spreads and grids {context.size.grid} "
        f"(seeds 0 to {context.size.seeds - 1})"
    )
    return {
        "command": command,
        "workload": workload,
        "versions": pipeline.versions(),
        "machine": pipeline.machine(),
        "quick": context.quick,
        "own": bool(context.user_states),
    }


def _make(paper: Paper, exhibit: Exhibit, context: Context, folder: Path) -> Result:
    """Frames, pictures, tables and the comparison of one figure or table."""
    try:
        frames, made = _frames(paper, exhibit, context)
    except NotYetError as missing:
        return Result(exhibit, pending=str(missing))
    finding = exhibit.find(frames)
    if context.user_states:  # the evidence for what differs is that of our models
        finding = replace(finding, why_ours="", differences=())
    finding = explain(finding, exhibit.timed)
    output_folder(folder)
    pictures = {name: _picture(figure, folder / f"{name}.png")
                for name, figure in exhibit.draw(frames).items()}  # fmt: skip
    tables = {}
    if finding.numbers is not None:
        tables[exhibit.name] = _table(finding.numbers, folder / f"{exhibit.name}.csv")
    for name, frame in finding.tables.items():
        if len(frame) <= LONGEST:
            file = folder / f"{exhibit.name}-{name}.csv"
            tables[f"{exhibit.name}-{name}"] = _table(frame, file)
    return Result(exhibit, finding, pictures, tables, made)


def _frames(paper: Paper, exhibit: Exhibit, context: Context) -> tuple[Frames, Made]:
    """The frames of an earlier call on the same states, or new ones."""
    made = Made(_source(exhibit, context), exhibit.command)
    if exhibit.needs is not Needs.STATES:
        frames = exhibit.build(context)
        return frames, made
    folder = context.runs / "frames" / paper.name / exhibit.name
    marker = folder / "made.json"
    identity = _identity(exhibit, context)
    with FolderLock(folder, "frames"):
        stored = _kept(folder, marker, identity)
        if stored is not None:
            return stored, made
        marker.unlink(missing_ok=True)
        frames = exhibit.build(context)
        for name, frame in frames.items():
            write_frame(folder / f"{name}.parquet", frame)
        write_record(marker, {"identity": identity, "frames": list(frames)})
    return frames, made


def _kept(folder: Path, marker: Path, identity: str) -> Frames | None:
    """Frames of an earlier call; None if none can be used."""
    if not marker.exists():
        return None
    try:
        record = read_record(marker)
        if record.get("identity") != identity:
            return None
        return {name: read_frame(folder / f"{name}.parquet") for name in record["frames"]}
    except OutputError:  # damaged: made again
        return None


def _source(exhibit: Exhibit, context: Context) -> str:
    """The inputs of a figure or table, with seeds if it has any."""
    text = exhibit.source or exhibit.needs.value
    if exhibit.needs in (Needs.NOTHING, Needs.REPORTS):
        return text
    if context.user_states:
        first, *following = [
            f"{captured.optimizer}, step {captured.step}" for captured in context.user_states
        ]
        return text.format(headline=first, grid=" and of ".join([first, *following]))
    size = context.size
    seeds = f"seeds 0 to {size.seeds - 1}" if size.seeds > 1 else "seed 0"
    if exhibit.pretrained and context.pretrained is not None:
        text += f", and of {MiniLM.name}, seed 0, after {context.pretrained.step} steps"
    return text.format(headline=f"{size.headline}, seed 0", grid=f"{size.grid}, {seeds}")


def _identity(exhibit: Exhibit, context: Context) -> str:
    """The dependencies of frames: states, size, and code."""
    shown = [context.states, *context.several]
    if exhibit.pretrained and context.pretrained is not None:
        shown.append(context.pretrained)
    parts = [sources.digest(exhibit.build), repr(context.size), *_fingerprints(shown)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _fingerprints(states: Sequence[CapturedStates]) -> list[str]:
    for captured in states:
        if captured not in _FINGERPRINTS:
            _FINGERPRINTS[captured] = captured.fingerprint()
    return [_FINGERPRINTS[captured] for captured in states]


_FINGERPRINTS: WeakKeyDictionary[CapturedStates, str] = WeakKeyDictionary()


def _picture(figure: Figure, path: Path) -> Path:
    save(figure, path)
    return path


def _table(frame: pd.DataFrame, path: Path) -> Path:
    with replacing(path) as temporary:
        frame.to_csv(temporary, index=False, float_format="%.6g")
    return path
