"""CUDA kernels from their source: NVRTC, and a cache on disk."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from qmaps.cuda import libraries
from qmaps.cuda.source import SOURCES, kernels, plain_kernels, source_of
from qmaps.errors import BackendError, OutputError
from qmaps.storage.files import read_record, write_record

ROOT = Path(__file__).parents[2]
"""Holds ``qmaps/engines/kernels``, which the sources include."""

# No fused multiply-add, no flushing of subnormals, IEEE division and roots: the answers are those
# of the reference.
OPTIONS = (
    *("--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true"),
    *("--device-as-default-execution-space", "--generate-line-info", "--ptxas-options=-v"),
)


@dataclass(frozen=True)
class Entry:
    """One kernel: a file of ``src`` and a name in namespace ``qmaps``, with template arguments."""

    file: str
    name: str

    def __str__(self) -> str:
        return self.name


def kernel(name: str, *arguments: str | int) -> Entry:
    """A kernel with its template arguments.

    >>> kernel("find_maxima", "float")
    Entry(file='quantize.cuh', name='find_maxima<float>')
    """
    template = f"<{', '.join(map(str, arguments))}>" if arguments else ""
    return Entry(kernels()[name], name + template)


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


def missing() -> str:
    """Reason why kernels cannot be compiled on this machine; empty if they can."""
    try:
        libraries.nvrtc()
    except BackendError as error:
        return str(error)
    return ""


@functools.cache
def architectures() -> list[str]:
    """Architectures supported by NVRTC, such as "sm_90", oldest first."""
    count = ctypes.c_int()
    libraries.nvrtc().call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
    numbers = (ctypes.c_int * count.value)()
    libraries.nvrtc().call("nvrtcGetSupportedArchs", numbers)
    return [f"sm_{number}" for number in numbers]


def version() -> str:
    """The version of NVRTC, such as "13.5"."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    libraries.nvrtc().call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def check_architecture(arch: str) -> None:
    """Raise `BackendError` unless NVRTC compiles for the architecture `arch`."""
    if arch not in architectures():
        supported = ", ".join(architectures())
        raise BackendError(f"arch={arch!r} is not supported by this NVRTC; it supports {supported}")


def compile_all(entries: Iterable[Entry], arch: str) -> None:
    """Have the machine code of entries in the cache, compiling several at once."""
    programs = {_names(entry): entry for entry in entries}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda entry: compiled(entry, arch), programs.values()))


def compiled(entry: Entry, arch: str) -> Compiled:
    """The machine code of an entry for one architecture, from the cache or compiled anew.

    Raises:
        BackendError: the architecture is not supported, or the source does not compile.
    """
    path = cache_folder() / f"{_digest(entry, arch)}.json"
    if (cached := _read(path, entry)) is not None:
        return cached
    code, symbols, log = _program(entry.file, _names(entry), arch)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_record(path, {"code": code.hex(), "symbols": symbols, "log": log})
    except (OSError, OutputError):
        pass  # without a cache, the next process compiles the kernel again
    return Compiled(code, symbols[entry.name], log)


def compile_now(entry: Entry, arch: str) -> Compiled:
    """Compile an entry for one architecture; as `compiled`, but without the cache."""
    code, symbols, log = _program(entry.file, _names(entry), arch)
    return Compiled(code, symbols[entry.name], log)


def _names(entry: Entry) -> tuple[str, ...]:
    """The kernels of the entry's program: all without template arguments in a file are in one."""
    plain = plain_kernels(entry.file)
    return plain if entry.name in plain else (entry.name,)


@functools.lru_cache(maxsize=8)
def _program(file: str, names: tuple[str, ...], arch: str) -> tuple[bytes, dict[str, str], str]:
    """The cubin of kernels in a file, their symbols in it, and the output of the compiler."""
    check_architecture(arch)
    call, program = libraries.nvrtc().call, ctypes.c_void_p()
    at = ctypes.byref(program)
    # A program with the name of the file would include itself.
    call("nvrtcCreateProgram", at, source_of(file).encode(), f"{file}.cu".encode(), 0, None, None)
    try:
        for name in names:
            call("nvrtcAddNameExpression", program, name.encode())
        options = [*OPTIONS, f"--gpu-architecture={arch}", f"-I{SOURCES}", f"-I{ROOT}"]
        texts = (ctypes.c_char_p * len(options))(*map(str.encode, options))
        try:
            call("nvrtcCompileProgram", program, len(options), texts)
        except BackendError as error:
            log = _output(program, "nvrtcGetProgramLog").decode()
            what = ", ".join(names)
            raise BackendError(f"{what} does not compile for {arch}: {error}\n{log}") from error
        symbols = {}
        for name in names:
            symbol = ctypes.c_char_p()
            call("nvrtcGetLoweredName", program, name.encode(), ctypes.byref(symbol))
            symbols[name] = (symbol.value or b"").decode()
        log = _output(program, "nvrtcGetProgramLog").rstrip(b"\0").decode()
        return _output(program, "nvrtcGetCUBIN"), symbols, log
    finally:
        call("nvrtcDestroyProgram", at)


def _output(program: ctypes.c_void_p, name: str) -> bytes:
    """The bytes that a call writes, whose number another call returns."""
    size = ctypes.c_size_t()
    libraries.nvrtc().call(f"{name}Size", program, ctypes.byref(size))
    output = ctypes.create_string_buffer(size.value)
    libraries.nvrtc().call(name, program, output)
    return output.raw


def cache_folder() -> Path:
    """The folder of compiled kernels: in ``QMAPS_CACHE_DIR``, or in the user's cache folder."""
    if folder := os.environ.get("QMAPS_CACHE_DIR"):
        return Path(folder) / "cuda"
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "qmaps" / "cuda"


def _read(path: Path, entry: Entry) -> Compiled | None:
    """The cache's entry in this file; None if there is none or it is damaged."""
    try:
        stored = read_record(path)
        return Compiled(bytes.fromhex(stored["code"]), stored["symbols"][entry.name], stored["log"])
    except (ValueError, KeyError, TypeError):
        return None


def _digest(entry: Entry, arch: str) -> str:
    parts = [
        *(source_digest(), source_of(entry.file), entry.file, *_names(entry), arch),
        *(*OPTIONS, version()),
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
