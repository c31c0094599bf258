from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator

import pytest
import torch

if path := os.environ.get("QMAPS_TEST_CORE"):
    # Another build of the extension than the installed one, such as that of `make sanitize`.
    spec = importlib.util.spec_from_file_location("qmaps.engines.native._core", path)
    sys.modules["qmaps.engines.native._core"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

from qmaps.engines import native

if native.core is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(params=native.isas())
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each instruction set of this processor."""
    monkeypatch.setenv("QMAPS_ISA", request.param)
    monkeypatch.setenv("QMAPS_BACKEND", "native")
    return request.param


@pytest.fixture
def each_isa(
    monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> Callable[[], Iterator[str]]:
    """The same sets one after another, for tests with one result of the reference.

    `make test` takes the best one alone.
    """
    monkeypatch.setenv("QMAPS_BACKEND", "native")
    best = pytestconfig.option.markexpr == "not slow"

    def each() -> Iterator[str]:
        for isa in native.isas()[: 1 if best else None]:
            monkeypatch.setenv("QMAPS_ISA", isa)
            yield isa

    return each


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> int:
    """Thread counts; small tensors are split between threads as well."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    patch = pytest.MonkeyPatch()
    patch.setattr("qmaps.engines.native.tensors.FEW", 1)
    yield request.param
    patch.undo()
    torch.set_num_threads(before)
