"""Errors that qmaps raises on bad input.

Every message names the parameter, the value given and what is allowed, on one line.
The command line turns any `QmapsError` into that line and exit code 2.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class QmapsError(Exception):
    """Base of every error that bad input causes."""


class BadValueError(QmapsError, ValueError):
    """A parameter has the right type and a value that is not allowed."""


class BadTypeError(QmapsError, TypeError):
    """A parameter has a type that is not allowed."""


class SpecError(BadValueError):
    """A quantizer spec that does not parse, or parts that do not go together."""


class NonFiniteError(BadValueError):
    """NaN or infinity where only finite numbers can be represented."""


class CaptureError(BadValueError):
    """A capture or an optimizer checkpoint that cannot be read."""


class OutputError(BadValueError):
    """A folder or file that cannot be written, or that holds another run."""


class BackendError(BadValueError):
    """An engine that cannot do here what was asked of it."""


class CommunicationError(QmapsError, RuntimeError):
    """Another process has ended, failed, or is late."""


def nearest(name: str, allowed: Iterable[str]) -> str:
    """A hint ``'; nearest match: X'`` for a misspelt `name`, or ``''`` if nothing is near."""
    by_folded = {candidate.lower(): candidate for candidate in allowed}
    match = difflib.get_close_matches(name.lower(), by_folded, n=1, cutoff=0.4)
    return f"; nearest match: {by_folded[match[0]]}" if match else ""
