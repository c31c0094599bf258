"""Fixtures shared by all tests."""

from __future__ import annotations

import signal

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread_a_worker() -> None:
    """Workers share the cores; torch's own threads would only get in their way."""
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _interruptible() -> None:
    """Ctrl-C is a KeyboardInterrupt also where the shell started this in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
