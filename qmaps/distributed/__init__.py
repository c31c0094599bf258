"""Several processes: low-precision gradient exchange, rows of sharded states."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qmaps.distributed import comm

__all__ = ["comm"]


def __getattr__(name: str) -> ModuleType:  # on first use
    if name in __all__:
        return importlib.import_module(f"qmaps.distributed.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
