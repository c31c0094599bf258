"""The moments of two runs, and errors of quantizers on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from qmaps.algebra.pair import Pair
from qmaps.analyze._states import MIN_SIZE, States, adam_pairs, as_states
from qmaps.analyze.outlier_lines import outlier_lines
from qmaps.analyze.recommend.candidates import MOMENTS, PRESETS
from qmaps.analyze.update_error import update_error
from qmaps.capture import CapturedStates
from qmaps.errors import CaptureError
from qmaps.optim.presets import pair_of
from qmaps.storage.files import records

RUNS = ("A", "B")
PAIRS = tuple(PRESETS)
"""The pairs that are measured by default: the presets."""

EDGES = np.arange(-46, 39.01, 0.05)
"""Edges of the bins of magnitudes, in decades; float32 has no others."""
LOW, HIGH = 0.01, 0.99
"""Between these shares of the elements that are not 0 lies the spread."""


@dataclass(frozen=True)
class RunsCompared:
    """The moments of two runs, A and B, and the errors of some quantizers on both.

    Attributes:
        moments: one row per run (`run`: ``A`` or ``B``), parameter and moment, then one per run and
            moment over all `shared` parameters (`parameter` is empty). Columns: `run`, `source`,
            `step`, `parameter`, `shape`, `numel`, `state`, `zeros` (share of elements that are 0),
            `low`, `median`, `high` (log10 of the 1 %, 50 % and 99 % quantile of the other
            magnitudes, to 0.05), `spread` (high minus low, in decades), `in_rows` and `in_cols` (of
            `qmaps.analyze.outlier_lines`; NaN for tensors of one dimension; over all parameters the
            mean over matrices, weighted by elements).
        errors: the same of pairs of quantizers: `run`, `parameter`, `numel`, `quantizer`,
            `preset`, then the means, maxima and shares of `qmaps.analyze.update_error`.
        shared: parameters of both runs.
        only: parameters of one run alone, by run.
    """

    moments: pd.DataFrame = field(repr=False)
    errors: pd.DataFrame = field(repr=False)
    shared: list[str]
    only: dict[str, list[str]]


def runs(
    a: States,
    b: States,
    *,
    pairs: Iterable[Pair | str] = PAIRS,
    min_quantized_size: int = MIN_SIZE,
    progress: Callable[[int, int, str], None] | None = None,
) -> RunsCompared:
    """Compare Adam's moments of two runs, parameter by parameter and in all.

    Args:
        a: captured states, their path, or tensors by parameter and state name.
        b: the same of the other run.
        pairs: quantizers of both moments to measure on each run.
        min_quantized_size: parameters of at most this many elements are left out.
        progress: called before each parameter of each run with the number of parameters done, the
            number of all, and the parameter's name; at the end with an empty name.

    Raises:
        SpecError: a pair does not parse; nothing has been measured.
        CaptureError: no parameter is in both runs; or, in either, none is large enough or has both
            moments, or a moment holds NaN or infinity.
    """
    parsed = [pair_of(pair) for pair in pairs]
    captured = dict(zip(RUNS, map(as_states, (a, b)), strict=True))
    names = {run: _names(states, min_quantized_size) for run, states in captured.items()}
    shared = [name for name in names["A"] if name in names["B"]]
    only = {run: [name for name in listed if name not in shared] for run, listed in names.items()}
    if not shared:
        raise CaptureError(
            f"{captured['A'].source!r} and {captured['B'].source!r} have no parameter in common "
            f"(such as {names['A'][0]} and {names['B'][0]})"
        )
    moments: list[dict[str, Any]] = []
    errors: list[dict[str, Any]] = []
    done, total = 0, sum(map(len, names.values()))
    for run, states in captured.items():
        counts = {state: np.zeros(len(EDGES) - 1) for state in MOMENTS}
        rows: list[dict[str, Any]] = []
        source = {"run": run, "source": states.source, "step": states.step}
        for name, m, v, eps in adam_pairs(states, min_quantized_size):
            if progress:
                progress(done, total, name)
            done += 1
            for state, tensor in zip(MOMENTS, (m, v), strict=True):
                binned = _counts(tensor)
                if name in shared:
                    counts[state] += binned
                rows.append({**source, **_tensor(name, state, tensor, binned)})
            single = CapturedStates.from_tensors({name: {MOMENTS[0]: m, MOMENTS[1]: v}}, eps=eps)
            measured = records(update_error(single, parsed, min_quantized_size=0))
            errors += [{"run": run, "parameter": name, **_error(row)} for row in measured]
        common = [row for row in rows if row["parameter"] in shared]
        moments += [*rows, *({**source, **summary} for summary in _all(common, counts))]
        errors += _all_errors([e for e in errors if e["run"] == run and e["parameter"] in shared])
    if progress:
        progress(total, total, "")
    return RunsCompared(pd.DataFrame(moments), pd.DataFrame(errors), shared, only)


def _names(states: CapturedStates, min_size: int) -> list[str]:
    """The parameters to compare."""
    names = [
        name
        for name in states.parameters()
        if set(MOMENTS) <= set(states.states(name))
        and math.prod(states.shape(name, MOMENTS[0])) > min_size
    ]
    if not names:
        next(adam_pairs(states, min_size))  # raises an error that gives the reason
    return names


def _counts(tensor: Tensor) -> np.ndarray:
    """Number of magnitudes in each bin of `EDGES`."""
    flat = tensor.reshape(-1).double().abs()
    return np.histogram(flat[flat > 0].log10().numpy(), EDGES)[0].astype(float)


def _tensor(name: str, state: str, tensor: Tensor, counts: np.ndarray) -> dict[str, Any]:
    lines = {"in_rows": math.nan, "in_cols": math.nan}
    if tensor.dim() >= 2:
        measured = outlier_lines({name: tensor}).iloc[0]
        lines = {line: float(measured[line]) for line in lines}
    return {
        "parameter": name,
        "shape": "x".join(map(str, tensor.shape)),
        "numel": tensor.numel(),
        "state": state,
        **_magnitudes(counts, tensor.numel()),
        **lines,
    }


def _magnitudes(counts: np.ndarray, numel: int) -> dict[str, float]:
    """Quantiles from counts; each is the middle of its bin."""
    nonzero = counts.sum()
    cumulative = np.cumsum(counts)
    low, median, high = (
        float(EDGES[np.searchsorted(cumulative, share * nonzero)] + 0.025) if nonzero else math.nan
        for share in (LOW, 0.5, HIGH)
    )
    zeros = 1 - float(nonzero) / numel
    return {"zeros": zeros, "low": low, "median": median, "high": high, "spread": high - low}


def _all(rows: list[dict[str, Any]], counts: dict[str, np.ndarray]) -> Iterator[dict[str, Any]]:
    """A row per moment, over all these parameters."""
    for state, binned in counts.items():
        parts = [row for row in rows if row["state"] == state]
        matrices = [row for row in parts if not math.isnan(row["in_rows"])]
        numel = sum(row["numel"] for row in parts)
        weight = [row["numel"] for row in matrices]
        lines = {
            line: float(np.average([row[line] for row in matrices], weights=weight))
            if matrices
            else math.nan
            for line in ("in_rows", "in_cols")
        }
        columns = {"parameter": "", "shape": "", "numel": numel, "state": state}
        yield {**columns, **_magnitudes(binned, numel), **lines}


def _error(row: dict[str, Any]) -> dict[str, Any]:
    """The columns with means, maxima or shares."""
    names = [name for name in row if name.startswith(("mean_", "max_"))]
    columns = ("numel", "quantizer", "bits_per_element", *names, "zeroed_share")
    return {"preset": PRESETS.get(row["quantizer"], ""), **{name: row[name] for name in columns}}


def _all_errors(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row per pair, over all these parameters."""
    frame = pd.DataFrame(rows)
    joined = []
    for _, group in frame.groupby("quantizer", sort=False):
        row = {**records(group)[0], "parameter": "", "numel": int(group["numel"].sum())}
        for name in row:
            if name.startswith(("mean_", "bits_", "zeroed_")):
                row[name] = float(np.average(group[name], weights=group["numel"]))
            elif name.startswith("max_"):
                row[name] = float(group[name].max())
        joined.append(row)
    return joined
