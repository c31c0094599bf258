"""The devices for conformance tests: the CPU, and a CUDA device if there is one."""

from __future__ import annotations

import pytest
import torch

CUDA = [pytest.param("cuda", marks=pytest.mark.gpu)] if torch.cuda.is_available() else []


@pytest.fixture(params=["cpu", *CUDA])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)
