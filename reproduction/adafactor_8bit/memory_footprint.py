"""Memory footprint: bytes of optimizer states of published models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from qmaps import optim
from qmaps.optim import QuantizedOptimizer
from reproduction.claim import Claim
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.memory import architectures
from reproduction.numbers import number, percent

Make = Callable[[list[Tensor]], QuantizedOptimizer]


def _adafactor(**options: Any) -> Make:
    return lambda params: optim.Adafactor8bit(params, **options)


OURS, PEER, PLAIN = "Adafactor8bit", "AdamW8bit", "Adafactor, 32 bits"
RANK_1, RANK_256 = "APOLLO, rank 1", "APOLLO, rank 256"
FIRST = "Adafactor8bit, first moment"
OPTIMIZERS: dict[str, Make] = {
    "AdamW, 32 bits": lambda params: optim.AdamW(params, state_quantizers=None),
    PEER: lambda params: optim.AdamW8bit(params),
    "AdamW4bitFactor": lambda params: optim.AdamW4bitFactor(params),
    PLAIN: lambda params: optim.Adafactor(params),
    OURS: _adafactor(),
    FIRST: _adafactor(beta1=0.9),
    "Adafactor8bit, not factored": _adafactor(factored=False),
    RANK_256: _adafactor(apollo_rank=256),
    RANK_1: _adafactor(apollo_rank=1, apollo_scale_type="tensor"),
}


def build(_: Context) -> Frames:
    """Bytes of all states, as the optimizers themselves give them for parameters without data."""
    rows = []
    for name, model in architectures().items():
        params = [torch.empty(shape, device="meta", requires_grad=True)
                  for _, shape in model.shapes()]  # fmt: skip
        nbytes = {label: make(params).memory().nbytes for label, make in OPTIMIZERS.items()}
        rows += [
            {"model": name, "optimizer": label, "parameters": model.parameters, "state_bytes": size,
             "bytes_per_parameter": size / model.parameters}
            for label, size in nbytes.items()
        ]  # fmt: skip
    return {"states": pd.DataFrame(rows)}


def find(frames: Frames) -> Finding:
    """The page's claims, model by model."""
    table = frames["states"].pivot(
        index="model", columns="optimizer", values="bytes_per_parameter"
    )[list(OPTIMIZERS)]
    saved = 1 - table[OURS] / table[PLAIN]
    return Finding(
        statements=[
            Claim(
                "State memory is lower than that of AdamW8bit.",
                bool((table[OURS] < table[PEER]).all()),
                f"In {int((table[OURS] < table[PEER]).sum())} of {len(table)} models; at most "
                f"{number(float(table[OURS].max()))} bytes per parameter against at least "
                f"{number(float(table[PEER].min()))}. With a first moment: up to "
                f"{number(float(table[FIRST].max()))}.",
            ),
            Claim(
                "Both do it: the factorization and the quantization to 8 bits.",
                bool((table[OURS] < table[PLAIN]).all()),
                f"The factorization leaves at most {number(float(table[PLAIN].max()))} of 8 bytes "
                f"per parameter; 8 bits save {percent(float(saved.min()))} to "
                f"{percent(float(saved.max()))} of those.",
            ),
            Claim(
                "APOLLO with rank 1 takes less than the factored path.",
                bool((table[RANK_1] < table[OURS]).all()),
                f"In {int((table[RANK_1] < table[OURS]).sum())} of {len(table)} models.",
            ),
            Claim(
                "APOLLO with rank 256 keeps the memory extremely low.",
                bool((table[RANK_256] < table[PEER]).all()),
                f"{number(float(table[RANK_256].min()))} to {number(float(table[RANK_256].max()))} "
                "bytes per parameter: less than AdamW8bit, more than the factored path.",
            ),
        ],
        why="Bytes of states as the optimizers of qmaps predict them (`optimizer.memory()`), "
        "scales included, with their own defaults: states of at most 4096 elements stay in 32 "
        "bits, so few means of rows and columns are quantized at all. Projections are drawn anew, "
        "not stored. Extremely low is taken as less than AdamW8bit. The states of a factored "
        "optimizer are so small beside weights and gradients that quantizing them hardly matters; "
        "where a first moment is kept, or nothing is factored, it does.",
        tables={"bytes-per-parameter": table.reset_index(), "states": frames["states"]},
    )


EXHIBIT = Exhibit(
    name="memory-footprint",
    covers=("Memory Footprint",),
    title="Bytes of optimizer states per parameter of published models",
    needs=Needs.NOTHING,
    source="the shapes of published models",
    build=build,
    find=find,
    place=3,
)
