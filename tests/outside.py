"""An object with a call in its pickle; readers of checkpoints must refuse it.

The call appends a note to `CALLS`, so tests can see a reader that ran it.
"""

from __future__ import annotations

CALLS: list[str] = []


def note(text: str) -> None:
    """Append a note of the call."""
    CALLS.append(text)


NAME = f"{note.__module__}.note"
"""The function's name in a pickle, as errors show it."""


class Outside:
    """Unpickles to a call of `note`."""

    def __reduce__(self) -> tuple[object, ...]:
        return note, ("unpickled",)
