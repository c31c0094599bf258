"""What reaches the driver, held against one that only says what it is asked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from qmaps.cuda import compiler
from qmaps.cuda.compiler import Entry
from tests.cuda import emulation

ENTRY = Entry("quantize.cuh", "find_maxima<float>")
PROGRAM = """
import contextlib, types
import numpy as np, torch
torch.cuda.get_device_properties = lambda _: types.SimpleNamespace(
    major=9, minor=0, multi_processor_count=132
)
torch.cuda.device = lambda _: contextlib.nullcontext()
torch.cuda.current_stream = lambda _: types.SimpleNamespace(cuda_stream=0x77)
from qmaps.cuda import layout
from qmaps.cuda.compiler import Entry
from qmaps.cuda.engine import CudaEngine
from qmaps.errors import BackendError
engine = CudaEngine(torch.device("cuda", 0))
task = np.zeros((), dtype=layout.TENSOR)
task["x"], task["packed"], task["numel"] = 0xABC, 0xDEF, 0x123
entry = Entry("quantize.cuh", "find_maxima<float>")
engine.launch_over(entry, 7, task)
engine.launch_over(entry, 10**6, task)
engine.launch_over(entry, 0, task)
try:
    engine.launch(entry, 13, task)
except BackendError as error:
    print(error)
"""


@pytest.mark.skipif(bool(compiler.missing()), reason=compiler.missing())
@pytest.mark.skipif(sys.platform != "linux", reason="the driver is replaced as Linux finds it")
def test_a_kernel_is_loaded_once_and_launched(tmp_path: Path) -> None:
    if emulation.CXX is None:
        pytest.skip("no C++ compiler to make a driver with")
    driver = tmp_path / "libcuda.so.1"
    source = emulation.HERE / "driver.cpp"
    command = [emulation.CXX, "-std=c++20", "-shared", "-fPIC", str(source), "-o", str(driver)]
    subprocess.run(command, check=True)
    surroundings = {**os.environ, "QMAPS_CACHE_DIR": str(tmp_path)}
    # Compiled beforehand: NVRTC would ask the driver for more.
    compiling = f"from qmaps.cuda import compiler as c; c.compiled(c.{ENTRY!r}, 'sm_90')"
    subprocess.run([sys.executable, "-c", compiling], env=surroundings, check=True)
    surroundings["LD_LIBRARY_PATH"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=surroundings, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    launched = "launch 0x9abc blocks {} 1 1 threads 256 1 1 stream 0x77 arguments abc def 123"
    assert done.stdout.splitlines() == [
        "load ELF",
        "kernel _ZN5qmaps11find_maximaIfEEvNS_6TensorE of 0x1234",
        "function of 0x5678",
        launched.format(7),
        launched.format(8 * 132),
        launched.format(13),
        "find_maxima<float> failed on cuda:0: CUDA_ERROR_ILLEGAL_ADDRESS",
    ]
