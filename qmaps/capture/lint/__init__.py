"""Problems of saved optimizer states: lost or impossible values, and what rounding stops."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.capture.collect import collect, decoded, plain_options
from qmaps.capture.conversion import recognized
from qmaps.capture.conversion.formats import Format
from qmaps.capture.conversion.formats.bitsandbytes_ import WRAPPED
from qmaps.capture.conversion.optimizer_state import State
from qmaps.capture.lint.base import ERROR, LEVELS, WARNING, Entry, Finding, Part
from qmaps.capture.lint.counters import check_counters, check_groups, check_missing
from qmaps.capture.lint.rounding import check_rounding
from qmaps.capture.lint.values import check_float16, check_values
from qmaps.capture.load import (
    checkpoint_at,
    existing,
    is_captured,
    load,
    load_safely,
    slots_of,
    state_dicts_in,
)
from qmaps.capture.naming import FILES, SHAPED_AS_PARAMETER, Names, names_of
from qmaps.capture.parameters import Slot
from qmaps.capture.readers import reader_of
from qmaps.capture.snapshot import Lazy, header_of
from qmaps.engines.step import COUNTS
from qmaps.errors import (
    DAMAGE,
    NOT_INSTALLED,
    CaptureError,
    QmapsError,
    UnknownPartError,
    one_line,
)
from qmaps.optim.other_libraries import Count, count_in

__all__ = ["Finding", "lint_file"]


def lint_file(
    path: str | os.PathLike[str], *, step: int | None = None, names: Names = None
) -> list[Finding]:
    """Find problems of the optimizer states in a checkpoint.

    Checks (`docs/lint.md` has an example):

    - ``damaged``, ``scales`` (errors): codes and scales of a wrong size or range, and scales with
      NaN or infinity,
    - ``nonfinite``, ``negative``, ``shape`` (errors): NaN and infinity, negative second moments,
      moments of different shapes,
    - ``step`` (an error): step counters that are no number of steps, or missing; those in 16 bits
      stop (a warning if bias corrections have ended there),
    - ``zeroed`` (an error in float states, a warning in quantized ones): v is 0 where m
      is not, and m / eps, the next update, is more than a hundredth of a learning rate,
    - ``not-installed`` (a warning): states under a map or a normalizer of the user's own that was
      not imported, so that their values are unknown; other checks leave them out,
    - ``stalled``: long averages that do not decay: in bfloat16 or float16 (a warning), and in codes
      that are rounded to the nearest (a note),
    - ``to-zero`` (a warning): second moments under a coarse map with 0, such as ``linear0``,
    - ``weight-decay`` (a warning): weights in bfloat16 that weight decay cannot change,
    - ``dead-rows`` (a warning): rows of a second moment, and of the first, without a gradient,
    - ``no-zero`` (a warning): signed states under a quantizer without zero: weights whose gradient
      is always 0 would move,
    - ``float16`` (a note): the share of second moments below the range of float16.

    Args:
        path: as for `qmaps.capture.load`: a checkpoint of torch, qmaps, bitsandbytes or
            torchao, a folder of captures, or one captured file. It is read without executing code.
        step: the step in a folder; the last if left out.
        names: parameter names for a checkpoint without them: a list in the optimizer's order, or a
            model; as for `qmaps.capture.load`. A model, given or beside the checkpoint, also tells
            the dtypes of weights.

    Returns:
        The findings, errors first; empty if there are none.

    Raises:
        CaptureError: the file as a whole cannot be read, or holds no optimizer states.
        BadValueError: `step` or `names` does not fit.
    """
    source = existing(Path(path))
    findings: list[Finding] = []
    parts: list[Part] = []
    if step is not None or source.is_dir() or is_captured(source) or reader_of(source):
        optimizers = iter([Saved((), _captured(source, step, names))])
    else:
        optimizers = _saved(checkpoint_at(source), names)
    for groups, entries in optimizers:
        findings += check_groups(groups)
        read = []
        for entry in entries:
            findings += entry.findings
            parts += entry.parts
            findings += check_values(entry)
            findings += check_counters(entry)
            parts += check_rounding(entry)
            parts += check_float16(entry)
            known = "step" in entry.counters or count_in(entry.options) is not None
            read.append(Count(entry.label, entry.states.keys(), known))
        findings += check_missing(read, anywhere=bool(groups))
    findings += _joined(parts)
    return sorted(findings, key=lambda finding: LEVELS.index(finding.level))


class Saved(NamedTuple):
    """One optimizer of a file: its groups, and its parameters to read one after the other.

    Groups are empty for other files, where `load` has looked for numbers of steps.
    """

    groups: Sequence[Mapping[str, Any]]
    entries: Iterator[Entry]


def _joined(parts: Iterable[Part]) -> Iterator[Finding]:
    """A finding for all parts that agree in everything but their numbers."""
    by_key: dict[tuple[str, ...], list[Part]] = {}
    for part in parts:
        by_key.setdefault(part.key, []).append(part)
    for (level, check, state, message), same in by_key.items():
        count, total = sum(part.count for part in same), sum(part.total for part in same)
        share = count / total if total else 0.0
        if count:
            shown = message.replace("{share}", f"{share:.2%}")
            yield Finding(level, check, "", state, count, share, shown)


def _captured(source: Path, step: int | None, names: Names) -> Iterator[Entry]:
    """The states of a capture."""
    states = load(source, step=step, names=names)
    dtypes: dict[str, dict[str, torch.dtype]] = {}
    codes: dict[str, dict[str, Callable[[], QuantizedTensor | None]]] = {}
    for name, state, lazy in states.lazies():
        if lazy.codes is not None:
            codes.setdefault(name, {})[state] = lazy.codes
        if lazy.dtype.is_floating_point and not lazy.quantized:
            dtypes.setdefault(name, {})[state] = lazy.dtype
    for name in states.parameters():
        tensors: dict[str, State] = {}
        kinds, parts = {}, []
        for state in states.values(name):
            try:
                coded = codes[name][state]() if state in codes.get(name, {}) else None
                value = states.tensor(name, state, check=False) if coded is None else coded
            except (CaptureError, UnknownPartError) as error:
                cause = error if isinstance(error, UnknownPartError) else error.__cause__
                if not isinstance(cause, UnknownPartError):
                    raise
                parts.append(_not_installed(state, cause))
                continue
            tensors[state] = value
            kinds[state] = "this capture" if coded is None else coded.quantizer.spec
        scalars = states.scalars(name)
        counters = {count: scalars[count] for count in COUNTS if count in scalars}
        options = states.hyperparameters(name)
        yield Entry(name, tensors, dtypes.get(name, {}), kinds, options, counters, parts=parts)


def _saved(source: Path, names: Names) -> Iterator[Saved]:
    """The states of each optimizer in a checkpoint; damaged ones are left out."""
    loaded = load_safely(source)
    state_dicts = state_dicts_in(loaded, source)
    slots = slots_of(state_dicts, source)
    tensors = [_tensors(slot.state) for slot in slots]
    several = len(state_dicts) > 1
    labels, _ = names_of(slots, names, tensors, source, several=several, loaded=loaded)
    if not any(slot.state for slot in slots):
        raise CaptureError(f"{str(source)!r} is an optimizer checkpoint that holds no states")
    weights = _weights(names, source)
    places = iter(zip(labels, slots, strict=True))
    for state_dict in state_dicts:
        groups = state_dict["param_groups"]
        some = list(islice(places, sum(len(group["params"]) for group in groups)))
        entry = partial(_entry, recognized(state_dict))
        yield Saved(groups, (entry(label, slot, weights.get(label)) for label, slot in some))


def _tensors(state: Mapping[Any, Any]) -> dict[str, Lazy]:
    """The states of a parameter, for its shape; none if they are damaged."""
    try:
        return collect(decoded(state)).tensors
    except DAMAGE:
        return {}


def _weights(names: Names, source: Path) -> dict[str, torch.dtype]:
    """The dtypes of a model's parameters, given or in the safetensors file beside a checkpoint."""
    if isinstance(names, nn.Module):
        return {name: param.dtype for name, param in names.named_parameters()}
    file = Path(names) if isinstance(names, (str, os.PathLike)) else source.parent / FILES[0]
    if file.suffix != ".safetensors" or not file.is_file():
        return {}
    try:
        return {name: parts.dtype for name, parts in header_of(file)[1].items()}
    except DAMAGE:  # names_of says what is wrong with it, where it matters
        return {}


def _entry(layout: Format, label: str, slot: Slot, weights: torch.dtype | None) -> Entry:
    state = dict(_flat(slot.state))
    counters = {name: state.pop(name) for name in COUNTS if state.get(name) is not None}
    parts: list[Part] = []
    states, findings = _read(layout, state, label, parts)
    dtypes = {
        name: value.dtype
        for name, value in state.items()
        if name in states and isinstance(value, Tensor) and value.is_floating_point()
    }
    kinds = {
        name: value.quantizer.spec
        if isinstance(value, QuantizedTensor)
        else str(dtypes.get(name, value.dtype)).removeprefix("torch.")
        for name, value in states.items()
    }
    options = plain_options(slot.group)
    return Entry(label, states, dtypes, kinds, options, counters, weights, findings, parts)


def _flat(state: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Name and value of each state; members of dicts and lists are named as `collect` does."""
    for key, value in state.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and key != WRAPPED and not PARTS & value.keys():
            yield from _flat(value, f"{name}.")
        elif isinstance(value, (list, tuple)):
            yield from _flat(dict(enumerate(value)), f"{name}.")
        else:
            yield name, value


PARTS = frozenset({"packed", "codes", "scales", "spec"})
"""Entries of a quantized state of qmaps; a damaged one has only some of them."""


def _read(
    layout: Format, state: Mapping[str, Any], label: str, parts: list[Part]
) -> tuple[dict[str, State], list[Finding]]:
    """The states of a parameter, and findings for the unreadable ones.

    States whose quantizer is not installed are added to `parts`.
    """
    values = {name: value for name, value in state.items() if not _is_other(name, value)}
    try:
        return _named(layout, layout.states(values, label)), []
    except DAMAGE as error:
        first_error = error
    # One by one, so that a damaged state does not hide the others.
    states: dict[str, State] = {}
    findings: list[Finding] = []
    for name, value in values.items():
        try:
            states |= layout.states({name: value}, label)
        except UnknownPartError as error:
            parts.append(_not_installed(name, error))
        except DAMAGE as error:
            findings.append(_damaged(label, name, error))
    if not findings and not parts:
        findings = [_damaged(label, "", first_error)]
    return states, findings


def _not_installed(state: str, error: UnknownPartError) -> Part:
    """A state under a spec that only the user's own file can explain."""
    return Part(WARNING, "not-installed", state, f"{error.known}; {NOT_INSTALLED}", 1)


def _named(layout: Format, states: dict[str, State]) -> dict[str, State]:
    """The states under torch's names, or the library's own where they do not tell the optimizer."""
    try:
        return layout.named(states, None)
    except CaptureError:
        return states


def _damaged(label: str, state: str, error: Exception) -> Finding:
    reason = str(error) if isinstance(error, QmapsError) else f"{type(error).__name__}: {error}"
    return Finding(ERROR, "damaged", label, state, 0, 0.0, one_line(reason))


def _is_other(name: str, value: Any) -> bool:
    """Return True for values without averages: a number, or integers, such as another's codes."""
    if type(value) in (Tensor, torch.nn.Parameter):
        return not value.is_floating_point() and name not in SHAPED_AS_PARAMETER
    return value is None or isinstance(value, (bool, int, float, str))
