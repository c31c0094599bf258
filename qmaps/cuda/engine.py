"""Launching kernels."""

from __future__ import annotations

import ctypes
import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextvars import ContextVar

import numpy as np
import torch

from qmaps.cuda import compiler, libraries
from qmaps.cuda.compiler import Entry
from qmaps.cuda.layout import THREADS
from qmaps.errors import BackendError

BLOCKS_PER_PROCESSOR = 8
"""Blocks of threads that keep a multiprocessor busy, for kernels with any use of resources."""


class Engine(ABC):
    """Runs kernels on the tensors of one device, in the order of its current stream."""

    device: torch.device
    blocks: int
    """The number of blocks of threads that keeps the device busy."""

    @abstractmethod
    def launch(self, entry: Entry, blocks: int, argument: np.ndarray) -> None:
        """Run `entry` with this many blocks of `THREADS` threads.

        Args:
            entry: the kernel.
            blocks: the number of blocks, at least 1.
            argument: the kernel's argument structure, copied before this returns.
        """

    def prepare(self, entries: Iterable[Entry]) -> None:  # noqa: B027
        """Compile kernels that will be launched, where that takes time."""

    def launch_over(self, entry: Entry, items: int, argument: np.ndarray) -> None:
        """Run `entry` with one block per item, but at most `blocks` blocks.

        Kernels launched by this method loop over their items.
        """
        if items > 0:
            self.launch(entry, min(items, self.blocks), argument)


class CudaEngine(Engine):
    """Kernels compiled at their first use, on a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        properties = torch.cuda.get_device_properties(device)
        self.device = device
        self.arch = f"sm_{properties.major}{properties.minor}"
        self.blocks = BLOCKS_PER_PROCESSOR * properties.multi_processor_count
        self._functions: dict[Entry, ctypes.c_void_p] = {}
        self._driver = libraries.driver()
        self._context = ctypes.c_void_p()
        number = ctypes.c_int()
        self._driver.call("cuDeviceGet", ctypes.byref(number), device.index)
        self._driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), number)

    def prepare(self, entries: Iterable[Entry]) -> None:
        """Compile kernels at once that were never launched."""
        compiler.compile_all([e for e in entries if e not in self._functions], self.arch)

    def launch(self, entry: Entry, blocks: int, argument: np.ndarray) -> None:
        """Run a kernel; at its first use it is compiled and loaded.

        Raises:
            BackendError: the kernel does not compile, or the driver refuses it.
        """
        made = None if entry in self._functions else compiler.compiled(entry, self.arch)
        arguments = (ctypes.c_void_p * 1)(argument.ctypes.data)
        with torch.cuda.device(self.device):
            stream = torch.cuda.current_stream(self.device).cuda_stream
            try:
                # A thread of Python's that torch has not used yet has no context.
                self._driver.call("cuCtxSetCurrent", self._context)
                if made is not None:
                    self._functions[entry] = self._loaded(made)
                self._driver.call(
                    "cuLaunchKernel",
                    *(self._functions[entry], blocks, 1, 1, THREADS, 1, 1, 0),
                    *(stream, arguments, None),
                )
            except BackendError as error:
                raise BackendError(f"{entry} failed on {self.device}: {error}") from error

    def _loaded(self, made: compiler.Compiled) -> ctypes.c_void_p:
        """The function of a kernel; its module stays loaded until the process ends."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._driver.call("cuModuleLoadData", ctypes.byref(module), made.code)
        symbol = made.symbol.encode()
        self._driver.call("cuModuleGetFunction", ctypes.byref(function), module, symbol)
        return function


stand_in: ContextVar[Engine | None] = ContextVar("qmaps_cuda_stand_in", default=None)
"""An engine for tensors of another device, for tests."""


def missing() -> str:
    """Reason why this engine cannot run on this machine; empty if it can."""
    if torch.version.hip:
        return f"torch {torch.__version__} is built for ROCm {torch.version.hip}, not for CUDA"
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return "torch finds no CUDA device or driver"
    if reason := compiler.missing():
        return reason
    capabilities = {torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
    supported = compiler.architectures()
    if not any(f"sm_{major}{minor}" in supported for major, minor in capabilities):
        return f"no device has an architecture that this NVRTC knows: {', '.join(supported)}"
    return ""


@functools.cache
def engine_of(device: torch.device) -> Engine | None:
    """The engine of a CUDA device, or None if it has no engine."""
    if missing():
        return None
    major, minor = torch.cuda.get_device_capability(device)
    supported = f"sm_{major}{minor}" in compiler.architectures()
    return CudaEngine(device) if supported else None


def recording() -> bool:
    """Return True if a CUDA graph is being recorded."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
