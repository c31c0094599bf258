"""Maps, normalizers, metrics, figures, formats and optimizers of other installed packages.

A package names them in its metadata, as entry points::

    [project.entry-points."qmaps.maps"]
    cubic = "mypackage.maps:Cubic"

    [project.entry-points."qmaps.normalizers"]
    diagonal = "mypackage.normalizers:Diagonal"

    [project.entry-points."qmaps.metrics"]
    my_metric = "mypackage.metrics:my_metric"

    [project.entry-points."qmaps.optimizers"]
    MyAdam = "mypackage.optim:MyAdam"

    [project.entry-points."qmaps.figures"]
    my_figure = "mypackage.figures:my_figure"

    [project.entry-points."qmaps.formats"]
    mylibrary = "mypackage.checkpoints:MyLibrary"

Maps, normalizers and metrics are loaded when qmaps is imported, figures with `qmaps.figures`,
formats of checkpoints with `qmaps.capture.conversion`, and an optimizer when
``qmaps.optim.MyAdam`` is asked for.
Specs, the command line and the laboratory know them by the names their classes declare, and
engines run them as they run ours. One with an import error, or with a name of ours in any
letter case, is left out, with a warning.
"""

from __future__ import annotations

import functools
import sys
from importlib.metadata import entry_points
from typing import Any

from qmaps import maps, metrics, normalize
from qmaps.errors import BadValueError
from qmaps.registry import ignored, load_entry_points


@functools.cache
def _points() -> Any:
    return entry_points()  # reads the metadata of every package, so once


def load() -> None:
    """Load the maps, normalizers and metrics of other packages."""
    points = _points()
    for name, part in load_entry_points(points.select(group="qmaps.maps")):
        if not any(part is registered for registered in maps.REGISTRY.values()):
            ignored("qmaps.maps", name, "it is not a map declared with a name")
    for name, part in load_entry_points(points.select(group="qmaps.normalizers")):
        if not any(part is registered for registered in normalize.REGISTRY):
            ignored("qmaps.normalizers", name, "it is not a normalizer declared with a name")
    for name, part in load_entry_points(points.select(group="qmaps.metrics")):
        if not callable(part):
            ignored("qmaps.metrics", name, "it is not a function")
            continue
        second = getattr(sys.modules.get(part.__module__), "from_sums", None)
        try:
            metrics.register(name, part, second)
        except BadValueError as error:
            ignored("qmaps.metrics", name, str(error))


def optimizer(name: str) -> type | None:
    """The optimizer of this name of another package, or None."""
    points = _points().select(group="qmaps.optimizers", name=name)
    cls = dict(load_entry_points(points)).get(name)
    return cls if isinstance(cls, type) else None
