"""Versions and the processor, as a report of a problem needs them."""

from __future__ import annotations

import math
import os
import platform
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import torch

from qmaps.engines import native

CPUINFO = Path("/proc/cpuinfo")
QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Where Linux says how much time the processors of a container may take."""


@dataclass(frozen=True)
class Processor:
    """The processor, and how much of it is used.

    Attributes:
        name: as the system gives it.
        cores: that this process may use: fewer than the machine has in a container with a limit.
        threads: that torch and the native engine use.
        memory: bytes of the machine's memory; 0 if unknown.
        instructions: the instruction set that the native engine uses; None without the engine.
        others: further ones that it could use here, best first.
    """

    name: str
    cores: int
    threads: int
    memory: int
    instructions: str | None
    others: tuple[str, ...]


def versions() -> dict[str, str]:
    """The versions of what a result depends on, by name."""
    try:
        own = version("qmaps")
    except PackageNotFoundError:  # a source tree that was never installed
        own = "unknown"
    built = native.core is not None
    return {
        "qmaps": own,
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "Python": platform.python_version(),
        "system": platform.platform(),
        # Extensions of earlier versions do not tell.
        "compiler": getattr(native.core, "compiler", "unknown") if built else "none",
    }


def processor() -> Processor:
    """The processor of this machine."""
    used = None if native.core is None else native.isa()
    others = tuple(isa for isa in native.isas() if isa != used)
    return Processor(name(), cores(), torch.get_num_threads(), memory(), used, others)


def name(cpuinfo: Path = CPUINFO) -> str:
    """The processor's name as the system gives it."""
    match = re.search(r"^model name\s*:\s*(.+)$", _text(cpuinfo), re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine()


def cores(quota: Path = QUOTA) -> int:
    """Number of cores that this process may use: its affinity, and the limit of its container."""
    count = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    limit = re.fullmatch(r"(\d+) (\d+)\s*", _text(quota))
    return min(count, max(1, math.ceil(int(limit[1]) / int(limit[2])))) if limit else count


def memory() -> int:
    """Bytes of the machine's memory; 0 if the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
