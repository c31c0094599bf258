"""Numbers that callers may give as text: a share, and bytes."""

from __future__ import annotations

import re

from qmaps.errors import BadTypeError, BadValueError, shown

UNITS = {"MB": 10**6, "MiB": 2**20, "GB": 10**9, "GiB": 2**30}


def share_of(sample: float | str) -> float:
    """The share of each tensor that is measured.

    Args:
        sample: a number, or a text such as ``1%`` or ``0.01``. A text above 0.5 needs a percent
            sign, for ``1`` could mean all or a hundredth.

    Raises:
        BadValueError: it is not above 0 and at most 1, or a text that is no share.
        BadTypeError: it is neither a number nor a text.

    >>> share_of("1%"), share_of("0.01"), share_of(1)
    (0.01, 0.01, 1.0)
    """
    if isinstance(sample, bool) or not isinstance(sample, (int, float, str)):
        raise BadTypeError(f"sample={shown(sample)} must be a number, or a text such as '1%'")
    if not isinstance(sample, str):
        if not 0 < sample <= 1:
            raise BadValueError(f"sample={sample:g} must be above 0 and at most 1")
        return float(sample)
    match = re.fullmatch(r"([0-9]*\.?[0-9]+) ?(%?)", sample.strip(), re.ASCII)
    share = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if match is None or not 0 < share <= (1 if match[2] else 0.5):
        raise BadValueError(
            f"sample={sample!r} must be a share above 0 and at most 100%, such as 1% or 0.01; "
            "above 0.5 with a percent sign"
        )
    return share


def bytes_of(memory: int | str | None) -> int | None:
    """The bytes that a worker may use, or None for no limit.

    Args:
        memory: a number, None, or a text such as ``2GiB``, ``500MB``, or ``none``.

    Raises:
        BadValueError: it is not above 0, or a text that names no bytes.
        BadTypeError: it is none of these.

    >>> bytes_of("2GiB"), bytes_of("none")
    (2147483648, None)
    """
    if memory is None or memory == "none":
        return None
    if isinstance(memory, bool) or not isinstance(memory, (int, float, str)):
        raise BadTypeError(f"memory={shown(memory)} must be bytes, or a text such as '2GiB'")
    if not isinstance(memory, str):
        if not memory > 0:
            raise BadValueError(f"memory={memory} must be above 0, or None for no limit")
        return int(memory)
    match = re.fullmatch(r"([0-9]*\.?[0-9]+) ?([MG]i?B)", memory, re.ASCII)
    if match is None:
        raise BadValueError(
            f"memory={memory!r} must be a number with MB, MiB, GB or GiB, as in 2GiB, or none"
        )
    return int(float(match[1]) * UNITS[match[2]])
