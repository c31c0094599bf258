"""A missing extension: its warning, given once, and the command that repairs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import qmaps
from qmaps.engines import native
from qmaps.engines.native import build
from qmaps.errors import BackendWarning
from qmaps.ops.backends import use_backend

pytestmark = pytest.mark.slow


def tree(folder: Path) -> Path:
    """A source tree; return its package."""
    package = folder / "my tree" / "qmaps"
    (package / "engines/native").mkdir(parents=True)
    (package / "engines/native/CMakeLists.txt").touch()
    (package.parent / "pyproject.toml").touch()
    return package


@pytest.mark.parametrize(
    ("record", "command"),
    [
        (None, "--no-binary torch-qmaps torch-qmaps"),
        ({"url": "file:///q.whl", "archive_info": {}}, "--no-binary torch-qmaps torch-qmaps"),
        ({"url": "file:///x/my tree", "dir_info": {}}, "'torch-qmaps @ file:///x/my tree'"),
        ({"url": "https://h/q.git", "vcs_info": {"vcs": "git"}}, "'torch-qmaps @ git+https://h/q.git'"),
    ],
)  # fmt: skip
def test_the_command_rebuilds_the_installation(
    record: object, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = None if record is None else json.dumps(record)
    monkeypatch.setattr(build, "distribution", lambda _: SimpleNamespace(read_text=lambda _: text))
    start = "pip install --force-reinstall --no-deps --no-cache-dir "
    assert build.command(tmp_path) == start + command
    package = tree(tmp_path)
    assert build.command(package) == f"pip install --editable '{package.parent}'"


@pytest.fixture
def without_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "core", None)
    monkeypatch.setattr(build, "_told", False)
    monkeypatch.delenv("QMAPS_BACKEND", raising=False)


def used() -> None:
    weight = torch.nn.Parameter(torch.zeros(80, 80))
    optimizer = qmaps.optim.AdamW8bit([weight])
    weight.grad = torch.ones(80, 80)
    optimizer.step()
    qmaps.quantizer("B64/quantile@4s").quantize(torch.randn(128))
    qmaps.quantiles.exact(torch.randn(128), num=4)


@pytest.mark.usefixtures("without_engine")
def test_a_missing_engine_warns_once_at_its_first_use() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert qmaps.backend() == "reference"  # only asked, nothing runs
        assert not caught
        used()
        used()
    (warning,) = caught
    assert warning.category is BackendWarning
    assert str(warning.message) == (
        "the native engine of qmaps is missing, so CPU tensors are quantized and stepped by plain "
        f"PyTorch: with the same results, but {build.SLOWER}. To repair, install a C++20 compiler "
        f"and run: {build.command()}"
    )


@pytest.mark.usefixtures("without_engine")
def test_the_reference_by_choice_gives_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with use_backend("reference"):
            used()
        monkeypatch.setenv("QMAPS_BACKEND", "reference")
        used()
        monkeypatch.delenv("QMAPS_BACKEND")
        meta = torch.nn.Parameter(torch.zeros(80, device="meta"))
        meta.grad = torch.zeros(80, device="meta")
        qmaps.optim.AdamW([meta]).step()  # no CPU tensor


@pytest.mark.usefixtures("without_engine")
@pytest.mark.parametrize("work", ["step", "quantize", "quantiles", "fit"])
def test_each_use_warns(work: str) -> None:
    x = torch.randn(128)
    weight = torch.nn.Parameter(torch.zeros(80))
    weight.grad = torch.ones(80)
    calls = {
        "step": qmaps.optim.AdamW([weight]).step,
        "quantize": lambda: qmaps.quantizer("B64/DE@4s").quantize(x),
        "quantiles": lambda: qmaps.quantiles.exact(x, num=4),
        "fit": lambda: qmaps.quantizer("B64/lloyd@4s").fit(x),
    }
    with pytest.warns(BackendWarning, match="the native engine of qmaps is missing"):
        calls[work]()


def test_a_copy_without_the_extension_warns_once_and_every_module_can_be_imported() -> None:
    program = (
        "import importlib, pkgutil, sys, torch\n"
        "sys.modules['qmaps.engines.native._core'] = None\n"
        "import qmaps\n"
        "names = [each.name for each in pkgutil.walk_packages(qmaps.__path__, 'qmaps.')]\n"
        "for name in names:\n"
        "    if not name.endswith(('__main__', '_core')):\n"
        "        importlib.import_module(name)\n"
        "print(len(names) > 300)\n"
        "q = qmaps.quantizer('B64/DE@4s')\n"
        "print(len([q.quantize(torch.ones(64)) for _ in range(3)]))"
    )
    command = [sys.executable, "-c", program]
    env = {name: value for name, value in os.environ.items() if name != "QMAPS_BACKEND"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.stdout == "True\n3\n", done.stderr
    assert done.stderr.count("BackendWarning: the native engine of qmaps is missing") == 1
