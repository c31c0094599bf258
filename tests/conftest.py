"""Fixtures shared by all tests."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread_a_worker() -> None:
    """Workers share the cores; torch's own threads would only get in their way."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
