"""Build of this installation's extension: the command, and the age of its sources.

It reads file times only, so it is cheap; `import qmaps` compares the declarations of headers.
"""

from __future__ import annotations

import json
import shlex
import warnings
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from qmaps.engines import native
from qmaps.errors import BackendWarning

PACKAGE = Path(__file__).parents[2]
SOURCES = ("engines/native/src", "engines/kernels")
"""Folders of the package with what the extension is compiled from."""
SUFFIXES = (".cpp", ".hpp", ".inl")
BUILD = (
    "engines/native/CMakeLists.txt",
    "engines/kernels/declarations.py",
    "normalize/scale_kind.py",
)
"""Further files that decide what is compiled."""

SLOWER = "a step takes about 10 times as long, and 100 times with quantized states"
"""Cost of the reference, roughly."""

_told = False


def checkout(package: Path = PACKAGE) -> Path | None:
    """Folder of the package's source tree; None for a wheel."""
    # Wheels leave this file out.
    complete = (package / BUILD[0]).is_file() and (package.parent / "pyproject.toml").is_file()
    return package.parent if complete else None


def command(package: Path = PACKAGE) -> str:
    """Command to build the extension again, from the source of the installation."""
    if (tree := checkout(package)) is not None:
        return f"pip install --editable {shlex.quote(str(tree))}"
    again = "pip install --force-reinstall --no-deps --no-cache-dir"
    try:
        origin = json.loads(distribution("qmaps").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        origin = {}
    url = str(origin.get("url", ""))
    if not url or url.endswith(".whl"):  # from an index
        return f"{again} --no-binary qmaps qmaps"
    if "vcs_info" in origin:
        url = f"{origin['vcs_info']['vcs']}+{url}"
    return f"{again} {shlex.quote(f'qmaps @ {url}')}"


def newer_source(module: Path | None = None, package: Path = PACKAGE) -> Path | None:
    """The newest source changed after the extension was built; None if there is none.

    Only the `package` of a source tree has sources. `module` is by default the running extension.
    """
    if module is None:
        file = getattr(native.core, "__file__", None)
        module = None if file is None else Path(file)
    if module is None or checkout(package) is None:
        return None
    files = [package / name for name in BUILD]
    for folder in SOURCES:
        files += [path for path in (package / folder).rglob("*") if path.suffix in SUFFIXES]
    newest = max((path for path in files if path.is_file()), key=lambda path: path.stat().st_mtime)
    late = newest.stat().st_mtime > module.stat().st_mtime
    return newest.relative_to(package.parent) if late else None


def warn_once() -> None:
    """Warn once in a process if the extension is missing."""
    global _told
    if _told:
        return
    _told = True
    warnings.warn(
        f"the native engine of qmaps is missing, so CPU tensors are quantized and stepped by plain "
        f"PyTorch: with the same results, but {SLOWER}. To repair, install a C++20 compiler and "
        f"run: {command()}",
        BackendWarning,
        stacklevel=3,
    )
