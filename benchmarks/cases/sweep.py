"""A sweep of the standard quantizers over states like those of Adam."""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.case import OURS, Case, Setup, UnavailableError
from benchmarks.data import generator
from benchmarks.peers import with_backend
from benchmarks.timing import Work
from qmaps.distribution import install

REFERENCE = "qmaps on the reference"


def make(scale: float) -> Setup:
    """Two matrices with both moments; a full sweep on the reference takes its time."""
    side = max(80, int(256 * scale**0.5))
    tensors = {}
    for index in range(2):
        noise = torch.randn(2, side, side, generator=generator(index))
        spread = noise[1].mean(1, keepdim=True).exp()
        tensors[f"layer{index}.weight"] = {
            "exp_avg": noise[0] * spread * 1e-3,
            "exp_avg_sq": (noise[1] * spread).square() * 1e-6,
        }

    def on(backend: str) -> Callable[[], Work]:
        def prepare() -> Work:
            try:
                from qmaps import sweep
                from qmaps.capture import CapturedStates
            except ImportError as error:
                raise UnavailableError(f"{error}; {install('lab')}") from None
            states = CapturedStates.from_tensors(tensors, optimizer="AdamW")
            pairs = sweep.STANDARD if scale >= 0.1 else sweep.STANDARD[:4]

            def work() -> object:
                with with_backend(backend):
                    return sweep.run(states, pairs)

            with with_backend(backend):
                return work

        return prepare

    return Setup({OURS: on("native"), REFERENCE: on("reference")}, elements=2 * 2 * side * side)


CASES = (Case("sweep of the standard pairs", make, {REFERENCE: 20}),)
