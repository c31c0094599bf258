"""Imports declarations of files and other packages, so adding a map touches only its own file."""

from __future__ import annotations

import importlib
import pkgutil
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import EntryPoints
from types import ModuleType
from typing import Any

from qmaps.errors import BadValueError, shown


def modules(package: str, path: list[str]) -> list[ModuleType]:
    """Import and return the modules of `package` without a leading ``_``, by name."""
    names = sorted(info.name for info in pkgutil.iter_modules(path))
    return [importlib.import_module(f"{package}.{name}") for name in names if name[0] != "_"]


def declared(package: str, path: list[str], base: type) -> list[Any]:
    """Return the classes in `modules` that derive from `base`, at any depth, and set a `name`."""
    return [
        member
        for module in modules(package, path)
        for member in vars(module).values()
        if isinstance(member, type) and issubclass(member, base) and "name" in vars(member)
    ]


def load_entry_points(points: EntryPoints) -> Iterator[tuple[str, Any]]:
    """Names and objects of other packages' entry points; a broken one is warned of."""
    for point in points:
        try:
            yield point.name, point.load()
        except (Exception, SystemExit) as error:  # a broken plugin must not break qmaps
            ignored(point.group, point.name, f"{type(error).__name__}: {error}")


def refuse_built_in(name: str, made: Any, registry: Mapping[str, Any], kind: str) -> None:
    """Raise if another part of qmaps in `registry` has this name, in any letter case."""
    for label, part in registry.items():
        module = part.__module__
        built_in = module.startswith("qmaps.") and module != getattr(made, "__module__", "")
        if built_in and label.lower() == name.lower():
            raise BadValueError(f"name={shown(name)} is the name of a built-in {kind}")


def ignored(group: str, name: str, why: str) -> None:
    """Warn of an ignored entry point."""
    warnings.warn(f"entry point {name!r} of {group} is ignored: {why:.200}", stacklevel=4)


def lazy(package: str, members: Mapping[str, Iterable[str]]) -> None:
    """Import members of a package on first use, so that importing the package needs no torch.

    A submodule with the name of a member does not take its place.

    Args:
        package: ``__name__`` of the package.
        members: names of members by the submodule that has them.
    """
    places = {name: module for module, names in members.items() for name in names}

    class LazyPackage(ModuleType):
        def __getattr__(self, name: str) -> Any:
            if name not in places:
                raise AttributeError(f"module {package!r} has no attribute {name!r}")
            value = getattr(importlib.import_module(f"{package}.{places[name]}"), name)
            setattr(self, name, value)
            return value

        def __setattr__(self, name: str, value: Any) -> None:
            if name not in places or not isinstance(value, ModuleType):
                super().__setattr__(name, value)

        def __dir__(self) -> list[str]:
            return sorted({*super().__dir__(), *places})

    sys.modules[package].__class__ = LazyPackage
