"""Optimizers of every kind, on both engines of the processor."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from qmaps.engines import native
from qmaps.ops.backends import use_backend


@pytest.fixture(params=["reference", "native"])
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """The engine of the steps."""
    if request.param == "native" and native.core is None:
        pytest.skip("the native engine is not built here")
    with use_backend(request.param):
        yield request.param
