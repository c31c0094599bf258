"""One row per tensor and quantizer, or pair of quantizers."""

from __future__ import annotations

import hashlib
import json
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from torch import Tensor

from qmaps.algebra.pair import Pair, spec_of
from qmaps.algebra.quantizer import Quantizer, fit_each, quantizer
from qmaps.analyze._states import MIN_SIZE, States, as_states
from qmaps.analyze._updates import Exact, Moment, UpdateErrors
from qmaps.capture import CapturedStates
from qmaps.engines import dispatch
from qmaps.errors import CaptureError, OutputError
from qmaps.maps.codebook import Codebook
from qmaps.maps.fitted import FittedMap
from qmaps.normalize.base import Normalizer
from qmaps.storage.files import output_folder, read_frame, read_record, write_frame, write_record
from qmaps.storage.locks import FolderLock

MOMENTS = {"exp_avg", "exp_avg_sq"}

Spec = str | Quantizer | Pair | tuple[str | Quantizer | None, str | Quantizer | None]


def run(
    states: States,
    specs: Iterable[Spec],
    *,
    out: str | os.PathLike[str] | None = None,
    min_quantized_size: int = MIN_SIZE,
    codebooks: Iterable[Codebook] = (),
    progress: Callable[[int, int, str], None] | None = None,
) -> pd.DataFrame:
    """Measure quantizers on every tensor of captured states.

    A single quantizer is measured on every state, or on those without negative values if its map
    is unsigned. A pair is measured on the Adam update of every parameter that has both moments;
    each of its quantizers is measured on its moment as well.

    Args:
        states: captured states, their path, or tensors by parameter and state name.
        specs: quantizers (``"B128/DE@4s"``) and pairs (``"B128/DE@4s + rank1/linear@4u"``).
        out: a folder for the result. One file per parameter is written into its folder ``parts``
            as the sweep proceeds, and ``sweep.parquet`` at the end. An interrupted sweep goes on
            from the parts; damaged ones are measured again.
        min_quantized_size: parameters of at most this many elements are left out, as
            optimizers leave them in 32 bits.
        codebooks: codebooks of the caller's own that the specs name.
        progress: called before each parameter with the number of parameters done, the number of
            all, and the parameter's name; at the end with an empty name.

    Returns:
        One row per parameter, state and quantizer, and one per parameter and pair. The columns
        are `step`, `parameter`, `shape` (such as ``768x3072``), `numel`, `state` (a state's name,
        or ``update``), `quantizer`, `first`, `second` (the quantizers of a pair, else None),
        `bits_per_element` (of a pair: the mean of both), and

        - for states the metrics of `qmaps.metrics` and `mean_square` (mean of the squared values),
        - for updates ``{mean,median,p99,p999,max}_{abs,rel}_error`` and `zeroed_share` as in
          `qmaps.analyze.update_error`.

    Raises:
        SpecError: a spec does not parse; nothing has been measured.
        CaptureError: there are no states, none is large enough, a pair is given and no parameter
            has both moments, or a state holds NaN or infinity.
        OutputError: `out` cannot be written, holds another sweep, or is being written by
            another process.
    """
    singles, pairs = _parse(specs, tuple(codebooks))
    captured = as_states(states)
    by_parameter = _parameters(captured, min_quantized_size)
    if pairs:
        _require_adam(by_parameter, captured)
    if out is None:
        return _measure(captured, by_parameter, singles, pairs, None, progress)
    with FolderLock(out, "sweep"):
        parts = _folder(out, captured, singles, pairs, min_quantized_size)
        result = _measure(captured, by_parameter, singles, pairs, parts, progress)
        write_frame(parts.parent / "sweep.parquet", result)
    return result


def _measure(
    captured: CapturedStates,
    by_parameter: dict[str, list[str]],
    singles: list[Quantizer],
    pairs: list[Pair],
    parts: Path | None,
    progress: Callable[[int, int, str], None] | None,
) -> pd.DataFrame:
    """All rows; those of a parameter that has a file in `parts` already are read from it."""
    frames = []
    for done, (parameter, names) in enumerate(by_parameter.items()):
        if progress:
            progress(done, len(by_parameter), parameter)
        part = None if parts is None else parts / f"{done:05d}.parquet"
        frame = None if part is None else _kept(part)
        if frame is None:
            frame = pd.DataFrame(list(_rows(captured, parameter, names, singles, pairs)))
            if part is not None:
                write_frame(part, frame)
        frames.append(frame)
    if progress:
        progress(len(by_parameter), len(by_parameter), "")
    return pd.concat(frames, ignore_index=True)


def _kept(part: Path) -> pd.DataFrame | None:
    """Return the rows that an earlier call measured; None if there are none, or damaged ones."""
    if not part.exists():
        return None
    try:
        return read_frame(part, must_be_sealed=True)
    except OutputError:
        return None


def _parse(
    specs: Iterable[Spec], codebooks: tuple[Codebook, ...]
) -> tuple[list[Quantizer], list[Pair]]:
    singles: list[Quantizer] = []
    pairs: list[Pair] = []
    for spec in specs:
        if isinstance(spec, Quantizer):
            singles.append(spec)
        elif isinstance(spec, str) and " + " not in spec:
            singles.append(quantizer(spec, codebooks))
        else:
            pairs.append(Pair.parse(spec, codebooks))
    return list(dict.fromkeys(singles)), list(dict.fromkeys(pairs))


def _parameters(states: CapturedStates, min_quantized_size: int) -> dict[str, list[str]]:
    """State names of each parameter that is large enough."""
    chosen = {}
    for parameter in states.parameters():
        names = [
            name
            for name in states.states(parameter)
            if math.prod(states.shape(parameter, name)) > min_quantized_size
        ]
        if names:
            chosen[parameter] = names
    if not chosen:
        raise CaptureError(
            f"no state has more than min_quantized_size={min_quantized_size} elements, so there is "
            "nothing to quantize"
        )
    return chosen


def _require_adam(by_parameter: dict[str, list[str]], states: CapturedStates) -> None:
    """Raise if no parameter that is large enough has both moments."""
    if not any(set(names) >= MOMENTS for names in by_parameter.values()):
        next(states.adam_pairs())  # raises an error that lists the states if no parameter has both
        raise CaptureError(
            "no parameter with both exp_avg and exp_avg_sq is large enough to be quantized"
        )


def _rows(
    states: CapturedStates,
    parameter: str,
    names: list[str],
    singles: list[Quantizer],
    pairs: list[Pair],
) -> Iterator[dict[str, Any]]:
    """The rows of one parameter; every quantizer encodes a state once."""
    tensors = {name: states.tensor(parameter, name) for name in names}
    adam = tensors.keys() >= MOMENTS
    wanted: dict[str, list[Quantizer]] = {
        name: [q for q in singles if q.map.signed or not bool((tensor < 0).any())]
        for name, tensor in tensors.items()
    }
    paired: set[tuple[str, Quantizer | None]] = set()
    if adam:
        for pair in pairs:
            paired |= {("exp_avg", pair.first), ("exp_avg_sq", pair.second)}
        wanted["exp_avg"] += [pair.first for pair in pairs if pair.first]
        wanted["exp_avg_sq"] += [pair.second for pair in pairs if pair.second]

    wanted = {name: list(dict.fromkeys(chosen)) for name, chosen in wanted.items()}
    frozen = _fitted(tensors, wanted)
    moments: dict[tuple[str, Quantizer | None], tuple[Moment, float]] = {}
    for name, tensor in tensors.items():
        about = {
            "step": states.step,
            "parameter": parameter,
            "shape": "x".join(map(str, tensor.shape)),
            "numel": tensor.numel(),
            "state": name,
        }
        mean_square = float(tensor.double().square().mean())
        moments[name, None] = (tensor, 32.0)
        work = [(frozen.get((name, q), q), (name, q) in paired) for q in wanted[name]]
        results = dispatch.each(partial(_measured, tensor), work, tensor)
        for q, (measured, moment) in zip(wanted[name], results, strict=True):
            bits = measured.pop("bits_per_element")
            if moment is not None:
                moments[name, q] = (moment, bits)
            yield {
                **about,
                "quantizer": q.spec,
                "first": None,
                "second": None,
                "bits_per_element": bits,
                "mean_square": mean_square,
                **measured,
            }
    if not (adam and pairs):
        return
    exact = Exact.of(tensors["exp_avg"], tensors["exp_avg_sq"], states.eps(parameter))
    collectors = _Collectors()

    def columns(pair: Pair) -> dict[str, float]:
        errors = collectors.errors
        errors.clear()
        errors.add(exact, moments["exp_avg", pair.first][0], moments["exp_avg_sq", pair.second][0])
        return errors.columns()

    for pair, found in zip(pairs, dispatch.each(columns, pairs, exact.update), strict=True):
        first_bits, second_bits = (
            moments["exp_avg", pair.first][1],
            moments["exp_avg_sq", pair.second][1],
        )
        yield {
            **about,
            "state": "update",
            "quantizer": pair.spec,
            "first": spec_of(pair.first),
            "second": spec_of(pair.second),
            "bits_per_element": (first_bits + second_bits) / 2,
            **found,
        }


def _fitted(
    tensors: dict[str, Tensor], wanted: dict[str, list[Quantizer]]
) -> dict[tuple[str, Quantizer], Quantizer]:
    """Quantizers with fitted maps, frozen; those of one normalizer share the work."""
    groups: dict[tuple[str, Normalizer], list[Quantizer]] = {}
    for name, chosen in wanted.items():
        for q in chosen:
            if isinstance(q.map, FittedMap):
                groups.setdefault((name, q.normalizer), []).append(q)

    def fit(group: tuple[str, Normalizer]) -> list[Quantizer]:
        return fit_each(groups[group], tensors[group[0]])

    return {
        (group[0], q): found
        for group, results in zip(
            groups, dispatch.each(fit, list(groups), *tensors.values()), strict=True
        )
        for q, found in zip(groups[group], results, strict=True)
    }


class _Collectors(threading.local):
    """A collector for each thread."""

    def __init__(self) -> None:
        self.errors = UpdateErrors()


def _measured(
    tensor: Tensor, given: tuple[Quantizer, bool]
) -> tuple[dict[str, float], Moment | None]:
    q, keep = given
    return q.measured(tensor, keep=keep)


def _folder(
    out: str | os.PathLike[str],
    states: CapturedStates,
    singles: list[Quantizer],
    pairs: list[Pair],
    min_quantized_size: int,
) -> Path:
    """Return the folder of the parts, after a check that it belongs to this sweep."""
    about = {
        "specs": [str(q) for q in singles] + [str(pair) for pair in pairs],
        "step": states.step,
        "parameters": {
            name: {s: list(states.shape(name, s)) for s in states.states(name)}
            for name in states.parameters()
        },
        "min_quantized_size": min_quantized_size,
        "states": states.fingerprint(),
    }
    text = json.dumps(about, sort_keys=True)
    folder = output_folder(out)
    identity = {"sweep": hashlib.sha256(text.encode()).hexdigest(), "specs": about["specs"]}
    marker = folder / "sweep.json"
    parts = output_folder(folder / "parts")
    if marker.exists():
        try:
            found = read_record(marker)
        except OutputError:
            raise OutputError(
                f"out={str(folder)!r} has a damaged sweep.json; delete the folder or give another "
                "one"
            ) from None
        if found.get("sweep") != identity["sweep"]:
            raise OutputError(
                f"out={str(folder)!r} holds a sweep of other specs or states; delete the folder or "
                "give another one"
            )
    else:
        for unknown in parts.glob("*.parquet"):  # their origin is unknown
            unknown.unlink()
        write_record(marker, identity)
    return parts
