"""One file per format: every named `Format` in a file of this package is known."""

from __future__ import annotations

from importlib.metadata import entry_points

from qmaps.capture.conversion.formats.base import Format
from qmaps.errors import BadValueError
from qmaps.registry import declared, ignored, load_entry_points, refuse_built_in

__all__ = ["FORMATS", "Format"]

_classes: list[type[Format]] = declared(__name__, list(__path__), Format)
for _name, _found in load_entry_points(entry_points(group="qmaps.formats")):
    if not (isinstance(_found, type) and issubclass(_found, Format) and hasattr(_found, "name")):
        ignored("qmaps.formats", _name, "it is not a subclass of Format with a name")
        continue
    try:
        refuse_built_in(_found.name, _found, {layout.name: layout for layout in _classes}, "format")
        _classes.append(_found)
    except BadValueError as _error:
        ignored("qmaps.formats", _name, str(_error))

FORMATS: dict[str, Format] = {
    layout.name: layout() for layout in sorted(_classes, key=lambda cls: (cls.asked, cls.name))
}
"""By name; a state_dict is of the first that recognizes it."""
