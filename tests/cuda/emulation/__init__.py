"""Kernels of `qmaps.cuda` on the processor.

The sources that NVRTC compiles, compiled by the C++ compiler of this machine: a fiber or a thread
of the system stands for each thread of a block (``block.hpp``). Everything but the compiler and the
driver is that of a real device, for tensors on the CPU.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qmaps.cuda import compiler, engine
from qmaps.cuda.compiler import Entry
from qmaps.cuda.layout import THREADS
from qmaps.cuda.source import SOURCES, source_of
from qmaps.storage.files import replacing

HERE = Path(__file__).parent
CXX = shutil.which(os.environ.get("CXX", "c++"))
FLAGS = (
    *("-std=c++20", "-O1", "-fPIC", "-shared", "-pthread", "-ffp-contract=off", "-fno-math-errno"),
    *("-fno-strict-aliasing", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"),
    *("-U_FORTIFY_SOURCE", "-Wno-unused-function", "-Wno-invalid-offsetof"),
)
"""The answer to a warning is the same as on a device: one that matters is an error."""
INCLUDE = [f"-I{at}" for at in (HERE, SOURCES, compiler.ROOT)]


def build(source: str, folder: Path, flags: tuple[str, ...] = FLAGS) -> ctypes.CDLL:
    """A library from C++ that includes kernels, built once for each source."""
    block = hashlib.sha256((HERE / "block.hpp").read_bytes()).hexdigest()
    own = " ".join(flags)
    path = folder / f"{_name(source, compiler.source_digest(), own, block)}.so"
    if not path.exists():
        # The standard library in block.hpp takes half of the time; it is read once.
        header = folder / _name(block, own) / "block.hpp.gch"
        if not header.exists():
            header.parent.mkdir(exist_ok=True)
            _compile(flags, ["-x", "c++-header", str(HERE / "block.hpp")], header)
        _compile(flags, [f"-I{header.parent}", *INCLUDE, "-x", "c++", "-"], path, source)
    return ctypes.CDLL(str(path))


def _name(*parts: str) -> str:
    return hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:24]


def _compile(flags: tuple[str, ...], given: list[str], path: Path, source: str = "") -> None:
    assert CXX, "no C++ compiler"
    with replacing(path) as temporary:
        done = subprocess.run(
            [CXX, *flags, *given, "-o", str(temporary)],
            input=source.encode(),
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()


_known: set[Entry] = set()
"""Kernels that have run on threads of the system."""


class EmulatedEngine(engine.Engine):
    """Kernels for CPU tensors."""

    def __init__(self, folder: Path, blocks: int = 3) -> None:
        self.device = torch.device("cpu")
        self.blocks = blocks
        self.launched: list[str] = []
        self.folder = folder
        self._kernels: dict[Entry, Any] = {}

    def launch(self, entry: Entry, blocks: int, argument: np.ndarray) -> None:
        """Run a kernel; compiles it first if need be."""
        self.launched.append(entry.name)
        fibers = entry in _known and os.environ.get("QMAPS_EMULATION") != "threads"
        _known.add(entry)
        if entry not in self._kernels:
            library = build(
                f'#include "block.hpp"\n{source_of(entry.file)}'
                'extern "C" void run(int blocks, const void* argument, bool fibers) {\n'
                f"    emulation::launch({entry.name}, blocks, {THREADS}, argument, fibers);\n}}\n",
                self.folder,
            )
            self._kernels[entry] = library.run
        argument = np.ascontiguousarray(argument)
        self._kernels[entry](ctypes.c_int(blocks), ctypes.c_void_p(argument.ctypes.data), fibers)


@contextmanager
def emulated(stand_in: engine.Engine) -> Iterator[engine.Engine]:
    """CPU tensors run as CUDA tensors would."""
    token = engine.stand_in.set(stand_in)
    try:
        yield stand_in
    finally:
        engine.stand_in.reset(token)
