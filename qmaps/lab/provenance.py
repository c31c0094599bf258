"""Provenance of a result: versions, machine, engine."""

from __future__ import annotations

import os
import platform
import sys

import torch

from qmaps.ops.backends import backend
from qmaps.storage.version import __version__


def versions() -> dict[str, str]:
    """The versions of qmaps, torch and Python, by name."""
    return {
        "qmaps": __version__,
        "torch": torch.__version__,
        "python": sys.version.split()[0],
    }


def machine() -> str:
    """Architecture, cores, threads and the engine in use."""
    threads = torch.get_num_threads()
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, {threads} thread{'s' * (threads > 1)}, "
        f"{backend()} back end"
    )
