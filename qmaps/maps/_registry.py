"""Import every module of a package, so that a new map or metric needs only its own file."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType


def modules(package: str, path: list[str]) -> list[ModuleType]:
    """Import and return the modules of `package` whose names do not start with ``_``, by name."""
    names = sorted(info.name for info in pkgutil.iter_modules(path))
    return [importlib.import_module(f"{package}.{name}") for name in names if name[0] != "_"]
