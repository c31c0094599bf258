"""Skips the tests if there is no GPU, with the reason."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from qmaps.cuda import engine


@pytest.fixture(autouse=True)
def _on_a_device() -> Iterator[None]:
    """A device with an engine; an error of an earlier test must not surface in this one."""
    if reason := engine.missing():
        pytest.skip(reason)
    yield
    torch.cuda.synchronize()
