"""The choice of the engine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qmaps.cuda import engine as cuda
from qmaps.cuda.engine import Engine
from qmaps.engines import native
from qmaps.engines.addresses import in_memory
from qmaps.engines.native import build
from qmaps.engines.triton import engine as triton
from qmaps.errors import BackendError, BadValueError, nearest
from qmaps.ops.proof import trusted

NAMES = ("reference", "native", "cuda", "triton")
_chosen: ContextVar[str | None] = ContextVar("qmaps_backend", default=None)


@dataclass(frozen=True)
class Backend:
    """An engine for quantizers and optimizer steps.

    Attributes:
        name: "reference" (plain PyTorch, any device), "native" (C++, CPU), "cuda" or "triton".
        available: whether it can run on this machine.
        reason: why it can or cannot run.
    """

    name: str
    available: bool
    reason: str


def backends() -> list[Backend]:
    """Every engine, with the reason why it can or cannot run on this machine.

    >>> [b.name for b in backends()]
    ['reference', 'native', 'cuda', 'triton']
    """
    built = native.core is not None
    return [
        Backend("reference", True, "plain PyTorch, on CPU and CUDA tensors"),
        Backend("native", built, f"C++, CPU tensors, {native.isa()}" if built else native.reason),
        Backend("cuda", not (reason := cuda.missing()), reason or _devices()),
        Backend("triton", not (reason := triton.missing()), reason or _triton_devices()),
    ]


def backend() -> str:
    """Name of the engine for CPU tensors.

    "native" where it is built, unless `use_backend` or the environment variable
    ``QMAPS_BACKEND`` says "reference".

    Raises:
        BadValueError: ``QMAPS_BACKEND`` does not name an engine, or it is not available.
        BackendError: ``QMAPS_ISA`` names no instruction set of this processor.
    """
    if reference_requested() or native.core is None:
        return "reference"
    if native.refused:
        raise BackendError(native.refused)
    return "native"


def native_runs() -> bool:
    """Return True if the native engine runs CPU tensors.

    Work on CPU tensors asks this. It warns once if the engine is missing and
    the reference was not requested.
    """
    if reference_requested():
        return False
    if native.core is None:
        build.warn_once()
        return False
    if native.refused:
        raise BackendError(native.refused)
    return True


def cuda_engine(*tensors: Tensor) -> Engine | None:
    """The CUDA engine of the common device of the tensors, or None if the reference runs.

    It runs wherever `backends` reports it as available and every tensor is `in_memory`, unless
    `use_backend` or the environment variable ``QMAPS_BACKEND`` says "reference".
    """
    device = tensors[0].device
    engine = cuda_engine_on(device)
    readable = engine is not None and all(x.device == device and in_memory(x) for x in tensors)
    return engine if readable else None


def cuda_engine_on(device: torch.device) -> Engine | None:
    """The CUDA engine of a device, or None where the reference runs; see `cuda_engine`."""
    engine = cuda.stand_in.get()
    if engine is None or device != engine.device:
        engine = cuda.engine_of(device) if device.type == "cuda" else None
    if engine is None or _wanted() in ("reference", "triton"):
        return None
    return engine if device.type != "cuda" or trusted("cuda", device) else None


def triton_engine(*tensors: Tensor) -> torch.device | None:
    """`cuda_engine` for the Triton engine: the common device of the tensors, or None."""
    if (device := triton_engine_on(tensors[0].device)) is None:
        return None
    return device if all(x.device == device and in_memory(x) for x in tensors) else None


def triton_engine_on(device: torch.device, *, also: bool = False) -> torch.device | None:
    """The device if the Triton engine runs there, or None.

    It runs on GPUs for which there is no CUDA engine, on all if it is requested, and on CPU tensors
    if it is requested and Triton's interpreter is on.

    Args:
        device: of tensors.
        also: whether it also runs beside the CUDA engine, for what that does not have.
    """
    if device.type not in triton.TYPES and device.type != "cpu":
        return None
    wanted = _wanted()
    if wanted != "triton" and (
        wanted == "reference"
        or device.type == "cpu"
        or (not also and cuda_engine_on(device) is not None)
    ):
        return None
    found = triton.device_of(device)
    return found if found is None or found.type == "cpu" or trusted("triton", found) else None


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Run on this engine inside the block; all engines give the same bits.

    Args:
        name: "reference" for all tensors, "native" for CPU tensors, "cuda" for CUDA tensors, or
            "triton" for tensors on GPUs; other tensors keep their engine.

    Raises:
        BadValueError: there is no such engine, or it is not available.
    """
    token = _chosen.set(_checked(name, "name"))
    try:
        yield
    finally:
        _chosen.reset(token)


def requested() -> tuple[Any, ...]:
    """The settings that the choice of an engine depends on: equal settings, equal engines."""
    return _chosen.get(), os.environ.get("QMAPS_BACKEND", ""), cuda.stand_in.get()


def reference_requested() -> bool:
    """Return True if `use_backend` or the environment asks for the reference."""
    return _wanted() == "reference"


def _wanted() -> str:
    """The name of the requested engine, or an empty string."""
    if (chosen := _chosen.get()) is not None:
        return chosen
    wanted = os.environ.get("QMAPS_BACKEND", "")
    return _checked(wanted, "QMAPS_BACKEND") if wanted else ""


def _checked(name: str, parameter: str) -> str:
    if name not in NAMES:
        allowed = ", ".join(map(repr, NAMES))
        raise BadValueError(
            f"{parameter}={name!r} is not a back end; allowed are {allowed}{nearest(name, NAMES)}"
        )
    engine = next(e for e in backends() if e.name == name)
    if not engine.available:
        raise BadValueError(f"{parameter}={name!r} is not available: {engine.reason}")
    return name


def _triton_devices() -> str:
    if triton.interpreting():
        return f"triton {triton.version()}, CPU tensors in its interpreter, on request"
    names = ", ".join(map(triton.name_of, triton.devices()))
    return f"triton {triton.version()}, tensors on {names}; kernels are compiled at first use"


def _devices() -> str:
    devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    names = ", ".join(f"{device.name} (sm_{device.major}{device.minor})" for device in devices)
    return f"CUDA tensors on {names}; kernels are compiled at first use"
