"""NVRTC and the CUDA driver through `ctypes`: their calls, and the paths that are tried."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from qmaps.errors import BackendError

_INT, _SIZE, _UNSIGNED, _TEXT = ctypes.c_int, ctypes.c_size_t, ctypes.c_uint, ctypes.c_char_p
_HANDLE = ctypes.c_void_p
_INT_AT, _SIZE_AT, _TEXT_AT, _HANDLE_AT = map(ctypes.POINTER, (_INT, _SIZE, _TEXT, _HANDLE))

Calls = dict[str, tuple[Any, ...]]

NVRTC: Calls = {
    "nvrtcVersion": (_INT_AT, _INT_AT),
    "nvrtcGetNumSupportedArchs": (_INT_AT,),
    "nvrtcGetSupportedArchs": (_INT_AT,),
    "nvrtcCreateProgram": (_HANDLE_AT, _TEXT, _TEXT, _INT, _TEXT_AT, _TEXT_AT),
    "nvrtcAddNameExpression": (_HANDLE, _TEXT),
    "nvrtcCompileProgram": (_HANDLE, _INT, _TEXT_AT),
    "nvrtcGetProgramLogSize": (_HANDLE, _SIZE_AT),
    "nvrtcGetProgramLog": (_HANDLE, _TEXT),
    "nvrtcGetCUBINSize": (_HANDLE, _SIZE_AT),
    "nvrtcGetCUBIN": (_HANDLE, _TEXT),
    "nvrtcGetLoweredName": (_HANDLE, _TEXT, _TEXT_AT),
    "nvrtcDestroyProgram": (_HANDLE_AT,),
}
DRIVER: Calls = {
    "cuDeviceGet": (_INT_AT, _INT),
    "cuDevicePrimaryCtxRetain": (_HANDLE_AT, _INT),
    "cuCtxSetCurrent": (_HANDLE,),
    "cuModuleLoadData": (_HANDLE_AT, _TEXT),
    "cuModuleGetFunction": (_HANDLE_AT, _HANDLE, _TEXT),
    # The function; blocks and threads in three dimensions; bytes of shared memory beyond what the
    # kernel declares; stream, arguments and extra options.
    "cuLaunchKernel": (_HANDLE, *[_UNSIGNED] * 7, _HANDLE, _HANDLE_AT, _HANDLE_AT),
    "cuGetErrorName": (_INT, _TEXT_AT),
}
"""The types of the arguments of every call; all return a status, 0 for success."""


class Library:
    """A loaded library.

    Args:
        loaded: the library of `ctypes`.
        calls: the calls that are made, with the types of their arguments.

    Raises:
        BackendError: the library lacks one of the calls.
    """

    def __init__(self, loaded: Any, calls: Calls) -> None:
        self._calls: dict[str, Any] = {}
        for name, types in calls.items():
            try:
                self._calls[name] = function = getattr(loaded, name)
            except AttributeError:
                raise BackendError(f"{loaded._name} has no {name}; install a newer one") from None
            function.argtypes = types

    def call(self, name: str, *arguments: Any) -> None:
        """Make a call.

        Raises:
            BackendError: its status is not 0.
        """
        if status := self._calls[name](*arguments):
            raise BackendError(f"{name} returns {self._status(status)}")

    def _status(self, status: int) -> str:
        text = ctypes.c_char_p()
        if describe := self._calls.get("cuGetErrorName"):
            describe(status, ctypes.byref(text))
        return text.value.decode() if text.value else f"status {status}"


@functools.cache
def driver() -> Library:
    """The CUDA driver.

    Raises:
        BackendError: it cannot be loaded, or is too old.
    """
    try:
        return Library(ctypes.CDLL("libcuda.so.1"), DRIVER)
    except OSError as error:
        raise BackendError(f"the CUDA driver cannot be loaded: {error}") from error


@functools.cache
def nvrtc() -> Library:
    """NVIDIA's run-time compiler, of torch's version of CUDA if torch has one.

    Raises:
        BackendError: it cannot be loaded, or is too old.
    """
    majors = [int(torch.version.cuda.split(".")[0])] if torch.version.cuda else [13, 12]
    reasons = []
    for path, mode in (each for major in majors for each in _paths(major)):
        try:
            return Library(ctypes.CDLL(path, mode=mode), NVRTC)
        except OSError as error:
            reasons.append(str(error))
    wheel = "nvidia-cuda-nvrtc" + (f"-cu{majors[0]}" if majors[0] < 13 else "")
    raise BackendError(
        f"NVRTC cannot be loaded ({', '.join(dict.fromkeys(reasons))}); pip install {wheel}"
    )


def _paths(major: int) -> Iterator[tuple[str, int]]:
    """Paths of NVRTC with the mode of loading: loaded already, in wheels, and of the system."""
    name = f"libnvrtc.so.{major}"
    yield name, getattr(os, "RTLD_NOLOAD", 0)  # which Windows lacks
    for package in ("nvidia", "torch"):
        spec = importlib.util.find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            for pattern in ("lib", "*/lib"):
                for path in sorted(Path(folder).glob(f"{pattern}/{name}")):
                    yield str(path), ctypes.DEFAULT_MODE
    yield name, ctypes.DEFAULT_MODE
