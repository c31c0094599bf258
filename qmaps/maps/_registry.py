"""Import what files and other packages declare, so that adding a map touches only its own file."""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoints
from types import ModuleType
from typing import Any

from qmaps.errors import BadValueError, shown


def modules(package: str, path: list[str]) -> list[ModuleType]:
    """Import and return the modules of `package` whose names do not start with ``_``, by name."""
    names = sorted(info.name for info in pkgutil.iter_modules(path))
    return [importlib.import_module(f"{package}.{name}") for name in names if name[0] != "_"]


def load_entry_points(points: EntryPoints) -> Iterator[tuple[str, Any]]:
    """Load what other packages bring; see `qmaps.algebra.plugins`.

    Args:
        points: entry points of one group.

    Yields:
        The name and the object of each entry point; one that raises or exits is ignored with a
        warning.
    """
    for point in points:
        try:
            yield point.name, point.load()
        except (Exception, SystemExit) as error:  # a broken plugin must not break qmaps
            ignored(point.group, point.name, f"{type(error).__name__}: {error}")


def refuse_built_in(name: str, made: Any, registry: Mapping[str, Any], kind: str) -> None:
    """Raise if `name` is that of a built-in part, in any letter case.

    Args:
        name: the name of a new part.
        made: the new part, a class or a function.
        registry: the parts that there are, by name.
        kind: for the error message, such as ``map``.

    Raises:
        BadValueError: a part of qmaps has that name.
    """
    for label, part in registry.items():
        module = part.__module__
        built_in = module.startswith("qmaps.") and module != getattr(made, "__module__", "")
        if built_in and label.lower() == name.lower():
            raise BadValueError(f"name={shown(name)} is the name of a built-in {kind}")


def ignored(group: str, name: str, why: str) -> None:
    """Warn that an entry point is not used."""
    warnings.warn(f"entry point {name!r} of {group} is ignored: {why:.200}", stacklevel=4)
