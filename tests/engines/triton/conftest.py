"""Triton's interpreter for the tests of this folder that run kernels."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest


@pytest.fixture
def interpreter(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run kernels on CPU tensors, in Triton's interpreter."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed: pip install torch-qmaps[triton]")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    from qmaps.ops.backends import use_backend

    with use_backend("triton"):
        yield
