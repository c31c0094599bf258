"""CUDA kernels without a GPU: emulated on the processor, and compiled by NVRTC."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cuda import emulation


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> emulation.EmulatedEngine:
    """An engine for kernels on CPU tensors."""
    if emulation.CXX is None:
        pytest.skip("no C++ compiler to emulate kernels with")
    return emulation.EmulatedEngine(request.config.cache.mkdir("cuda-emulation"))


@pytest.fixture
def on_device(device: emulation.EmulatedEngine) -> Iterator[emulation.EmulatedEngine]:
    """CPU tensors run as CUDA tensors would."""
    with emulation.emulated(device):
        device.launched.clear()
        yield device
