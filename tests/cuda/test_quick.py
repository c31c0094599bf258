"""Quotients and roots without checks have the bits of IEEE's."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from qmaps.cuda.source import source_of
from tests.cuda.emulation import EmulatedEngine, build

pytestmark = pytest.mark.slow

SOURCE = """
extern "C" void run(const float* x, const float* d, float* quotient, float* root, int count) {
    for (int i = 0; i < count; ++i) {
        quotient[i] = QuickDivisor(d[i]).under(x[i]);
        root[i] = quick_root(d[i]);
    }
}
"""


def test_quotients_and_roots(device: EmulatedEngine) -> None:
    library = build(source_of("quick.cuh"), SOURCE, device.folder)
    generator = np.random.default_rng(0)
    count = 1 << 20
    x, d = (
        (generator.uniform(1, 2, count) * 2.0 ** generator.integers(-60, 60, count)).astype("f4")
        for _ in range(2)
    )
    x[:2] = 0.0, -0.0
    x[2:] *= generator.choice(np.array([-1, 1], dtype="f4"), count - 2)
    quotient, root = np.empty_like(x), np.empty_like(x)
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (x, d, quotient, root)]
    library.run(*pointers, count)
    assert np.array_equal(quotient.view("u4"), (x / d).view("u4"))
    assert np.array_equal(root.view("u4"), np.sqrt(d).view("u4"))
