"""Provenance of a measurement on a device."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

import torch

import qmaps
from benchmarks import machine
from qmaps.cuda import compiler

QUERIED = ("driver_version", "clocks.max.sm", "clocks.max.mem", "power.limit", "temperature.gpu")


def about(arguments: Sequence[str], device: torch.device) -> dict[str, Any]:
    """Device, driver, versions, engine, date and command."""
    info = machine.about(arguments, "benchmarks.gpu")
    engine = next(backend for backend in qmaps.backends() if backend.name == "cuda")
    versions = {"cuda (torch)": torch.version.cuda, "triton": machine.version("triton")}
    versions["nvrtc"] = None if compiler.missing() else compiler.version()
    return info | {
        "device": device_facts(device),
        "engine": {"available": engine.available, "reason": engine.reason},
        "versions": info["versions"] | versions,
    }


def device_facts(device: torch.device) -> dict[str, Any]:
    """The device as torch and the driver describe it."""
    if device.type != "cuda":
        return {"name": "no GPU: a dry run on the CPU"}
    properties = torch.cuda.get_device_properties(device)
    free, total = torch.cuda.mem_get_info(device)
    return {
        "name": properties.name,
        "capability": f"sm_{properties.major}{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "cache_mib": getattr(properties, "L2_cache_size", 0) / (1 << 20),
        "memory_gib": total / (1 << 30),
        "free_gib": free / (1 << 30),
        "count": torch.cuda.device_count(),
        **driver(),
    }


def driver() -> dict[str, str]:
    """Answer of the driver's tool for the first device; empty without such a tool."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {}
    command = [tool, f"--query-gpu={','.join(QUERIED)}", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return {}
    values = (done.stdout.splitlines() or [""])[0].split(", ")
    return dict(zip(QUERIED, values, strict=False))
