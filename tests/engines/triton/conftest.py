"""Triton's interpreter for tests with kernels."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

from qmaps.engines.triton import engine
from qmaps.ops.backends import use_backend


@pytest.fixture
def interpreter() -> Iterator[None]:
    """Run kernels on CPU tensors in the interpreter; tests/conftest.py turns it on."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed: pip install torch-qmaps[triton]")
    if not engine.interpreting():
        pytest.skip("there is a GPU, so the interpreter is off; TRITON_INTERPRET=1 turns it on")
    with use_backend("triton"):
        yield
