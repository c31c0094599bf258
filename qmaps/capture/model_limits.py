"""Limits of models that are made from a config, so that making one ends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from qmaps.errors import BadValueError, shown

SIZES = (
    (re.compile(r"(layer|block|depth|stage)s?$"), 2000),
    (re.compile(r"(expert|head|codebook)s?$"), 10**4),
    (re.compile(r"labels$"), 2**20),
    (re.compile(r"position(s|_embeddings)$"), 2**24),
)
"""Entries of a config that count what Python makes one by one, and the largest allowed values."""

PARAMETERS = 200_000
"""Parameter tensors of a model, at most; DeepSeek-V3 has 46,000 with each expert by itself."""


def check_sizes(content: Any, file: str) -> None:
    """Raise a `BadValueError` if a config's counts are beyond `SIZES`, also in nested parts."""
    pending = [content]
    while pending:
        part = pending.pop()
        if isinstance(part, list):
            pending += part
        if not isinstance(part, dict):
            continue
        for name, value in part.items():
            pending.append(value)
            for pattern, most in SIZES:
                numbers = value if isinstance(value, list) else [value]
                large = any(
                    isinstance(number, (int, float)) and number > most for number in numbers
                )
                if large and pattern.search(name):
                    raise BadValueError(f"{name}={shown(value)} of {file} must be at most {most:,}")


@contextmanager
def limited(file: str) -> Iterator[None]:
    """Raise a `BadValueError` if modules made in the block get more than `PARAMETERS`."""
    count = 0

    def counted(module: nn.Module, name: str, parameter: object) -> None:  # noqa: ARG001
        nonlocal count
        count += 1
        if count > PARAMETERS:
            raise BadValueError(f"the model of {file} has more than {PARAMETERS:,} parameters")

    handle = register_module_parameter_registration_hook(counted)
    try:
        yield
    finally:
        handle.remove()
