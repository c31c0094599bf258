"""Kernels of `qmaps.cuda` on the processor.

The C++ compiler of this machine compiles the sources of NVRTC: a fiber or a thread of the
system stands for each thread of a block (``block.hpp``). Everything but the compiler and the
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
from filelock import FileLock

from qmaps.cuda import compiler, engine
from qmaps.cuda.compiler import Entry
from qmaps.cuda.layout import THREADS
from qmaps.cuda.source import SOURCES, source_of
from qmaps.storage.files import replacing

HERE = Path(__file__).parent
CXX = shutil.which(os.environ.get("CXX", "c++"))
FLAGS = (
    *("-std=c++20", "-Og", "-fPIC", "-shared", "-pthread", "-ffp-contract=off", "-fno-math-errno"),
    *("-fno-strict-aliasing", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"),
    *("-U_FORTIFY_SOURCE", "-Wno-unused-function", "-Wno-invalid-offsetof"),
)
"""Warnings are treated as on a device: important ones are errors."""
INCLUDE = [f"-I{at}" for at in (HERE, SOURCES, compiler.ROOT)]


def build(source: str, code: str, folder: Path, flags: tuple[str, ...] = FLAGS) -> ctypes.CDLL:
    """Compile kernels and code on top of them into a library, once for each.

    Args:
        source: result of `source_of`; its header is compiled once.
        code: C++ after the source.
        folder: folder of headers and libraries.
        flags: options of the compiler.
    """
    block = hashlib.sha256((HERE / "block.hpp").read_bytes()).hexdigest()
    cache = folder / _name(source, compiler.source_digest(), " ".join(flags), block)
    path = cache / f"{_name(code)}.so"
    if not path.exists():
        cache.mkdir(exist_ok=True)
        header, precompiled = cache / "kernels.hpp", cache / "kernels.hpp.gch"
        with FileLock(cache / "lock"):
            if not precompiled.exists():
                header.write_text(f'#include "block.hpp"\n{source}')
                _compile(flags, [*INCLUDE, "-x", "c++-header", str(header)], precompiled)
        arguments = [f"-I{cache}", *INCLUDE, "-x", "c++", "-"]
        _compile(flags, arguments, path, f'#include "kernels.hpp"\n{code}')
    return ctypes.CDLL(str(path))


def _name(*parts: str) -> str:
    return hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:24]


def _compile(flags: tuple[str, ...], arguments: list[str], path: Path, source: str = "") -> None:
    assert CXX, "no C++ compiler"
    with replacing(path) as temporary:
        done = subprocess.run(
            [CXX, *flags, *arguments, "-o", str(temporary)],
            input=source.encode(),
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()


_known: set[str] = set()
"""Kernels already run on threads of the system, with any template arguments."""


class EmulatedEngine(engine.Engine):
    """Kernels for CPU tensors."""

    def __init__(self, folder: Path, blocks: int = 3) -> None:
        self.device = torch.device("cpu")
        self.blocks = blocks
        self.launched: list[str] = []
        self.folder = folder
        self._kernels: dict[Entry, Any] = {}

    def launch(self, entry: Entry, blocks: int, argument: np.ndarray) -> None:
        """Run a kernel; compile it first if needed."""
        self.launched.append(entry.name)
        kernel = entry.name.partition("<")[0]
        fibers = kernel in _known and os.environ.get("QMAPS_EMULATION") != "threads"
        _known.add(kernel)
        if entry not in self._kernels:
            library = build(
                source_of(entry.file),
                'extern "C" void run(int blocks, const void* argument, bool fibers) {\n'
                f"    emulation::launch({entry.name}, blocks, {THREADS}, argument, fibers);\n}}\n",
                self.folder,
            )
            self._kernels[entry] = library.run
        argument = np.ascontiguousarray(argument)
        self._kernels[entry](ctypes.c_int(blocks), ctypes.c_void_p(argument.ctypes.data), fibers)


@contextmanager
def emulated(stand_in: engine.Engine) -> Iterator[engine.Engine]:
    """Run CPU tensors as CUDA tensors."""
    token = engine.stand_in.set(stand_in)
    try:
        yield stand_in
    finally:
        engine.stand_in.reset(token)
