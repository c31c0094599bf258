"""Calls of the driver through `ctypes`, recorded by a fake driver."""

from __future__ import annotations

import contextlib
import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from qmaps.cuda import compiler, layout, libraries
from qmaps.cuda.compiler import kernel
from qmaps.cuda.engine import CudaEngine
from qmaps.cuda.libraries import DRIVER, Library
from qmaps.errors import BackendError

pytestmark = pytest.mark.slow

ENTRY = kernel("find_maxima", "float")
CONTEXT, MODULE, FUNCTION, STREAM = 0xC0FFEE << 32, 0x1234 << 32, 0x9ABC << 32, 0x77 << 32
"""Addresses of more than 32 bits; `ctypes` truncates them if a type is missing."""


class FakeDriver:
    """Functions with the driver's types; `calls` has their names and arguments."""

    _name = "libfake.so"

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.fails: dict[str, int] = {}
        for name, types in DRIVER.items():
            setattr(self, name, ctypes.CFUNCTYPE(ctypes.c_int, *types)(self._of(name)))

    def _of(self, name: str) -> Any:
        def called(*arguments: Any) -> int:
            if name != "cuGetErrorName":
                self.calls.append((name, *getattr(self, name[2:])(*arguments)))
                return self.fails.get(name, 0)
            if arguments[0] == 700:
                arguments[1][0] = b"CUDA_ERROR_ILLEGAL_ADDRESS"
            return 0

        return called

    def DeviceGet(self, to: Any, ordinal: int) -> tuple[int]:
        to[0] = 40 + ordinal
        return (ordinal,)

    def DevicePrimaryCtxRetain(self, to: Any, device: int) -> tuple[int]:
        to[0] = CONTEXT
        return (device,)

    def CtxSetCurrent(self, context: int) -> tuple[int]:
        return (context,)

    def ModuleLoadData(self, to: Any, code: bytes) -> tuple[bytes]:
        to[0] = MODULE
        return (code,)

    def ModuleGetFunction(self, to: Any, module: int, symbol: bytes) -> tuple[int, bytes]:
        to[0] = FUNCTION
        return module, symbol

    def LaunchKernel(self, function: int, *settings: Any) -> tuple[Any, ...]:
        *sizes, shared, stream, arguments, extra = settings
        # The structure's size is known to the function; the driver copies it from here.
        address, size = arguments[0], layout.TENSOR.itemsize
        words = np.frombuffer(ctypes.string_at(address, size), layout.TENSOR)[0]
        assert address % 8 == 0
        assert not extra
        return function, tuple(sizes), shared, stream, int(words["x"]), int(words["numel"])


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    driver = FakeDriver()
    monkeypatch.setattr(libraries, "driver", lambda: Library(driver, DRIVER))
    device = SimpleNamespace(major=9, minor=0, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: device)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    stream = SimpleNamespace(cuda_stream=STREAM)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stream)
    code = compiler.Compiled(b"\x7fELF", "_Z3max", "")
    monkeypatch.setattr(compiler, "compiled", lambda entry, arch: code)
    return driver


def test_a_kernel_is_loaded_once_and_launched(fake: FakeDriver) -> None:
    engine = CudaEngine(torch.device("cuda", 1))
    assert fake.calls == [("cuDeviceGet", 1), ("cuDevicePrimaryCtxRetain", 41)]
    fake.calls.clear()
    task = np.zeros((), dtype=layout.TENSOR)
    task["x"], task["numel"] = 0xABC << 36, 0x123
    engine.launch_over(ENTRY, 7, task)
    engine.launch_over(ENTRY, 10**6, task)
    engine.launch_over(ENTRY, 0, task)
    entered = ("cuCtxSetCurrent", CONTEXT)

    def launched(blocks: int) -> tuple[Any, ...]:
        sizes = (blocks, 1, 1, layout.THREADS, 1, 1)
        return ("cuLaunchKernel", FUNCTION, sizes, 0, STREAM, 0xABC << 36, 0x123)

    assert fake.calls == [
        entered,
        ("cuModuleLoadData", b"\x7fELF"),
        ("cuModuleGetFunction", MODULE, b"_Z3max"),
        launched(7),
        entered,
        launched(8 * 132),
    ]


def test_errors_of_the_driver_are_reported(fake: FakeDriver) -> None:
    engine = CudaEngine(torch.device("cuda", 1))
    task = np.zeros((), dtype=layout.TENSOR)
    for name, status, text in (
        ("cuModuleLoadData", 209, "status 209"),
        ("cuModuleGetFunction", 500, "status 500"),
        ("cuLaunchKernel", 700, "CUDA_ERROR_ILLEGAL_ADDRESS"),
    ):
        fake.fails = {name: status}
        with pytest.raises(BackendError) as caught:
            engine.launch(ENTRY, 1, task)
        assert str(caught.value) == f"find_maxima<float> failed on cuda:1: {name} returns {text}"
    fake.fails.clear()
    engine.launch(ENTRY, 1, task)
    # A kernel not yet loaded is loaded again; the last two launches used loaded ones.
    assert [call[0] for call in fake.calls].count("cuModuleLoadData") == 3
    del fake.cuLaunchKernel
    with pytest.raises(BackendError) as caught:
        Library(fake, DRIVER)
    assert str(caught.value) == "libfake.so has no cuLaunchKernel; install a newer one"


def test_a_missing_driver_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: no such file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(BackendError) as caught:
        libraries.driver.__wrapped__()
    assert str(caught.value) == "the CUDA driver cannot be loaded: libcuda.so.1: no such file"


def test_kernels_are_prepared_by_program(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    monkeypatch.setattr(
        compiler, "compiled", lambda entry, arch: compiled.append(f"{entry} {arch}")
    )
    engine = CudaEngine(torch.device("cuda", 1))
    engine.prepare([kernel("begin_step"), ENTRY, kernel("write_words")])
    # The last one is in the program of the first.
    assert sorted(compiled) == ["find_maxima<float> sm_90", "write_words sm_90"]
