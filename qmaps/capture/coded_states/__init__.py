"""States that optimizers of other packages keep as codes: one file per package, each a `Coded`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qmaps.capture.coded_states.base import About, Coded
from qmaps.registry import declared

__all__ = ["CODED", "About", "Coded", "decoded_codes"]

_classes: list[type[Coded]] = declared(__name__, list(__path__), Coded)
CODED: dict[str, Coded] = {cls.name: cls() for cls in sorted(_classes, key=lambda cls: cls.name)}
"""By name; a parameter's state is of the first that recognizes it."""


def decoded_codes(state: Mapping[Any, Any], about: About) -> Mapping[Any, Any]:
    """Return a parameter's state with a float32 `Lazy` in place of another package's codes.

    Any other state is returned as it is.
    """
    layout = next((layout for layout in CODED.values() if layout.recognizes(state)), None)
    return state if layout is None else layout.decoded(state, about)
