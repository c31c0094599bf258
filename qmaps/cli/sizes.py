"""Numbers of parameters as people write them, such as ``7B``."""

from __future__ import annotations

import re

from qmaps.errors import BadValueError, shown

UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
"""Letters behind a number of parameters."""
COLUMNS = 4096
"""Columns of the matrix that stands for a model of which only the size is known."""
DTYPE = "bfloat16"
"""Dtype of the parameters of such a model."""
MOST = 2**53
"""Most parameters of a model."""


def numel_of(text: str) -> int | None:
    """The number of parameters that a text such as ``7B`` says; None for other texts.

    Raises:
        BadValueError: the number is above `MOST`.
    """
    size = re.fullmatch(r"(\d{1,16}(?:\.\d{1,9})?)([KMBT]?)", text.upper().replace("_", ""))
    if size is None:
        return None
    count = round(float(size[1]) * UNITS[size[2]])
    if count > MOST:
        raise BadValueError(f"model={shown(text)} must be a size of at most 2**53 parameters")
    return count
