"""One problem of a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

ERROR, WARNING, NOTE = "error", "warning", "note"
LEVELS = (ERROR, WARNING, NOTE)
"""The worst first."""


@dataclass(frozen=True)
class Finding:
    """A problem of one state.

    Attributes:
        level: ``error``: training from this checkpoint differs from the training that wrote it, or
            fails; ``warning``: it may; ``note``: something else would lose values.
        check: ``damaged``, ``nonfinite``, ``negative``, ``shape``, ``scales``, ``zeroed``,
            ``dead-rows``, ``quantizer``, ``no-zero`` or ``float16``.
        parameter: name of the parameter; empty if all are meant.
        state: name of the state; empty if all are meant.
        count: number of elements, rows or, of ``no-zero``, parameters concerned; 0 if they are not
            counted.
        share: `count` as a fraction of the elements or rows that were looked at; 0 if not counted.
        message: one line that says what is wrong.
    """

    level: str
    check: str
    parameter: str
    state: str
    count: int
    share: float
    message: str
