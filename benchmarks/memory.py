"""Memory of one optimizer in a fresh process: ``python -m benchmarks.memory CONTENDER``.

Prints JSON: `state`, bytes of state per parameter, and `peak`, MiB that a step needs beyond what
was there before it (null where the system does not say).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.case import OURS, Options, reason, row
from benchmarks.cases.adamw import EIGHT, TORCH, ours
from benchmarks.data import gpt2, new_gradients, parameters
from benchmarks.peers import BITSANDBYTES, need
from qmaps import QuantizedTensor

Make = Callable[[list[Tensor]], torch.optim.Optimizer]
CONTENDERS: dict[str, Make] = {
    OURS: lambda params: ours(params, EIGHT),
    **{
        name: lambda params, options=options: torch.optim.AdamW(params, **options)
        for name, options in TORCH.items()
    },
    BITSANDBYTES: lambda params: need("bitsandbytes").optim.AdamW8bit(params),
}
STATE, PEAK = "bytes of state per parameter", "MiB a step needs on top"
STATE_LIMIT, PEAK_LIMIT = 2.1, 4.0
# Temporary arrays come from the system and go back to it, so that the peak shows them.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


@dataclass(frozen=True)
class MemoryCase:
    """Two rows: bytes of state, and the peak of a step.

    Attributes:
        name: what is done.
    """

    name: str

    def measure(self, options: Options) -> list[dict[str, Any]]:
        """Both rows; a contender that fails is skipped with its reason."""
        measured: dict[str, dict[str, float | None]] = {}
        skipped: dict[str, str] = {}
        for name in CONTENDERS:
            try:
                measured[name] = in_fresh_process(
                    "benchmarks.memory", name, "--scale", str(options.scale)
                )
            except RuntimeError as error:
                if name == OURS:
                    raise
                skipped[name] = str(error)
        peaks = {name: each["peak"] for name, each in measured.items()}
        unknown = {name: "the system does not tell" for name, each in peaks.items() if each is None}
        state = {name: [each["state"]] for name, each in measured.items()}
        known = {name: [each] for name, each in peaks.items() if each is not None}
        rows = [
            row(f"{self.name}: state", STATE, _floats(state), {}, skipped, limit=STATE_LIMIT),
            row(
                f"{self.name}: peak", PEAK, _floats(known), {}, skipped | unknown, limit=PEAK_LIMIT
            ),
        ]
        # Sizes near zero have no meaningful ratio.
        rows[1]["ratios"] = {}
        return rows


def in_fresh_process(module: str, *arguments: str) -> dict[str, Any]:
    """The JSON that a module prints, alone in a process whose peaks show temporary arrays.

    Raises:
        RuntimeError: the process failed; the last line of its output says why.
    """
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=Path(__file__).parents[1],
        env={**os.environ, **ALLOCATOR},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise RuntimeError(lines[-1])
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure(contender: str, scale: float) -> dict[str, float | None]:
    """Memory of this contender, in this process."""
    params = parameters(gpt2(scale))
    optimizer = CONTENDERS[contender](params)
    refresh = new_gradients(params)
    for number in range(2):
        refresh(number)
        optimizer.step()
    state = state_bytes(optimizer.state.values()) / sum(p.numel() for p in params)
    return {"state": state, "peak": peak(optimizer.step)}


def state_bytes(states: Iterable[Mapping[str, Any]]) -> int:
    """Bytes of all tensors of these states; a tensor that several share is counted once."""
    storages: dict[int, int] = {}
    for state in states:
        for value in state.values():
            packed = isinstance(value, QuantizedTensor)
            for tensor in (value.packed, *value.scales) if packed else (value,):
                if isinstance(tensor, Tensor):
                    storage = tensor.untyped_storage()
                    storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def peak(work: Callable[[], object]) -> float | None:
    """MiB by which the resident memory rises at most during `work`; None if unknown."""
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
        before = _status("VmRSS")
        work()
        return max(0.0, (_status("VmHWM") - before) / 1024)
    except (OSError, LookupError):
        return None


def resident() -> float | None:
    """MiB of this process in memory; None if unknown."""
    try:
        return _status("VmRSS") / 1024
    except (OSError, LookupError):
        return None


def _status(field: str) -> int:
    """A size of this process in KiB."""
    text = Path("/proc/self/status").read_text()
    if not (match := re.search(rf"^{field}:\s+(\d+) kB", text, re.MULTILINE)):
        raise LookupError(field)
    return int(match[1])


def _floats(values: Mapping[str, list[Any]]) -> dict[str, list[float]]:
    return {name: [float(value) for value in row] for name, row in values.items()}


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("contender", choices=CONTENDERS)
    parser.add_argument("--scale", type=float, default=1.0, help="size of the model; 1 is full")
    options = parser.parse_args()
    try:
        print(json.dumps(measure(options.contender, options.scale)))
    except Exception as error:
        raise SystemExit(reason(error)) from None


if __name__ == "__main__":
    main()
