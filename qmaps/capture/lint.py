"""Problems of saved optimizer states: lost or impossible values."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qmaps.algebra.pair import zero_points
from qmaps.algebra.quantizer import QuantizedTensor, values_of
from qmaps.capture.collect import collect, decoded
from qmaps.capture.conversion import recognized
from qmaps.capture.conversion.formats import Format
from qmaps.capture.conversion.optimizer_state import State, flaws
from qmaps.capture.load import checkpoint_at, existing, load, load_safely, slots_of, state_dicts_in
from qmaps.capture.naming import Names, names_of
from qmaps.capture.snapshot import Lazy
from qmaps.errors import DAMAGE, CaptureError, QmapsError, one_line

ERROR, WARNING, NOTE = "error", "warning", "note"
LEVELS = (ERROR, WARNING, NOTE)
"""The worst first."""


@dataclass(frozen=True)
class Finding:
    """A problem of one state.

    Attributes:
        level: ``error``: training from this checkpoint differs from the original training, or
            fails; ``warning``: it may; ``note``: something else would lose values.
        check: ``damaged``, ``nonfinite``, ``negative``, ``shape``, ``scales``, ``zeroed``,
            ``dead-rows``, ``no-zero`` or ``float16``.
        parameter: name of the parameter; empty if all are meant.
        state: name of the state; empty if all are meant.
        count: number of elements, rows or, of ``no-zero``, parameters concerned; 0 if they are not
            counted.
        share: `count` as a fraction of the checked elements or rows; 0 if not counted.
        message: description of the problem in one line.
    """

    level: str
    check: str
    parameter: str
    state: str
    count: int
    share: float
    message: str


SECOND = ("exp_avg_sq", "max_exp_avg_sq", "square_avg")
"""Averages of squares, which cannot be negative."""
SHOWN = 5
"""Rows that a message names."""


def checked(
    parameter: str, states: Mapping[str, State], kinds: Mapping[str, str]
) -> Iterator[Finding]:
    """Yield the problems of a parameter's states.

    `kinds` says how each is stored, for messages: a dtype such as ``float16``, or a spec.
    """
    values: dict[str, Tensor] = {}
    for name, state in states.items():
        if isinstance(state, QuantizedTensor):
            scales = [part for part in state.scales if part.is_floating_point()]
            if bad := sum(int((~part.isfinite()).sum()) for part in scales):
                count = sum(part.numel() for part in state.scales)
                message = f"{bad} of {count} scales of {state.quantizer.spec} are NaN or infinite"
                yield Finding(ERROR, "scales", parameter, name, bad, bad / count, message)
        x = values[name] = values_of(state)
        for kind, count, first in flaws(x, signed=name not in SECOND):
            share, check = count / x.numel(), "negative" if kind == "negative" else "nonfinite"
            message = f"{share:.2%} of the elements are {kind}, the first at flat index {first}"
            yield Finding(ERROR, check, parameter, name, count, share, message)
    m, v = values.get("exp_avg"), values.get("exp_avg_sq")
    if m is not None and v is not None:
        if m.shape != v.shape:
            message = f"exp_avg has the shape {tuple(m.shape)} and exp_avg_sq {tuple(v.shape)}"
            yield Finding(ERROR, "shape", parameter, "exp_avg_sq", 0, 0.0, message)
            m = None
        else:
            coded = isinstance(states["exp_avg_sq"], QuantizedTensor)
            yield from _zeroed(parameter, m, v, kinds["exp_avg_sq"], coded=coded)
    for name in SECOND:
        if name in values:
            yield from _dead_rows(parameter, name, values[name], m)


def _zeroed(parameter: str, m: Tensor, v: Tensor, kind: str, *, coded: bool) -> Iterator[Finding]:
    """Report second moments of 0 under other first moments; their true value cannot be 0."""
    if count := int(zero_points(m, v, torch.ones_like(v)).sum()):
        share = count / max(1, int((m != 0).sum()))
        why = "a map without 0, such as DE-0, avoids it" if coded else "its true values were lost"
        message = f"0 in {kind} under {share:.2%} of the non-zero exp_avg; {why}"
        level = WARNING if coded else ERROR
        yield Finding(level, "zeroed", parameter, "exp_avg_sq", count, share, message)


def _dead_rows(parameter: str, name: str, v: Tensor, m: Tensor | None) -> Iterator[Finding]:
    """Rows of zeros: no gradient ever reached them."""
    if v.dim() < 2 or v.numel() == 0:
        return
    dead = (v == 0).reshape(len(v), -1).all(dim=1)
    if m is not None:
        dead &= (m == 0).reshape(len(m), -1).all(dim=1)
    if count := int(dead.sum()):
        rows = ", ".join(map(str, dead.nonzero()[:SHOWN, 0].tolist()))
        more = ", ..." if count > SHOWN else ""
        message = f"{count} of {len(v)} rows are all 0, so they had no gradient: {rows}{more}"
        yield Finding(WARNING, "dead-rows", parameter, name, count, count / len(v), message)


Parameter = tuple[str, dict[str, State], dict[str, str], list[Finding]]
"""A parameter's name, its states, how each is stored, and what was found while reading them."""


def lint_file(
    path: str | os.PathLike[str], *, step: int | None = None, names: Names = None
) -> list[Finding]:
    """Find problems of the optimizer states in a checkpoint.

    Checks (`docs/lint.md` has an example):

    - ``damaged``, ``scales`` (errors): codes and scales of a wrong size or range, and scales with
      NaN or infinity,
    - ``nonfinite``, ``negative``, ``shape`` (errors): NaN and infinity, negative second moments,
      moments of different shapes,
    - ``zeroed`` (an error in float states, a warning in quantized ones): v is 0 where m
      is not. The true value cannot be 0, and the next update may be m / eps,
    - ``dead-rows`` (a warning): rows of a second moment, and of the first, without a gradient,
    - ``no-zero`` (a warning): signed states under a quantizer without zero: weights whose gradient
      is always 0 would move,
    - ``float16`` (a note): the share of second moments below the range of float16.

    Args:
        path: as for `qmaps.capture.load`: a checkpoint of torch, qmaps, bitsandbytes or
            torchao, a folder of captures, or one captured file. It is read without executing code.
        step: the step in a folder; the last if left out.
        names: parameter names for a checkpoint without them: a list in the optimizer's order, or a
            model; as for `qmaps.capture.load`.

    Returns:
        The findings, errors first; empty if there are none.

    Raises:
        CaptureError: the file as a whole cannot be read, or holds no optimizer states.
        BadValueError: `step` or `names` does not fit.
    """
    source = existing(Path(path))
    if step is not None or source.is_dir() or source.suffix == ".safetensors":
        parameters = _captured(source, step, names)
    else:
        parameters = _saved(checkpoint_at(source), names)
    findings: list[Finding] = []
    lost = total = 0
    without: Counter[tuple[str, str]] = Counter()
    for name, states, kinds, problems in parameters:
        findings += problems
        findings += checked(name, states, kinds)
        counts = _below_float16(states)
        lost, total = lost + counts[0], total + counts[1]
        without.update(_without_zero(states))
    for (state, spec), count in without.items():
        message = f"{spec} does not keep zeros: weights whose gradient is always 0 move"
        findings.append(Finding(WARNING, "no-zero", "", state, count, 0.0, message))
    if lost:
        message = f"saved in float16, {lost / total:.2%} of the non-zero exp_avg_sq would become 0"
        findings.append(Finding(NOTE, "float16", "", "exp_avg_sq", lost, lost / total, message))
    return sorted(findings, key=lambda finding: LEVELS.index(finding.level))


def _captured(source: Path, step: int | None, names: Names) -> Iterator[Parameter]:
    """The states of a capture."""
    states = load(source, step=step, names=names)
    for name in states.parameters():
        tensors = {state: states.tensor(name, state, check=False) for state in states.values(name)}
        yield name, dict(tensors), dict.fromkeys(tensors, "this capture"), []


def _saved(source: Path, names: Names) -> Iterator[Parameter]:
    """The states of a checkpoint; damaged ones are left out."""
    state_dicts = state_dicts_in(load_safely(source), source)
    slots = slots_of(state_dicts, source)
    tensors = [_tensors(slot.state) for slot in slots]
    labels, _ = names_of(slots, names, tensors, source, several=len(state_dicts) > 1)
    if not any(slot.state for slot in slots):
        raise CaptureError(f"{str(source)!r} is an optimizer checkpoint that holds no states")
    formats = [
        recognized(state_dict)
        for state_dict in state_dicts
        for group in state_dict["param_groups"]
        for _ in group["params"]
    ]
    for label, slot, layout in zip(labels, slots, formats, strict=True):
        states, findings = _read(layout, slot.state, label)
        kinds = {
            name: value.quantizer.spec
            if isinstance(value, QuantizedTensor)
            else str(getattr(slot.state.get(name), "dtype", value.dtype)).removeprefix("torch.")
            for name, value in states.items()
        }
        yield label, states, kinds, findings


def _tensors(state: Mapping[Any, Any]) -> dict[str, Lazy]:
    """The states of a parameter, for its shape; none if they are damaged."""
    try:
        return collect(decoded(state)).tensors
    except DAMAGE:
        return {}


def _read(
    layout: Format, state: Mapping[Any, Any], label: str
) -> tuple[dict[str, State], list[Finding]]:
    """The states of a parameter, and findings for the unreadable ones."""
    values = {name: value for name, value in state.items() if not _is_other(value)}
    try:
        return layout.named(layout.states(values, label), None), []
    except DAMAGE as error:
        first_error = error
    # One by one, so that a damaged state does not hide the others.
    states: dict[str, State] = {}
    findings: list[Finding] = []
    for name, value in values.items():
        try:
            states |= layout.states({name: value}, label)
        except DAMAGE as error:
            findings.append(_damaged(label, str(name), error))
    return states, findings or [_damaged(label, "", first_error)]


def _damaged(label: str, state: str, error: Exception) -> Finding:
    reason = str(error) if isinstance(error, QmapsError) else f"{type(error).__name__}: {error}"
    return Finding(ERROR, "damaged", label, state, 0, 0.0, one_line(reason))


def _is_other(value: Any) -> bool:
    """Return True for values without averages: a number, a list, or a tensor of integers."""
    if type(value) in (Tensor, torch.nn.Parameter):
        return not value.is_floating_point() and value.dtype != torch.uint8
    return value is None or isinstance(value, (bool, int, float, str, list, tuple))


def _without_zero(states: Mapping[str, State]) -> Iterator[tuple[str, str]]:
    """Yield name and spec of signed states with zeros that decode to another value."""
    for name, t in states.items():
        q = t.quantizer if isinstance(t, QuantizedTensor) else None
        if q is not None and q.map.signed and not (q.map.counted or q.keeps_zero):
            yield name, q.spec


def _below_float16(states: Mapping[str, State]) -> tuple[int, int]:
    """Number of non-zero second moments below the range of float16, and of all."""
    v = states.get("exp_avg_sq")
    if not isinstance(v, Tensor):
        return 0, 0
    nonzero = v != 0
    return int((nonzero & (v.half() == 0)).sum()), int(nonzero.sum())
