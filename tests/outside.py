"""An object whose pickle calls a function that no reader of checkpoints allows; it only takes note.

A reader that ran what a file names would leave a note in `CALLS`.
"""

from __future__ import annotations

CALLS: list[str] = []


def note(text: str) -> None:
    """Take note of the call."""
    CALLS.append(text)


NAME = f"{note.__module__}.note"
"""The function's name in a pickle, as errors show it."""


class Outside:
    """Unpickled by a call of `note`."""

    def __reduce__(self) -> tuple[object, ...]:
        return note, ("unpickled",)
