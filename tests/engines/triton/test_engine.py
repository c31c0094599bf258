"""The choice of the Triton engine, and its refusals. Few of these tests need Triton."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Any

import pytest
import torch

import qmaps
from qmaps import optim
from qmaps.engines.triton import engine
from qmaps.engines.triton import plan as plans
from qmaps.errors import BackendError, BadValueError
from qmaps.ops.backends import cuda_engine_on, triton_engine_on, use_backend
from tests.engines.triton.steps import Pair


def test_cpu_tensors_import_no_triton() -> None:
    code = (
        "import sys, torch, qmaps\n"
        "qmaps.quantizer('B64/DE@4s').quantize(torch.ones(5000)).dequantize()\n"
        "assert 'triton' not in sys.modules\n"
        "p = torch.nn.Parameter(torch.ones(5000)); p.grad = torch.ones(5000)\n"
        # torch's own base class of optimizers imports Triton where it is installed.
        "torch.optim.SGD([p]); before = 'triton' in sys.modules\n"
        "qmaps.optim.AdamW8bit([p]).step()\n"
        "assert ('triton' in sys.modules) == before\n"
        "assert 'qmaps.engines.triton.helpers' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert engine.missing() == 'triton is not installed; pip install "torch-qmaps[triton]"'
    with pytest.raises(BadValueError, match="name='triton' is not available: triton is not inst"):
        use_backend("triton").__enter__()
    assert triton_engine_on(torch.device("cuda:0")) is None


def test_an_old_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    class Old:
        __version__ = "2.1.0"
        math = object()

    monkeypatch.setattr(importlib, "import_module", lambda name: Old)
    engine.unusable.cache_clear()
    assert engine.unusable() == "triton 2.1.0 is too old; version 3.2 or later is needed"
    engine.unusable.cache_clear()


def test_a_triton_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> Any:
        raise ImportError("libcuda.so.1: cannot open shared object file\nand more")

    monkeypatch.setattr(importlib, "import_module", refuse)
    engine.unusable.cache_clear()
    assert engine.unusable() == (
        "triton cannot be imported: ImportError: libcuda.so.1: cannot open shared object file"
    )
    engine.unusable.cache_clear()


def test_an_interpreter_that_is_turned_on_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "interpreted", lambda: False)
    monkeypatch.setattr(engine, "unusable", lambda: "")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert engine.missing() == (
        "TRITON_INTERPRET was changed after triton was imported, which torch's optimizers do"
    )


def test_cpu_tensors_need_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert triton_engine_on(torch.device("cpu")) is None
    assert triton_engine_on(torch.device("meta")) is None


@pytest.mark.parametrize(
    ("cuda", "wanted", "also", "runs"),
    [
        (None, "", False, True),  # such as AMD's GPUs, or without NVRTC
        (object(), "", False, False),
        (object(), "", True, True),  # for rules without CUDA kernels
        (object(), "triton", False, True),
        (None, "cuda", False, True),
        (None, "reference", False, False),
    ],
)
def test_the_engine_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch, cuda: object, wanted: str, also: bool, runs: bool
) -> None:
    from qmaps.ops import backends

    device = torch.device("cuda:0")
    monkeypatch.setattr(backends.cuda, "engine_of", lambda device: cuda)
    monkeypatch.setattr(backends, "_wanted", lambda: wanted)
    monkeypatch.setattr(backends, "trusted", lambda name, device: True)
    monkeypatch.setattr(backends.triton, "missing", lambda: "")
    assert (triton_engine_on(device, also=also) == device) == runs
    assert (cuda_engine_on(device) is not None) == (cuda is not None and wanted == "")


def test_an_engine_that_is_not_trusted_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from qmaps.ops import backends

    monkeypatch.setattr(backends.cuda, "engine_of", lambda device: object())
    monkeypatch.setattr(backends, "trusted", lambda name, device: False)
    monkeypatch.setattr(backends.triton, "missing", lambda: "")
    assert cuda_engine_on(torch.device("cuda:0")) is None
    assert triton_engine_on(torch.device("cuda:0")) is None


def test_a_graph_cannot_be_recorded(monkeypatch: pytest.MonkeyPatch, interpreter: None) -> None:
    pair = Pair(optim.SGD, (8,), "float32", momentum=0.9)
    monkeypatch.setattr(plans, "capturing", lambda device: True)
    with pytest.raises(BackendError, match="cannot record step\\(\\) in a CUDA graph"):
        pair.step(0)
    assert "step" not in pair.ours.state[pair.params[0][0]] or not float(
        pair.ours.state[pair.params[0][0]]["step"]
    )


def test_a_kernel_that_does_not_compile(monkeypatch: pytest.MonkeyPatch, interpreter: None) -> None:
    pair = Pair(optim.SGD, (9,), "float32", momentum=0.9)
    monkeypatch.setattr(engine.source, "text_of", lambda *args, **kwargs: "kernel = None\n")
    engine._kernel.cache_clear()
    with pytest.raises(BackendError, match=r"a Triton kernel failed on cpu: TypeError: .*; QMAPS_"):
        pair.step(0)


def test_deterministic_algorithms(interpreter: None) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        pair = Pair(optim.AdamW, (20,), "float32", state_quantizers="8bit")
        pair.step(0)
        pair.check()
    finally:
        torch.use_deterministic_algorithms(False)


def test_backends_have_a_reason() -> None:
    (triton,) = [backend for backend in qmaps.backends() if backend.name == "triton"]
    assert triton.reason
