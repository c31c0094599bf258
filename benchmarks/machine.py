"""Provenance of a measurement: machine, versions and command."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import qmaps
from benchmarks.command import command_line
from qmaps.engines import native
from qmaps.storage import __version__

CPUINFO = Path("/proc/cpuinfo")
PACKAGES = ("torch", "numpy", "bitsandbytes", "torchao")


def about(arguments: Sequence[str] | None, module: str = "benchmarks") -> dict[str, Any]:
    """Machine, versions, engine, threads, date and command.

    Args:
        arguments: arguments of the command; None for those of this process.
        module: module of the command.
    """
    engine = next(backend for backend in qmaps.backends() if backend.name == qmaps.backend())
    return {
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        "command": command_line(module, arguments),
        "machine": {
            "processor": processor(),
            "model": model(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
            "architecture": platform.machine(),
            "system": platform.system(),
        },
        "threads": torch.get_num_threads(),
        "backend": {"name": engine.name, "reason": engine.reason},
        "isa": native.core.isa() if engine.name == "native" else None,
        "versions": {"python": platform.python_version()}
        | {"qmaps": __version__}
        | {package: version(package) for package in PACKAGES},
    }


def described(info: Mapping[str, Any]) -> list[str]:
    """The command, and a line on date, machine and versions, in Markdown.

    Args:
        info: result of `info`.
    """
    host = info["machine"]
    model = f"{host['model']}, " if host.get("model") else ""
    versions = ", ".join(f"{name} {number}" for name, number in info["versions"].items() if number)
    return [
        f"`{info['command']}`",
        "",
        f"{info['date']}, {host['processor']} ({model}{host['architecture']}, {host['system']}), "
        f"{host['cores']} cores, {info['threads']} threads; engine "
        f"{info['isa'] or info['backend']['name']}; {versions}.",
    ]


def named(machine: Mapping[str, Any]) -> str:
    """The processor's name, with its model if the name lacks it, as on virtual machines.

    Args:
        machine: facts of `about` on the machine.

    >>> named({"processor": "AMD EPYC", "model": "family 25, model 17"})
    'AMD EPYC (family 25, model 17)'
    >>> named({"processor": "Apple M3", "model": None})
    'Apple M3'
    """
    model = machine.get("model")
    return f"{machine['processor']} ({model})" if model else str(machine["processor"])


def processor(cpuinfo: Path = CPUINFO) -> str:
    """The processor's name as the system gives it."""
    return _entry(cpuinfo, "model name") or platform.processor() or platform.machine()


def model(cpuinfo: Path = CPUINFO) -> str | None:
    """The family and model of an x86 processor; virtual machines name different ones alike."""
    family, number = _entry(cpuinfo, "cpu family"), _entry(cpuinfo, "model")
    return f"family {family}, model {number}" if family and number else None


def _entry(cpuinfo: Path, key: str) -> str | None:
    try:
        text = cpuinfo.read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(rf"^{key}\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else None


def processor_folder(name: str) -> str:
    """The folder of a processor's results.

    >>> processor_folder("Intel(R) Xeon(R) Processor")
    'intel-xeon'
    """
    words = re.findall(r"[a-z0-9]+", name.lower().replace("(r)", "").replace("(tm)", ""))
    return "-".join(word for word in words if word not in ("processor", "cpu")) or "unknown"


def version(package: str) -> str | None:
    """The installed version; None where there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
