"""Fixtures shared by all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(
    params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)],
)
def device(request: pytest.FixtureRequest) -> torch.device:
    """Each device that the reference runs on."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine")
    return torch.device(request.param)


@pytest.fixture(autouse=True)
def _few_threads_and_untouched_generator() -> Iterator[None]:
    """One thread a worker, and a check that nothing draws from torch's global generator."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
