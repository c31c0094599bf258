"""CUDA kernels from their source: NVRTC, through `cuda.core`, and a cache on disk."""

from __future__ import annotations

import functools
import hashlib
import importlib
import io
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qmaps.cuda.source import SOURCES, source_of
from qmaps.errors import BackendError, OutputError
from qmaps.storage.files import read_record, write_record

ROOT = Path(__file__).parents[2]
"""Holds ``qmaps/engines/kernels``, which the sources include."""

# No fused multiply-add, no flushing of subnormals, IEEE division and roots: the answers are those
# of the reference.
OPTIONS: dict[str, Any] = {
    "std": "c++17",
    "fma": False,
    "ftz": False,
    "prec_div": True,
    "prec_sqrt": True,
    "device_as_default_execution_space": True,
    "lineinfo": True,
    "ptxas_options": ["-v"],
}


@dataclass(frozen=True)
class Entry:
    """One kernel: a file of ``src`` and a name in namespace ``qmaps``, with template arguments."""

    file: str
    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Compiled:
    """Machine code of one entry.

    Attributes:
        code: a cubin.
        symbol: the kernel's name in it.
        log: the output of the compiler.
    """

    code: bytes
    symbol: str
    log: str

    @property
    def usage(self) -> dict[str, int]:
        """Registers per thread, and bytes of spills (stores, loads), stack and shared memory."""
        lines = self.log.splitlines()
        start = next(i for i, line in enumerate(lines) if f"function '{self.symbol}'" in line)
        block = "\n".join(lines[start : start + 4])
        patterns = {
            "registers": r"Used (\d+) registers",
            "spill_stores": r"(\d+) bytes spill stores",
            "spill_loads": r"(\d+) bytes spill loads",
            "stack": r"(\d+) bytes stack frame",
            "shared": r"(\d+) bytes smem",
        }
        matches = {name: re.search(pattern, block) for name, pattern in patterns.items()}
        return {name: int(match[1]) if match else 0 for name, match in matches.items()}


def missing() -> str:
    """Reason why kernels cannot be compiled on this machine; empty if they can."""
    try:
        core()
        from cuda.bindings import nvrtc
    except ImportError as error:
        return f"{error}; pip install 'qmaps[cuda]'"
    try:
        nvrtc.nvrtcVersion()
    except Exception as error:  # its loader raises several types of errors
        reason = str(error).strip().splitlines()[0]
        return f"NVRTC cannot be loaded ({reason}); pip install 'qmaps[cuda]'"
    return ""


def architectures() -> list[str]:
    """Architectures supported by NVRTC, such as "sm_90", oldest first."""
    from cuda.bindings import nvrtc

    return [f"sm_{number}" for number in nvrtc.nvrtcGetSupportedArchs()[1]]


def check_architecture(arch: str) -> None:
    """Raise `BackendError` unless NVRTC compiles for the architecture `arch`."""
    if arch not in architectures():
        supported = ", ".join(architectures())
        raise BackendError(f"arch={arch!r} is not supported by this NVRTC; it supports {supported}")


def compiled(entry: Entry, arch: str) -> Compiled:
    """The machine code of an entry for one architecture, from the cache or compiled anew.

    Raises:
        BackendError: the architecture is not supported, or the source does not compile.
    """
    path = cache_folder() / f"{_digest(entry, arch)}.json"
    if (cached := _read(path)) is not None:
        return cached
    _announce(arch)
    made = compile_now(entry, arch)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_record(path, {"code": made.code.hex(), "symbol": made.symbol, "log": made.log})
    except (OSError, OutputError):
        pass  # without a cache, the next process compiles the kernel again
    return made


def compile_now(entry: Entry, arch: str) -> Compiled:
    """Compile an entry for one architecture; as `compiled`, but without the cache."""
    check_architecture(arch)
    nvrtc = core()
    # A program with the name of the file would include itself.
    options = nvrtc.ProgramOptions(
        arch=arch, include_path=[str(SOURCES), str(ROOT)], name=f"{entry.file}.cu", **OPTIONS
    )
    log = io.StringIO()
    try:
        program = nvrtc.Program(source_of(entry.file), "c++", options)
        made = program.compile("cubin", name_expressions=(entry.name,), logs=log)
    except Exception as error:
        raise BackendError(f"{entry} does not compile for {arch}: {error}\n{log.getvalue()}") from (
            error
        )
    symbol = made.symbol_mapping[entry.name]
    symbol = symbol.decode() if isinstance(symbol, bytes) else symbol
    return Compiled(bytes(made.code), symbol, log.getvalue())


def cache_folder() -> Path:
    """The folder of compiled kernels: in ``QMAPS_CACHE_DIR``, or in the user's cache folder."""
    if folder := os.environ.get("QMAPS_CACHE_DIR"):
        return Path(folder) / "cuda"
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "qmaps" / "cuda"


def core() -> Any:
    """NVIDIA's `cuda.core`, or `cuda.core.experimental` in older releases."""
    new = importlib.import_module("cuda.core")
    return new if hasattr(new, "Program") else importlib.import_module("cuda.core.experimental")


def _read(path: Path) -> Compiled | None:
    """The cache's entry in this file; None if there is none or it is damaged."""
    try:
        stored = read_record(path)
        return Compiled(bytes.fromhex(stored["code"]), stored["symbol"], stored["log"])
    except (ValueError, KeyError, TypeError):
        return None


def _digest(entry: Entry, arch: str) -> str:
    from cuda.bindings import nvrtc

    parts = [
        source_digest(),
        source_of(entry.file),
        entry.file,
        entry.name,
        arch,
        repr(OPTIONS),
        repr(nvrtc.nvrtcVersion()),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@functools.cache
def source_digest() -> str:
    """Digest of the source files of kernels."""
    files = sorted(
        [*SOURCES.glob("*.cuh"), *(ROOT / "qmaps" / "engines" / "kernels").rglob("*.hpp")]
    )
    together = hashlib.sha256()
    for file in files:
        together.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return together.hexdigest()


@functools.cache
def _announce(arch: str) -> None:
    print(
        f"qmaps: compiling CUDA kernels for {arch}, each at its first use "
        f"(kept in {cache_folder()})",
        file=sys.stderr,
    )
