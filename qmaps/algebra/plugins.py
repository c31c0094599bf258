"""Maps, normalizers, metrics and optimizers of other installed packages.

A package names them in its metadata, as entry points::

    [project.entry-points."qmaps.maps"]
    cubic = "mypackage.maps:Cubic"

    [project.entry-points."qmaps.normalizers"]
    diagonal = "mypackage.normalizers:Diagonal"

    [project.entry-points."qmaps.metrics"]
    my_metric = "mypackage.metrics:my_metric"

    [project.entry-points."qmaps.optimizers"]
    MyAdam = "mypackage.optim:MyAdam"

They are loaded when qmaps is imported; optimizers are when ``qmaps.optim.MyAdam`` is asked for.
Specs, the command line and the laboratory know them under the names that their classes declare, and
engines run them as they run ours. One that cannot be loaded is left out, with a warning.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from importlib.metadata import EntryPoints, entry_points
from typing import Any

from qmaps import maps, metrics, normalize


def install() -> None:
    """Load the maps, normalizers and metrics of other packages."""
    points = entry_points()  # reads the metadata of every package, so once
    for name, found in _loaded(points.select(group="qmaps.maps")):
        if found not in maps.REGISTRY.values():
            _warn("qmaps.maps", name, "it is not a map declared with a name")
    for name, found in _loaded(points.select(group="qmaps.normalizers")):
        if found not in normalize.REGISTRY:
            _warn("qmaps.normalizers", name, "it is not a normalizer declared with a name")
    for name, found in _loaded(points.select(group="qmaps.metrics")):
        if not callable(found):
            _warn("qmaps.metrics", name, "it is not a function")
            continue
        metrics.register(name, found, getattr(sys.modules[found.__module__], "from_sums", None))


def optimizer(name: str) -> type | None:
    """The optimizer of that name of another package, or None where there is none."""
    found = dict(_loaded(entry_points(group="qmaps.optimizers", name=name))).get(name)
    return found if isinstance(found, type) else None


def _loaded(points: EntryPoints) -> Iterator[tuple[str, Any]]:
    for point in points:
        try:
            yield point.name, point.load()
        except Exception as error:  # a broken plugin must not break qmaps
            _warn(point.group, point.name, f"{type(error).__name__}: {error}")


def _warn(group: str, name: str, why: str) -> None:
    warnings.warn(f"entry point {name!r} of {group} is ignored: {why:.200}", stacklevel=4)
