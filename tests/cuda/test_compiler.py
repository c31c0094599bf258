"""NVRTC compiles kernels without a GPU, and errors name missing parts."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import qmaps
from benchmarks.gpu.kernels import usage
from qmaps.cuda import compiler, engine, libraries
from qmaps.cuda.compiler import Entry, kernel
from qmaps.errors import BackendError, BadValueError
from qmaps.ops.backends import Backend, cuda_engine, use_backend

pytestmark = pytest.mark.slow

needs_nvrtc = pytest.mark.skipif(bool(compiler.missing()), reason=compiler.missing())
GRIDS = kernel("new_tensor_grids")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("QMAPS_CACHE_DIR", str(tmp_path))
    return tmp_path / "cuda"


@needs_nvrtc
def test_compiled_kernels_are_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compiler.compiled(GRIDS, "sm_90")
    (cached,) = cache.iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(compiler, "_program", lambda *_: pytest.fail("compiled again"))
        assert compiler.compiled(GRIDS, "sm_90") == first
        # It has all kernels of its file except templates.
        assert compiler.compiled(kernel("find_tensor_ends"), "sm_90").code == first.code
        assert usage(first)["registers"] > 10
    cached.write_text("{half of a")
    assert compiler.compiled(GRIDS, "sm_90").code == first.code
    assert json.loads(cached.read_text())["symbols"][str(GRIDS)] == first.symbol


@needs_nvrtc
def test_a_cache_that_cannot_be_written_costs_nothing_but_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("QMAPS_CACHE_DIR", str(tmp_path / "file"))
    assert compiler.compiled(GRIDS, "sm_90").code


@needs_nvrtc
def test_compile_errors_are_reported() -> None:
    with pytest.raises(BackendError, match=r"arch='sm_70' is not supported by this NVRTC"):
        compiler.compile_now(GRIDS, "sm_70")
    with pytest.raises(BackendError, match=r"nothing<1> does not compile for sm_90"):
        compiler.compile_now(Entry("step.cuh", "nothing<1>"), "sm_90")


def test_missing_parts_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        cuda = qmaps.backends()[2]
        assert not cuda.available
        assert cuda.reason in {
            f"torch {torch.__version__} is built without CUDA",
            "torch finds no CUDA device or driver",
        }
        with pytest.raises(BadValueError, match=r"name='cuda' is not available: torch"):
            use_backend("cuda").__enter__()
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert engine.missing() == "torch finds no CUDA device or driver"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    if not compiler.missing():
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (5, 0))
        assert engine.missing().startswith("no device has an architecture that this NVRTC knows: ")


def test_rocm_is_not_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "torch 2.13.0+rocm7.2 is built for ROCm 7.2.5, not for CUDA"
    monkeypatch.setattr(torch, "__version__", "2.13.0+rocm7.2")
    monkeypatch.setattr(torch.version, "hip", "7.2.5")
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert qmaps.backends()[2] == Backend("cuda", available=False, reason=reason)
    assert engine.engine_of.__wrapped__(torch.device("cuda", 0)) is None
    with pytest.raises(BadValueError) as caught:
        use_backend("cuda").__enter__()
    assert str(caught.value) == f"name='cuda' is not available: {reason}"


@needs_nvrtc
def test_nvrtc_is_all_that_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cuda", "cuda.core", "cuda.bindings"):
        monkeypatch.setitem(sys.modules, name, None)
    library = libraries.nvrtc.__wrapped__()
    monkeypatch.setattr(libraries, "nvrtc", lambda: library)
    assert compiler.architectures.__wrapped__() == compiler.architectures()
    compiler._program.cache_clear()
    assert compiler.compile_now(GRIDS, "sm_90").code.startswith(b"\x7fELF")


@pytest.mark.skipif(sys.platform != "linux", reason="names of libraries are those of Linux")
@pytest.mark.parametrize(("version", "wheel"), [("13.0", ""), ("12.8", "-cu12")])
def test_nvrtc_is_looked_for(
    version: str, wheel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"libnvrtc.so.{version[:2]}"
    path = tmp_path / "cu13" / "lib" / name
    path.parent.mkdir(parents=True)
    path.touch()
    tried = []

    def load(name: str, mode: int) -> None:
        tried.append((name, mode))
        raise OSError(f"{Path(name).name}: no such file")

    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    find = {"nvidia": spec}.get
    monkeypatch.setattr(importlib.util, "find_spec", find)
    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.setattr(torch.version, "cuda", version)
    monkeypatch.setattr(libraries, "nvrtc", libraries.nvrtc.__wrapped__)
    assert compiler.missing() == (
        f"NVRTC cannot be loaded ({name}: no such file); pip install nvidia-cuda-nvrtc{wheel}"
    )
    default = ctypes.DEFAULT_MODE
    assert tried == [
        (name, os.RTLD_NOLOAD),
        (str(path), default),
        (name, default),
    ]


def test_devices_must_be_one() -> None:
    q = qmaps.quantizer("B64/DE@8s")
    quantized = q.quantize(torch.randn(100))
    mixed = qmaps.QuantizedTensor(q, (100,), quantized.packed.to("meta"), quantized.scales)
    with pytest.raises(BadValueError) as caught:
        mixed.dequantize()
    assert str(caught.value) == "scales are on cpu and codes on meta; move both to one device"
    with pytest.raises(BadValueError, match="out must be on cpu, got meta"):
        q.quantize(torch.randn(100), out=mixed)
    assert cuda_engine(quantized.packed, mixed.packed) is None
