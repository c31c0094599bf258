"""Files of Python packages that hold trained weights."""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path

from qmaps.errors import BadValueError

INSTALL = "make .venv/.judges"


def package_file(package: str, path: str) -> Path:
    """A file of an installed package, without an import of the package.

    Args:
        package: name of the package, as it is imported.
        path: the file, relative to the package's folder.

    Raises:
        BadValueError: the package is not installed, or has no such file.
    """
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise BadValueError(f"package {package!r} is not installed; install it with {INSTALL}")
    file = Path(spec.origin).parent / path
    if not file.is_file():
        raise BadValueError(f"package {package!r} has no file {path!r}; install it with {INSTALL}")
    return file


def digest(*files: Path) -> str:
    """16 hexadecimal digits of the files' SHA-256."""
    total = hashlib.sha256()
    for file in files:
        total.update(file.read_bytes())
    return total.hexdigest()[:16]
