"""Resident memory of a process, and measurements in fresh processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Temporary arrays come from the system and go back to it, so that the peak shows them.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def in_fresh_process(module: str, *arguments: str) -> dict[str, Any]:
    """Run a module alone in a new process, for peaks of temporary arrays; return its JSON output.

    Raises:
        RuntimeError: the process failed; the message is the last line of its output.
    """
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=Path(__file__).parents[1],
        env={**os.environ, **ALLOCATOR},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise RuntimeError(lines[-1])
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def peak(work: Callable[[], object]) -> float | None:
    """Largest increase of the resident memory during `work`, in MiB; None if unknown."""
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
        before = _status("VmRSS")
        work()
        return max(0.0, (_status("VmHWM") - before) / 1024)
    except (OSError, LookupError):
        return None


def resident() -> float | None:
    """MiB of this process in memory; None if unknown."""
    try:
        return _status("VmRSS") / 1024
    except (OSError, LookupError):
        return None


def _status(field: str) -> int:
    """A size of this process in KiB."""
    text = Path("/proc/self/status").read_text()
    if not (match := re.search(rf"^{field}:\s+(\d+) kB", text, re.MULTILINE)):
        raise LookupError(field)
    return int(match[1])
