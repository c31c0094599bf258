"""Errors that qmaps raises on bad input.

Every message names the parameter, the value given and what is allowed, on one line of fewer than
600 characters. The command line turns any `QmapsError` into that line and exit code 2.
"""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Iterable
from typing import Any

__all__ = [
    "BackendError",
    "BackendWarning",
    "BadTypeError",
    "BadValueError",
    "CaptureError",
    "CommunicationError",
    "NonFiniteError",
    "OutputError",
    "QmapsError",
    "SpecError",
    "StateWarning",
]

LONGEST = 599
"""Characters of a message, at most."""


class QmapsError(Exception):
    """Base of every error that bad input causes."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(_with_short_quotation(message)))


class BadValueError(QmapsError, ValueError):
    """A parameter has the right type and a value that is not allowed."""


class BadTypeError(QmapsError, TypeError):
    """A parameter has a type that is not allowed."""


class SpecError(BadValueError):
    """A quantizer spec that does not parse, or parts that do not go together."""


class UnknownPartError(SpecError):
    """A spec with a map or a normalizer that is not installed."""

    @property
    def known(self) -> str:
        """The message without the list of those that are."""
        return str(self).partition("; allowed are")[0]


NOT_INSTALLED = "import the file or package that declares it; commands take a file as --load"
"""Advice on a map or a normalizer that a saved state names and that is not known."""


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


class BackendWarning(UserWarning):
    """An engine is missing, and what runs instead is slow."""


class StateWarning(UserWarning):
    """Quantized states lose so much that they may harm the training."""


QUOTED = re.compile(r"(?<!\w)'[^']*'(?!\w)")

SHORTEST = 60
"""Characters that a cut quotation keeps, at least."""

DAMAGE = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What taking apart an object of the wrong form may raise: parts of damaged files, say."""


def nearest(name: str, allowed: Iterable[str]) -> str:
    """A hint ``'; nearest match: X'`` for a misspelt `name`, or ``''`` if nothing is near."""
    by_folded = {candidate.lower(): candidate for candidate in allowed}
    match = difflib.get_close_matches(name.lower(), by_folded, n=1, cutoff=0.4)
    return f"; nearest match: {by_folded[match[0]]}" if match else ""


def printable(text: str) -> str:
    r"""A text without characters that a terminal obeys or cannot show; escapes stand for them.

    >>> print(printable("\x1b[31mred"))
    \x1b[31mred
    """
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def one_line(message: str, most: int = LONGEST) -> str:
    """A message on one line; its middle is left out where it is longer than `most` characters.

    What it begins with names the parameter, and what it ends with says what is allowed.
    """
    if "\n" in message or "\r" in message:
        message = " ".join(message.split())
    message = printable(message)
    if len(message) <= most:
        return message
    end = most * 2 // 5
    return f"{message[: most - end - 5]} ... {message[-end:]}"


def _with_short_quotation(message: str) -> str:
    """A message whose longest text in quotes, such as a path, is cut, so that its list is not."""
    excess = len(message) - LONGEST
    quoted = max(QUOTED.findall(message), key=len, default="")
    if excess <= 0 or len(quoted) < SHORTEST + excess:
        return message
    half = (len(quoted) - excess - 5) // 2
    return message.replace(quoted, f"{quoted[:half]} ... {quoted[-half:]}", 1)


def shown(value: object) -> str:
    """A value as messages show it: its ``repr`` on one line, cut short, whatever the value."""
    return one_line(_short.repr(value), 120)


def check_int(name: str, value: Any) -> None:
    """Raise unless the value of a parameter is an int; True and False are none."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadTypeError(f"{name}={shown(value)} must be an int")


def check_bool(name: str, value: Any) -> None:
    """Raise unless the value of a parameter is True or False."""
    if not isinstance(value, bool):
        raise BadTypeError(f"{name}={shown(value)} must be True or False")


def check_number(name: str, value: Any) -> None:
    """Raise unless the value of a parameter is an int or a float; True and False are none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadTypeError(f"{name}={shown(value)} must be a number")


class _Short(reprlib.Repr):
    """``repr`` that looks at the first few elements only, and never raises."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 120
        self.maxlevel = 4

    def repr_int(self, x: int, level: int) -> str:  # noqa: ARG002
        # Python refuses to write numbers of thousands of digits.
        bits = x.bit_length()
        return repr(x) if bits <= 200 else f"<int of {bits} bits>"

    def repr_Tensor(self, x: Any, level: int) -> str:  # noqa: N802
        try:
            if x.numel() == 1:
                return self.repr_instance(x, level)
            return f"<{str(x.dtype).removeprefix('torch.')} tensor of shape {tuple(x.shape)}>"
        except RuntimeError:  # nested tensors have no shape
            return f"<{type(x).__name__}>"

    repr_Parameter = repr_Tensor  # noqa: N815


_short = _Short()
