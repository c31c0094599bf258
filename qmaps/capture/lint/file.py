"""Checks of a whole checkpoint."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.capture import saved
from qmaps.capture.collect import collect
from qmaps.capture.conversion.form import State
from qmaps.capture.conversion.formats import Format
from qmaps.capture.conversion.state_dict import recognized
from qmaps.capture.decoded import decoded
from qmaps.capture.lint.checks import checked
from qmaps.capture.lint.finding import ERROR, LEVELS, NOTE, WARNING, Finding
from qmaps.capture.load import load
from qmaps.capture.saved import Names
from qmaps.capture.snapshot import Lazy
from qmaps.errors import DAMAGE, CaptureError, QmapsError, one_line
from qmaps.optim.choice import Choices
from qmaps.storage.files import exists

Parameter = tuple[str, dict[str, State], dict[str, str], list[Finding]]
"""A parameter's name, its states, how each is stored, and what was found while reading them."""


def lint_file(
    path: str | os.PathLike[str], *, step: int | None = None, names: Names = None
) -> list[Finding]:
    """Find problems of the optimizer states in a checkpoint.

    What is found:

    - ``damaged``, ``scales`` (errors): codes and scales that do not fit their quantizer, by size,
      range or because a scale is not finite,
    - ``nonfinite``, ``negative``, ``shape`` (errors): NaN and infinity, negative second moments,
      moments of different shapes,
    - ``zeroed`` (an error in float states, a warning in quantized ones): v is 0 where m
      is not. The true value cannot be 0; saving in float16, for example,
      makes 0 of everything below 3e-8. The next update may be m / eps,
    - ``dead-rows`` (a warning): rows of a second moment that are all 0, with an all-zero first
      moment if there is one: no gradient has reached them,
    - ``quantizer`` (a warning): a state that is quantized otherwise than the options of its group
      say,
    - ``no-zero`` (a warning): states that can be negative and whose quantizer does not keep zeros,
      so that weights whose gradient is always 0 move,
    - ``float16`` (a note): the share of second moments that saving in float16 would make 0.

    Args:
        path: what `qmaps.capture.load` reads: a checkpoint of torch, qmaps, bitsandbytes or
            torchao, a folder of captures, or one captured file. It is read without executing code.
        step: which step of a folder; the last if left out.
        names: parameter names for a checkpoint without them: a list in the optimizer's order, or a
            model; as for `qmaps.capture.load`.

    Returns:
        The findings, errors first; empty if there are none.

    Raises:
        CaptureError: the file as a whole cannot be read, or holds no optimizer states.
        BadValueError: `step` or `names` does not fit.

    >>> import tempfile, torch
    >>> layer = torch.nn.Linear(3, 2)
    >>> optimizer = torch.optim.AdamW(layer.parameters())
    >>> layer(torch.full((1, 3), 1e-5)).sum().backward()
    >>> optimizer.step()
    >>> state = optimizer.state[layer.weight]
    >>> state["exp_avg_sq"] = state["exp_avg_sq"].half()      # 1e-13 becomes 0
    >>> with tempfile.NamedTemporaryFile(suffix=".pt") as file:
    ...     torch.save(optimizer.state_dict(), file.name)
    ...     [(found.level, found.check, found.share) for found in lint_file(file.name)]
    [('error', 'zeroed', 1.0)]
    """
    source = Path(path)
    if not exists(source):
        raise CaptureError(f"{str(source)!r} does not exist")
    if step is not None or source.is_dir() or source.suffix == ".safetensors":
        parameters = _captured(source, step, names)
    else:
        parameters = _saved(source, names)
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
        tensors = {state: states.tensor(name, state, check=False) for state in states.states(name)}
        yield name, dict(tensors), dict.fromkeys(tensors, "this capture"), []


def _saved(source: Path, names: Names) -> Iterator[Parameter]:
    """The states of a checkpoint; those that are damaged are left out."""
    state_dicts = saved.state_dicts_in(saved.load_safely(source), source)
    slots = saved.slots_of(state_dicts, source)
    labels = saved.labels_of(slots, names, source)
    tensors = [_tensors(state) for _, _, state in slots]
    labels, _ = saved.named_by(names, labels, state_dicts, tensors, source)
    if not any(state for _, _, state in slots):
        raise CaptureError(f"{str(source)!r} is an optimizer checkpoint that holds no states")
    formats = [
        recognized(state_dict)
        for state_dict in state_dicts
        for group in state_dict["param_groups"]
        for _ in group["params"]
    ]
    for label, (_, group, state), layout in zip(labels, slots, formats, strict=True):
        states, findings = _read(layout, state, label)
        kinds = {
            name: value.quantizer.spec
            if isinstance(value, QuantizedTensor)
            else str(getattr(state.get(name), "dtype", value.dtype)).removeprefix("torch.")
            for name, value in states.items()
        }
        yield label, states, kinds, [*findings, *_other_quantizers(label, states, group, state)]


def _tensors(state: Mapping[Any, Any]) -> dict[str, Lazy]:
    """The states of a parameter, from which its shape is known; none if they are damaged."""
    try:
        return collect(decoded(state)).tensors
    except DAMAGE:
        return {}


def _read(
    layout: Format, state: Mapping[Any, Any], label: str
) -> tuple[dict[str, State], list[Finding]]:
    """The states of a parameter, and those that cannot be read as findings."""
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
    """Return True for a number, a list, or a tensor of integers, which is no averaged state."""
    if type(value) in (Tensor, torch.nn.Parameter):
        return not value.is_floating_point() and value.dtype != torch.uint8
    return value is None or isinstance(value, (bool, int, float, str, list, tuple))


def _other_quantizers(
    label: str,
    states: Mapping[str, State],
    group: Mapping[str, Any],
    saved_states: Mapping[Any, Any],
) -> Iterator[Finding]:
    """States that are quantized otherwise than their group says."""
    quantized = {n: t for n, t in states.items() if isinstance(t, QuantizedTensor)}
    if not quantized or "state_quantizers" not in group:
        return
    choices = Choices("this checkpoint", list(states), (), ())
    for name, t in quantized.items():
        # A tensor without memory stands for the parameter.
        parameter = torch.empty(t.shape, dtype=torch.float32, device="meta")
        options = {"quantize": True, "overrides": {}, **group}
        options |= {"params": [parameter], "param_names": [label]}
        with ExitStack() as stack:
            try:
                stack.enter_context(choices.learning({0: saved_states}))
                choice = choices.of(name, parameter, options)
            except DAMAGE as error:
                yield replace(_damaged(label, name, error), check="quantizer", level=WARNING)
                continue
        wanted = "32 bits" if choice.quantizer is None else choice.quantizer.spec
        if wanted != t.quantizer.spec:
            message = f"it is {t.quantizer.spec}, but the options of its group say {wanted}"
            yield Finding(WARNING, "quantizer", label, name, 0, 0.0, message)


def _without_zero(states: Mapping[str, State]) -> Iterator[tuple[str, str]]:
    """States that can be negative and whose zeros decode to something else, and their specs."""
    for name, t in states.items():
        q = t.quantizer if isinstance(t, QuantizedTensor) else None
        if q is not None and q.map.signed and not (q.map.counted or q.keeps_zero):
            yield name, q.spec


def _below_float16(states: Mapping[str, State]) -> tuple[int, int]:
    """Number of second moments that float16 makes 0, and of all that are not 0."""
    v = states.get("exp_avg_sq")
    if not isinstance(v, Tensor):
        return 0, 0
    nonzero = v != 0
    return int((nonzero & (v.half() == 0)).sum()), int(nonzero.sum())
