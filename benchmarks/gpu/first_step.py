"""``python -m benchmarks.gpu.first_step``: time of compiling for an optimizer's first step.

The kernels are the launched ones, recorded without a GPU. NVRTC compiles them as the engine does,
into an empty cache; then they are read from the cache.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence

import numpy as np
import torch

from qmaps import optim
from qmaps.cuda import compiler
from qmaps.cuda.compiler import Entry
from qmaps.cuda.engine import Engine, stand_in
from qmaps.errors import QmapsError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class RecordingEngine(Engine):
    """Launches nothing on CPU tensors; `entries` has the kernels."""

    def __init__(self) -> None:
        self.device, self.blocks = torch.device("cpu"), 1
        self.entries: dict[Entry, None] = {}

    def launch(self, entry: Entry, blocks: int, argument: np.ndarray) -> None:  # noqa: ARG002
        """Record a kernel."""
        self.entries[entry] = None


def kernels(optimizer: str, dtype: torch.dtype) -> list[Entry]:
    """Kernels of the first step of a matrix and a bias."""
    engine = RecordingEngine()
    token = stand_in.set(engine)
    try:
        params = [torch.zeros(shape, dtype=dtype) for shape in ((64, 128), (64,))]
        for p in params:
            p.grad = torch.ones_like(p)
        getattr(optim, optimizer)(params).step()
    finally:
        stand_in.reset(token)
    return list(engine.entries)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the kernels and the seconds, for parameters of each dtype."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.first_step")
    parser.add_argument("--arch", default="sm_90", help="default sm_90")
    parser.add_argument("--optimizer", default="AdamW8bit", help="default AdamW8bit")
    parser.add_argument("--each", action="store_true", help="one kernel after another, each timed")
    args = parser.parse_args(arguments)
    print(f"NVRTC {compiler.version()}, {args.arch}, {os.cpu_count()} processors")
    for name, dtype in DTYPES.items():
        entries = kernels(args.optimizer, dtype)
        with tempfile.TemporaryDirectory() as folder:
            os.environ["QMAPS_CACHE_DIR"] = folder
            compiler._program.cache_clear()
            for group in [[entry] for entry in entries] if args.each else [entries]:
                first, second = (_seconds(group, args.arch) for _ in range(2))
                print(f"{name}: {first:.1f} s, from the cache {second:.2f} s", *group, sep="\n  ")
    return 0


def _seconds(entries: list[Entry], arch: str) -> float:
    start = time.perf_counter()
    compiler.compile_all(entries, arch)
    return time.perf_counter() - start


if __name__ == "__main__":
    try:
        sys.exit(main())
    except QmapsError as error:
        sys.exit(str(error))
