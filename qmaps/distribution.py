"""Name of this package on the package index, where `qmaps` is another project."""

from __future__ import annotations

import warnings
from importlib import metadata

DISTRIBUTION = "torch-qmaps"
OTHER = "qmaps"
"""Map widgets for Qt, and this package until version 0.3. Both install the module `qmaps`."""


def version() -> str:
    """Version of this installation; ``0+unknown`` in a source tree that was never installed."""
    return _version_of(DISTRIBUTION) or "0+unknown"


def install(extra: str) -> str:
    """Command that adds the packages of an extra to an installation, one from a checkout too."""
    return f'pip install "{DISTRIBUTION}[{extra}]"'


def conflict() -> str:
    """Sentence on a distribution `qmaps` beside this one; empty if there is none."""
    other = _version_of(OTHER)
    if other is None or _version_of(DISTRIBUTION) is None:
        return ""
    return (
        f"the distribution {OTHER} {other} is installed beside {DISTRIBUTION}; both install the "
        f"module qmaps, and each replaces files of the other"
    )


REPAIR = f"pip uninstall -y {OTHER}, then install {DISTRIBUTION} again"


PLUGINS = ("qmaps.maps", "qmaps.metrics", "qmaps.normalizers")
"""Groups of entry points that are loaded when qmaps is imported."""


def has_plugins() -> bool:
    """True if another package adds maps, metrics or normalizers (`qmaps.algebra.plugins`)."""
    return not metadata.entry_points().groups.isdisjoint(PLUGINS)


def warn_of_conflict() -> None:
    """Warn if a distribution `qmaps` is in this environment."""
    if sentence := conflict():
        warnings.warn(f"{sentence}; {REPAIR}", stacklevel=3)


def _version_of(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
