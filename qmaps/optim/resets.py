"""Resets of states: every few steps they begin anew, and with them the bias corrections.

A state in few bits changes ever more slowly: once its average has settled, most of its updates are
rounded back to the code where it was. Just after the start of an average this happens least. So a
state follows its gradients again after a reset.

Source: Topollai and Choromanska (2026), "Understanding quantization of optimizer states in LLM
pre-training: dynamics of state staleness and effectiveness of state resets", arXiv 2603.16731.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from qmaps.cuda.engine import recording
from qmaps.engines.step import COUNTER, RESET
from qmaps.errors import BackendError, BadValueError
from qmaps.optim.records import Entry, ParameterRecord, Parameters
from qmaps.optim.rule import check_int


def every(group: dict[str, Any]) -> int:
    """The steps between resets of a group's states; 0 for none, as in pickles from before 0.2."""
    return group.get("reset_every") or 0


def begin_count(record: ParameterRecord, storage: dict[str, Any]) -> None:
    """Add the step of the last reset to a parameter's states, where `reset_every` is set.

    It is there from the first step on: `torch.distributed.checkpoint` loads what an optimizer has
    after one step, and nothing else.
    """
    if every(record.group) and record.rule._resets:
        storage.setdefault(RESET, torch.zeros((), dtype=COUNTER))


def check_count(
    record: ParameterRecord, state: Mapping[str, Any], saved_group: Mapping[str, Any]
) -> None:
    """Raise if a saved state has taken more steps than `reset_every` and has no last reset."""
    steps = every(record.group) if "reset_every" in saved_group else 0
    if steps and record.rule._resets and RESET not in state and state.get("step", 0) > steps:
        raise BadValueError(
            f"state_dict has reset_every={steps} and step={int(state['step'])}, but no {RESET} for "
            f"{record.label}; with torch.distributed.checkpoint, make the optimizer with the "
            "reset_every of the checkpoint before dcp.load"
        )


def check_reset_every(group: dict[str, Any]) -> None:
    """Raise unless `reset_every` is None or an int of at least 2; with 1 nothing is averaged."""
    check_int("reset_every", group.get("reset_every"), 2, or_none=True)


def reset(parameters: Parameters, entries: Sequence[Entry]) -> None:
    """Before a step, remove the states that begin anew in it.

    They are the states of parameters with `reset_every` steps or more since their last reset; its
    step is stored as ``reset_step``. The step counter and a master copy stay.
    Engines make missing states as before the first step.

    Raises:
        BadValueError: `reset_every` of a group is not allowed.
        BackendError: a CUDA graph records the step.
    """
    for group in parameters.groups:
        check_reset_every(group)
    if not parameters.rule._resets or not any(map(every, parameters.groups)):
        return
    if recording():
        raise BackendError(
            "step() with reset_every cannot be recorded in a CUDA graph: the host reads the step "
            "counters; step outside the graph, or pass reset_every=None"
        )
    states = [(parameters.state.get(param), every(group)) for _, param, group, _ in entries]
    started = [(state, steps) for state, steps in states if steps and state and "step" in state]
    counts = _numbers([state["step"] for state, _ in started])
    for (state, steps), count in zip(started, counts, strict=True):
        if count - int(state.get(RESET, 0)) >= steps:
            for name in (*parameters.rule.states, *parameters.rule._numbers):
                state.pop(name, None)
            state[RESET] = torch.tensor(count, dtype=COUNTER)


def _numbers(counters: Sequence[Tensor]) -> list[int]:
    """The values of step counters; the host waits for the device of the first once."""
    if not counters:
        return []
    device = counters[0].device
    return list(map(int, torch.stack([c.to(device, COUNTER) for c in counters]).tolist()))
