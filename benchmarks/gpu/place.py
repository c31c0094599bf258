"""The device of a run, with its limits of memory and time."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from benchmarks.gpu.clock import DeviceClock
from benchmarks.timing import WARM_UPS, Clock, stopwatch

LEAST = 1 << 16
"""Elements of the smallest work; all of its matrices are large enough to be quantized."""
USED = 0.8
"""Share of the free memory for a case; fragments and the allocator need the rest."""


@dataclass(frozen=True)
class Place:
    """Device and limits of cases.

    Attributes:
        device: a CUDA device, or the CPU for a dry run.
        scale: size of the work; 1 is full.
        rounds: counted rounds.
        budget: seconds for each method; a slower one stops early.
        seconds: seconds of a case; after them no new round begins.
        patience: timeout of a single call in seconds.
        dry: call everything once, as a test without meaningful times.
    """

    device: torch.device
    scale: float = 1.0
    rounds: int = 9
    budget: float = 2.0
    seconds: float = 10.0
    patience: float = 45.0
    dry: bool = False

    @property
    def on_gpu(self) -> bool:
        """True if there is a device to be measured."""
        return self.device.type == "cuda"

    @property
    def clock(self) -> Clock:
        """Clock of a turn."""
        return DeviceClock(self.patience) if self.on_gpu else stopwatch

    @property
    def warm_ups(self) -> int:
        """Rounds before the counted ones."""
        return 0 if self.dry else WARM_UPS

    def elements(self, full: int, nbytes: float) -> int:
        """Number of elements of a work: its full size, scaled, or fewer to fit into memory.

        Args:
            full: elements at full size.
            nbytes: bytes per element, for all methods together.
        """
        wanted = int(full * self.scale)
        if self.on_gpu:
            free, _ = torch.cuda.mem_get_info(self.device)
            wanted = min(wanted, int(USED * free / nbytes))
        return max(LEAST, wanted)

    def forget(self) -> None:
        """Release unused memory."""
        if self.on_gpu:
            torch.cuda.empty_cache()

    def broken(self) -> bool:
        """True if this process can no longer use the device, after a failed kernel."""
        try:
            if self.on_gpu:
                torch.cuda.synchronize(self.device)
        except Exception:
            return True
        return False
