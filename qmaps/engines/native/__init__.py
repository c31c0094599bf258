"""The engine for CPU tensors, in C++.

It works on codebooks, thresholds and scale geometries, and does not use the names of maps and
normalizers. Its answers are those of `qmaps.engines.reference`, bit for bit.

Environment: ``QMAPS_ISA`` chooses among `isas` ("avx512", "avx2", "neon", "portable").
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from qmaps.engines.rules import check_build
from qmaps.errors import BackendError

if TYPE_CHECKING:
    from qmaps.engines.native import _core as core
else:
    core = None
"""The extension module, or None where it was not built."""
reason = ""
"""Why there is no extension module."""
refused = ""
"""Why the extension module cannot run as the environment asks."""

try:
    core = importlib.import_module("qmaps.engines.native._core")
except ImportError as error:
    reason = (
        f"the extension was not built or cannot be loaded ({error}); reinstall qmaps on a "
        "machine with a C++20 compiler"
    )
else:
    try:
        core.isa()
    except ValueError as error:  # QMAPS_ISA names none of this processor
        refused = str(error)
    else:
        check_build(core)


def isa() -> str:
    """The instruction set in use.

    Raises:
        BackendError: ``QMAPS_ISA`` names none of this processor.
    """
    if refused:
        raise BackendError(refused)
    return str(core.isa())


def isas() -> list[str]:
    """Instruction sets of both this build and this processor, best first."""
    return list(core.isas()) if core else []
