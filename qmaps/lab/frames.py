"""The frames of all figures of captured states."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from qmaps import analyze, maps
from qmaps.algebra.own_maps import own_values
from qmaps.algebra.pair import Pair, distinct
from qmaps.algebra.quantizer import Quantizer, quantizer
from qmaps.analyze import executors
from qmaps.analyze.states import MIN_SIZE, States, adam_pairs, as_states
from qmaps.capture import CapturedStates
from qmaps.maps.codebook import Codebook
from qmaps.optim.presets import pair_of
from qmaps.storage.files import claim, earlier_frame, write_frame
from qmaps.storage.locks import FolderLock

PAPER_MAPS = ("DE", "inverse", "quantile", "linear0")
"""The maps of table 6 of the 8-bit paper, in its order of error."""

COMPARED = (
    *(f"tensor/{name}@8s + tensor/{name}@8u" for name in PAPER_MAPS),
    *(f"tensor/{name}@8s + 32-bit" for name in PAPER_MAPS),
    "B2048/DE@8s + B2048/DE@8u",
    pair_of("8bit").spec,
    pair_of("4bit").spec,
    "B128/DE@4s + rank1/linear@4u",
    "B128/DE@4s + B128/DE@4u",
    "B128/DE@4s + B128/DE-0@4u",
    "B128/DE@4s + 32-bit",
    "32-bit + B128/DE@4u",
    "32-bit + B128/DE-0@4u",
    "32-bit + rank1/linear@4u",
)
"""Pairs of the figure of update errors: those of the papers, and presets."""

HEATMAPS = (
    "tensor/linear0@8s + tensor/linear0@8u",
    "tensor/DE@8s + tensor/DE@8u",
    "B2048/DE@8s + B2048/DE@8u",
)
CURVES = tuple(f"tensor/{name}@8s + tensor/{name}@8u" for name in PAPER_MAPS)
SECOND_MOMENT = ("B128/DE@4u", "B128/DE-0@4u", "rank1/linear@4u")
FIRST_MOMENT = ("tensor/DE@8s", "B128/DE@4s", "B128/linear@4s")
MATRICES = 6

PER_DECADE = 4
"""Bins of a histogram per factor of 10."""
CELLS = 48
"""Largest number of cells of a picture along each axis."""
DARKEST = 1e4
"""Magnitude, in medians, from which on a picture's cells have the last colour."""


def analyze_states(
    states: States,
    out: str | os.PathLike[str],
    *,
    pairs: Iterable[Pair | str] = (),
    codebooks: Iterable[Codebook] = (),
    min_quantized_size: int = MIN_SIZE,
    progress: Callable[[int, int, str], None] | None = None,
    executor: Executor | None = None,
    workers: int | None = None,
) -> list[Path]:
    """Compute the frames of captured states and write them to ``out/frames``.

    Existing frames are kept, so an interrupted call goes on; damaged ones are made again.

    Args:
        states: captured states, their path, or tensors by parameter and state name.
        out: the run folder, created if need be.
        pairs: pairs of quantizers, or names of presets, for figures to show beside those of the
            papers.
        codebooks: codebooks of the caller's own that the pairs name.
        min_quantized_size: parameters of at most this many elements are left out.
        progress: called before each frame with the number of frames done, the number of all, and
            the frame's name; with workers after each; at the end with an empty name.
        executor: where frames are computed, each by one thread, as for `qmaps.sweep.run`.
        workers: number of processes to start, in place of an executor, as for `qmaps.sweep.run`.
            The frames have the same bits for any number of workers.

    Returns:
        The Parquet files, one per frame.

    Raises:
        CaptureError: the states are not Adam's, no parameter is large enough, or a state holds
            NaN or infinity.
        BadValueError: states without a path are given to workers, or `executor` and `workers` are
            combined.
        CommunicationError: a worker was killed.
        OutputError: `out` cannot be written, holds frames of other states, or is being written by
            another process.
    """
    captured = as_states(states)
    books = tuple(codebooks)
    wanted = tuple(distinct(pair_of(pair, books) for pair in pairs))
    about = (wanted, min_quantized_size)
    jobs = [
        executors.Job(number, name, 1, partial(_computed, name, *about))
        for number, name in enumerate(_jobs(captured, wanted, min_quantized_size))
    ]
    executors.check(captured, executor, workers)
    captured.with_moments()  # raises at once if there are no Adam states
    identity = {"states": captured.fingerprint(), "min_quantized_size": min_quantized_size}
    if wanted:
        identity["pairs"] = [pair.spec for pair in wanted]
        if own := own_values(q for pair in wanted for q in (pair.first, pair.second)):
            identity["codebooks"] = own
    with FolderLock(Path(out) / "frames", "frames") as lock:
        content = "frames of other states or pairs"
        same_states = claim(lock.folder / "states.json", identity, content)
        paths = [lock.folder / f"{job.name}.parquet" for job in jobs]
        # Where the states are known, only frames that are not there already are computed.
        known = enumerate(map(earlier_frame, paths)) if same_states else ()
        earlier = {number: frame for number, frame in known if frame is not None}
        executors.measured(
            jobs,
            captured,
            executor,
            workers,
            progress=progress,
            earlier=earlier,
            keep=lambda job, frame: write_frame(paths[job.number], frame),
        )
    return paths


def _computed(
    name: str, pairs: tuple[Pair, ...], min_quantized_size: int, states: CapturedStates
) -> pd.DataFrame:
    """Compute a frame in this process."""
    return _jobs(states, pairs, min_quantized_size)[name]()


def _jobs(
    captured: CapturedStates, pairs: tuple[Pair, ...], min_quantized_size: int
) -> Mapping[str, Callable[[], pd.DataFrame]]:
    """Functions computing the frames, by name."""
    firsts, seconds = (
        tuple(dict.fromkeys([*map(quantizer, specs), *filter(None, own)]))
        for specs, own in (
            (FIRST_MOMENT, [pair.first for pair in pairs]),
            (SECOND_MOMENT, [pair.second for pair in pairs]),
        )
    )
    compared: list[Pair | str] = [*COMPARED, *pairs]
    least = {"min_quantized_size": min_quantized_size}
    return {
        "update_error": lambda: analyze.update_error(captured, compared, **least),
        "code_pairs": lambda: analyze.code_pairs(captured, HEATMAPS, **least),
        "first_code_error": lambda: analyze.first_code_error(captured, CURVES, **least),
        "map_curves": _map_curves,
        "histogram_first": lambda: _histogram(captured, "exp_avg", firsts),
        "histogram_second": lambda: _histogram(captured, "exp_avg_sq", seconds),
        "inverse_sqrt": lambda: analyze.inverse_sqrt(captured, seconds, **least),
        "outliers": lambda: _outliers(captured),
        "profiles": lambda: profiles(captured, **least),
    }


def _map_curves() -> pd.DataFrame:
    """The curve of every map without a fit, at 8 bits or its nearest width."""
    classes = [maps.REGISTRY[name] for name in maps.names()]
    return analyze.map_curves([cls.near(8) for cls in classes if not cls.fitted])


def _matrices(states: CapturedStates) -> list[str]:
    """The parameters with the most elements among those of two dimensions or more."""
    shapes = {name: states.shape(name, "exp_avg") for name in states.with_moments()}
    matrices = [name for name, shape in shapes.items() if len(shape) >= 2]
    return sorted(matrices, key=lambda name: -math.prod(shapes[name]))


def _histogram(
    states: CapturedStates, state: str, quantizers: tuple[Quantizer, ...]
) -> pd.DataFrame:
    """The histogram of the largest matrix."""
    name = (_matrices(states) or states.with_moments())[0]
    return analyze.histogram(states.tensor(name, state), quantizers).assign(
        parameter=name, state=state
    )


def _outliers(states: CapturedStates) -> pd.DataFrame:
    """Both moments of a few matrices, taken at even distances over the model's parameters."""
    matrices = set(_matrices(states))
    names = [name for name in states.parameters() if name in matrices]
    half = MATRICES // 2
    if len(names) > half:
        names = [names[i * (len(names) - 1) // (half - 1)] for i in range(half)]
    return analyze.outliers(
        {
            f"{name}: {state}": states.tensor(name, state)
            for state in ("exp_avg", "exp_avg_sq")
            for name in names
        }
    )


def profiles(states: States, *, min_quantized_size: int) -> pd.DataFrame:
    """Profiles of the moments of each large enough parameter.

    Args:
        states: captured states, their path, or tensors by parameter and state name.
        min_quantized_size: parameters of at most this many elements are left out.

    Returns:
        One row per parameter and moment: `parameter`, `state`, `shape` (list of ints), `lowest`
        (number of the first bin: bin b holds magnitudes from 10^(b/4) to 10^((b+1)/4)), `counts`
        (elements in each bin), `zeros` (elements equal to 0), `picture_rows`, `picture_cols` and
        `picture` (bytes, row by row: 0 for a magnitude of at most the median, 255 for 10,000 times
        it, in the logarithm; the largest element of each cell; empty for fewer than two
        dimensions), `in_rows` and `in_cols` (see `qmaps.analyze.outlier_lines`; NaN for fewer than
        two dimensions).

    Raises:
        CaptureError: as `qmaps.analyze.update_error`.
    """
    rows = []
    for parameter, m, v, _ in adam_pairs(states, min_quantized_size):
        for state, x in (("exp_avg", m), ("exp_avg_sq", v)):
            lowest, counts = _magnitudes(x)
            about = {"parameter": parameter, "state": state, "shape": list(x.shape)}
            bins = {"lowest": lowest, "counts": counts, "zeros": int((x == 0).sum())}
            rows.append({**about, **bins, **_picture(x)})
    return pd.DataFrame(rows)


def _magnitudes(x: Tensor) -> tuple[int, list[int]]:
    """Number of the first bin, and the counts from there on; none for zeros alone."""
    magnitudes = x.abs().reshape(-1)
    logs = magnitudes[magnitudes > 0].log10_()
    if not logs.numel():
        return 0, []
    bins = logs.mul_(PER_DECADE).floor_().to(torch.int64)
    lowest = int(bins.min())
    return lowest, torch.bincount(bins - lowest).tolist()


def _picture(x: Tensor) -> dict[str, object]:
    if x.dim() < 2:
        none = float("nan")
        return {
            "picture_rows": 0, "picture_cols": 0, "picture": b"", "in_rows": none, "in_cols": none
        }  # fmt: skip
    cells = analyze.outliers({"": x}, cells=CELLS)
    lines = analyze.outlier_lines({"": x}).iloc[0]
    with np.errstate(divide="ignore"):
        shades = np.log10(cells["magnitude"].to_numpy()) / np.log10(DARKEST)
    return {
        "picture_rows": cells["row"].nunique(),
        "picture_cols": cells["col"].nunique(),
        "picture": np.round(255 * shades.clip(0, 1)).astype(np.uint8).tobytes(),
        "in_rows": float(lines["in_rows"]),
        "in_cols": float(lines["in_cols"]),
    }
