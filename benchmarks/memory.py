"""Memory of one optimizer in a fresh process: ``python -m benchmarks.memory METHOD``.

Prints JSON: `state`, bytes of state per parameter, and `peak`, MiB of a step above the memory
before it (null where the system does not report it).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.case import OURS, Options, reason, row
from benchmarks.cases.adamw import EIGHT, TORCH, ours
from benchmarks.data import gpt2, new_gradients, parameters
from benchmarks.peers import BITSANDBYTES, need
from benchmarks.process import in_fresh_process, peak
from qmaps import QuantizedTensor

Make = Callable[[list[Tensor]], torch.optim.Optimizer]
METHODS: dict[str, Make] = {
    OURS: lambda params: ours(params, EIGHT),
    **{
        name: lambda params, options=options: torch.optim.AdamW(params, **options)
        for name, options in TORCH.items()
    },
    BITSANDBYTES: lambda params: need("bitsandbytes").optim.AdamW8bit(params),
}
STATE, PEAK = "bytes of state per parameter", "MiB a step needs on top"
STATE_LIMIT, PEAK_LIMIT = 2.1, 4.0


@dataclass(frozen=True)
class MemoryCase:
    """Two rows: bytes of state, and the peak of a step.

    Attributes:
        name: name of the work.
    """

    name: str

    def measure(self, options: Options) -> list[dict[str, Any]]:
        """Both rows; a failed method is skipped with its reason."""
        measured: dict[str, dict[str, float | None]] = {}
        skipped: dict[str, str] = {}
        for name in METHODS:
            try:
                measured[name] = in_fresh_process(
                    "benchmarks.memory", name, "--scale", str(options.scale)
                )
            except RuntimeError as error:
                if name == OURS:
                    raise
                skipped[name] = str(error)
        peaks = {name: memory["peak"] for name, memory in measured.items()}
        unknown = {name: "the system does not tell" for name, mib in peaks.items() if mib is None}
        state = {name: [memory["state"]] for name, memory in measured.items()}
        peak_values = {name: [mib] for name, mib in peaks.items() if mib is not None}
        rows = [
            row(f"{self.name}: state", STATE, _floats(state), {}, skipped, limit=STATE_LIMIT),
            row(
                f"{self.name}: peak",
                PEAK,
                _floats(peak_values),
                {},
                skipped | unknown,
                limit=PEAK_LIMIT,
            ),
        ]
        # Sizes near zero have no meaningful ratio.
        rows[1]["ratios"] = {}
        return rows


def measure(method: str, scale: float) -> dict[str, float | None]:
    """Memory of this method, in this process."""
    params = parameters(gpt2(scale))
    optimizer = METHODS[method](params)
    refresh = new_gradients(params)
    for number in range(2):
        refresh(number)
        optimizer.step()
    state = state_bytes(optimizer.state.values()) / sum(p.numel() for p in params)
    return {"state": state, "peak": peak(optimizer.step)}


def state_bytes(states: Iterable[Mapping[str, Any]]) -> int:
    """Bytes of all tensors of these states; a shared tensor is counted once."""
    storages: dict[int, int] = {}
    for state in states:
        for value in state.values():
            packed = isinstance(value, QuantizedTensor)
            for tensor in (value.packed, *value.scales) if packed else (value,):
                if isinstance(tensor, Tensor):
                    storage = tensor.untyped_storage()
                    storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def _floats(values: Mapping[str, list[Any]]) -> dict[str, list[float]]:
    return {name: [float(value) for value in row] for name, row in values.items()}


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("--scale", type=float, default=1.0, help="size of the model; 1 is full")
    options = parser.parse_args()
    try:
        print(json.dumps(measure(options.method, options.scale)))
    except Exception as error:
        raise SystemExit(reason(error)) from None


if __name__ == "__main__":
    main()
