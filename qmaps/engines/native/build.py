"""Build of this installation's extension: the command, and the warning that it is missing."""

from __future__ import annotations

import json
import shlex
import warnings
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from qmaps.distribution import DISTRIBUTION
from qmaps.errors import BackendWarning

PACKAGE = Path(__file__).parents[2]
SLOWER = "a step takes about 10 times as long, and 100 times with quantized states"
"""Cost of the reference, roughly."""

_told = False


def checkout(package: Path = PACKAGE) -> Path | None:
    """Folder of the package's source tree; None for a wheel."""
    sources = package / "engines/native/CMakeLists.txt"  # which wheels leave out
    complete = sources.is_file() and (package.parent / "pyproject.toml").is_file()
    return package.parent if complete else None


def command(package: Path = PACKAGE) -> str:
    """Command to build the extension again, from the source of the installation."""
    if (tree := checkout(package)) is not None:
        return f"pip install --editable {shlex.quote(str(tree))}"
    again = "pip install --force-reinstall --no-deps --no-cache-dir"
    try:
        origin = json.loads(distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        origin = {}
    url = str(origin.get("url", ""))
    if not url or url.endswith(".whl"):  # from an index
        return f"{again} --no-binary {DISTRIBUTION} {DISTRIBUTION}"
    if "vcs_info" in origin:
        url = f"{origin['vcs_info']['vcs']}+{url}"
    return f"{again} {shlex.quote(f'{DISTRIBUTION} @ {url}')}"


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
