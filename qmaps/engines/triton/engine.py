"""Devices of the Triton engine, and launches. Importing this does not import Triton."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qmaps.distribution import install
from qmaps.engines.triton import source
from qmaps.engines.triton.source import Kind
from qmaps.engines.triton.trace import Trace
from qmaps.errors import BackendError

TYPES = ("cuda", "xpu")
"""Types of devices for which Triton compiles; torch gives AMD's the name "cuda", too."""
NEEDED = ("join", "split", "philox", "reshape")
OPTIONS = {"enable_fp_fusion": False}
"""Options of every launch: a product is never fused with a sum."""


def interpreting() -> bool:
    """Return True if kernels run in Triton's interpreter, on CPU tensors."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "yes", "y")


def missing() -> str:
    """Reason why this engine cannot run on this machine; empty if it can."""
    if importlib.util.find_spec("triton") is None:
        return f"triton is not installed; {install('triton')}"
    if not (interpreting() or devices()):
        return "torch finds no GPU"
    if (reason := unusable()) or interpreting() == interpreted():
        return reason
    return "TRITON_INTERPRET was changed after triton was imported, which torch's optimizers do"


def interpreted() -> bool:
    """Return True if Triton was imported for its interpreter."""
    language = importlib.import_module("triton.language")
    return type(language.max).__name__ == "InterpretedFunction"


@functools.cache
def unusable() -> str:
    """Reason why the Triton of this installation cannot be used; empty if it can."""
    try:
        language = importlib.import_module("triton.language")
    except Exception as error:
        return f"triton cannot be imported: {first_line(error)}"
    lacking = [name for name in NEEDED if not hasattr(language, name)]
    if lacking or not hasattr(language.math, "div_rn"):
        return f"triton {version()} is too old; version 3.2 or later is needed"
    return ""


def version() -> str:
    """The version of Triton."""
    return str(getattr(importlib.import_module("triton"), "__version__", "unknown"))


def devices() -> list[torch.device]:
    """Devices of this machine that Triton may compile for."""
    found = []
    for kind in TYPES:
        module = getattr(torch, kind, None)
        if module is not None and module.is_available():
            found += [torch.device(kind, index) for index in range(module.device_count())]
    return found


def device_of(device: torch.device) -> torch.device | None:
    """The device as the engine knows it, or None if the engine cannot run there."""
    runs = device.type in TYPES or (device.type == "cpu" and interpreting())
    return device if runs and not missing() else None


def name_of(device: torch.device) -> str:
    """The name of a device with its architecture."""
    if device.type == "cpu":
        return "Triton's interpreter"
    properties = torch.get_device_module(device).get_device_properties(device)
    arch = getattr(properties, "gcnArchName", "")
    if not arch and device.type == "cuda":
        arch = f"sm_{properties.major}{properties.minor}"
    return f"{properties.name} ({arch})" if arch else str(properties.name)


def capturing(device: torch.device) -> bool:
    """Return True if a graph is being recorded on the device."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def on(device: torch.device) -> AbstractContextManager[Any]:
    """Make the device the current one, for launches."""
    if device.type == "cpu":  # the interpreter is NumPy, which warns of infinities
        return np.errstate(all="ignore")
    made: AbstractContextManager[Any] = torch.get_device_module(device).device(device)
    return made


def upload(numbers: Sequence[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers on a device, without waiting for it."""
    made = torch.tensor(numbers, dtype=dtype)
    return made if device.type == "cpu" else made.pin_memory().to(device, non_blocking=True)


@functools.lru_cache(maxsize=1024)
def _kernel(traced: Trace, kind: Kind, aligned: bool) -> Any:
    return source.built(source.text_of(traced, kind, aligned=aligned))


def launch(
    traced: Trace,
    kind: Kind,
    tensors: Sequence[Tensor],
    step: int,
    scalars: Sequence[float],
    maps: Sequence[Tensor],
    *,
    aligned: bool,
) -> None:
    """Run a kernel over some tiles, on the current device.

    Args:
        traced: the rule.
        kind: what the kernel is written for.
        tensors: the table of parameters, the tiles, addresses of gradients, and their scale.
        step: number of the step, for random numbers.
        scalars: the scalars of the trace.
        maps: for each quantized state the result of `source.tables_of`.
        aligned: whether all addresses are multiples of 16 bytes.

    Raises:
        BackendError: the kernel does not compile, or the device refuses it.
    """
    kernel = _kernel(traced, kind, aligned)
    words = source.step_words(step)
    try:
        kernel[(len(tensors[1]),)](
            *tensors, *words, *scalars, *maps, num_warps=kind.warps, **OPTIONS
        )
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise BackendError(
            f"a Triton kernel failed on {tensors[0].device}: {first_line(error)}; "
            "QMAPS_BACKEND=reference steps without it"
        ) from error


def first_line(error: BaseException) -> str:
    """The class of an error and the first line of its message, shortened."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"
