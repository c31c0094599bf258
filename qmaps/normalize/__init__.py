"""Normalizers: the scale that divides each element.

One file per normalizer. Every normalizer class found in a file of this package is exported
here under its class name; see `names` for the spec names.
"""

from __future__ import annotations

from typing import Any

from qmaps.normalize.base import REGISTRY, Normalizer
from qmaps.registry import modules

for _module in modules(__name__, list(__path__)):
    for _name, _value in vars(_module).items():
        if isinstance(_value, type) and issubclass(_value, Normalizer) and _name[0] != "_":
            globals()[_name] = _value


def names() -> list[str]:
    """The spec names of all normalizers; ``<n>`` stands for an int, ``<k>`` for a factor."""
    return sorted((cls.spec_name for cls in REGISTRY), key=str.lower)


def __getattr__(name: str) -> Any:  # tells type checkers that classes are exported
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["REGISTRY", "Normalizer", "names"]
