"""Modules that have moved since version 0.1: their old names work until version 0.3."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODULES = {
    "addresses": "engines.addresses",
    "backends": "engines.backends",
    "bfloat16": "engines.bfloat16",
    "checkpoint": "storage.checkpoint",
    "comm": "distributed.comm",
    "constants": "engines.step_scalars",
    "convert": "capture.conversion",
    "dispatch": "engines.dispatch",
    "files": "storage.files",
    "integrations": "capture.integrations",
    "native": "engines.native",
    "packing": "engines.packing",
    "pair": "algebra.pair",
    "philox": "engines.philox",
    "quantiles": "algebra.quantiles",
    "quantizer": "algebra.quantizer",
    "reference": "engines.reference",
    "report": "lab.report",
    "rows": "distributed.rows",
    "shards": "distributed.shards",
    "spec": "algebra.spec",
    "speedup": "distributed.speedup",
    "store": "algebra.quantized",
    "workloads": "lab.workloads",
}
"""New places by old names, both within ``qmaps``."""


FUNCTIONS = ("backends", "quantizer")
"""Old names of modules that are also names of functions; the functions stay."""


def place(name: str) -> str:
    """Return the new name of a module that has moved, and warn.

    >>> import warnings
    >>> with warnings.catch_warnings(action="ignore"):
    ...     place("qmaps.comm.hook")
    'qmaps.distributed.comm.hook'
    """
    _, old, *rest = name.split(".")
    new = ".".join(["qmaps", MODULES[old], *rest])
    message = f"{name} is now {new}; the old name will be removed in version 0.3"
    warnings.warn(message, DeprecationWarning, stacklevel=3)
    return new


class _Finder(MetaPathFinder, Loader):
    """Finds modules under their old names, such as ``qmaps.comm``, in their new places."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        package, _, rest = fullname.partition(".")
        old = rest.partition(".")[0]
        return ModuleSpec(fullname, self) if package == "qmaps" and old in MODULES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module in its new place."""
        module = importlib.import_module(place(spec.name))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """The module was run under its new name; let it keep that name."""
        if module.__spec__ is not None:  # what `create_module` was called with
            module.__spec__ = module.__spec__.loader_state


class _Shim(ModuleType):
    """Replaces a module under its old name, so that no function of that name is overwritten."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked for by code that looks through sys.modules
            raise AttributeError(name)
        return getattr(importlib.import_module(place(self.__name__)), name)


def install() -> None:
    """Let imports find modules by their old names."""
    sys.meta_path.insert(0, _Finder())
    for name in FUNCTIONS:
        sys.modules[f"qmaps.{name}"] = _Shim(f"qmaps.{name}")
