"""The examination: everything that a report says, looked at once."""

from __future__ import annotations

import math

from qmaps.engines.backends import backend, backends
from qmaps.errors import BadTypeError, BadValueError, shown
from qmaps.optim.doctor.findings import findings
from qmaps.optim.doctor.machine import processor, versions
from qmaps.optim.doctor.report import Report
from qmaps.optim.doctor.speed import bandwidth, costs, matrix, step_times


def doctor(parameters: int | None = None, *, seconds: float = 4.0) -> Report:
    """Examine this installation: what it has, what is wrong, and what a step costs here.

    Paste what it prints into the report of a problem. On the command line it is ``qmaps doctor``.

    Args:
        parameters: number of parameters of a model; the report then says how long its step takes
            and what its states take, as if all were in large tensors.
        seconds: how long to measure, about: half of it memory bandwidth, half steps of AdamW in
            32, 8 and 4 bits on the CPU. 0 measures nothing.

    Raises:
        BadValueError, BadTypeError: an argument is not allowed, or `QMAPS_BACKEND` is not.

    >>> report = doctor(7_000_000_000, seconds=0)
    >>> [(step.states, step.state_nbytes) for step in report.steps]
    [('32 bits', 56000000000), ('8 bits', 14218750000), ('4 bits', 7437500000)]
    """
    if parameters is not None and (isinstance(parameters, bool) or not isinstance(parameters, int)):
        raise BadTypeError(f"parameters={shown(parameters)} must be an int or None")
    if parameters is not None and not 1 <= parameters <= 2**53:
        raise BadValueError(f"parameters={shown(parameters)} must be an int from 1 to 2**53")
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise BadTypeError(f"seconds={shown(seconds)} must be a number")
    if not (math.isfinite(seconds) and seconds >= 0):
        raise BadValueError(f"seconds={shown(seconds)} must be at least 0 and finite")
    backend()  # raises if QMAPS_BACKEND is wrong, before anything is measured
    here, engines = processor(), backends()
    moved = bandwidth(seconds / 2) if seconds else {}
    shape = matrix() if seconds else None
    times = {} if shape is None else step_times(shape, seconds / 2)
    return Report(
        versions=versions(),
        backends=engines,
        processor=here,
        bandwidth=moved,
        steps=costs(times, moved.get("update"), parameters),
        matrix=shape,
        parameters=parameters,
        findings=findings(engines, here),
    )
