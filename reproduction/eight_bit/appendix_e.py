"""Appendix E: quantile quantization of normal numbers."""

from __future__ import annotations

import pandas as pd
import torch

import qmaps
from reproduction.claim import Claim, published
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Finding, Frames, Kind, Needs
from reproduction.numbers import number
from reproduction.verdict import beside

SIZES = (1 << 12, 1 << 18, 1 << 24)
"""Numbers of elements; the last is left out of a small run."""
MAPS = {"dynamic": "tensor/DE@8s", "quantile": "tensor/quantile@8s"}
QUANTITY = "average error, times that of quantiles"


def build(context: Context) -> Frames:
    """Errors of both maps on normal numbers."""
    rows = []
    for size in SIZES[: 2 + (not context.quick)]:
        x = torch.randn(size, generator=torch.Generator().manual_seed(0))
        for name, spec in MAPS.items():
            error = (qmaps.quantizer(spec).quantize(x).dequantize() - x).abs()
            mean, largest = float(error.double().mean()), float(error.max())
            rows.append({"elements": size, "map": name, "mean": mean, "largest": largest})
    return {"errors": pd.DataFrame(rows)}


def find(frames: Frames) -> Finding:
    """Quantiles beside the dynamic map."""
    table = frames["errors"].pivot(index="elements", columns="map")
    mean = table["mean", "dynamic"] / table["mean", "quantile"]
    largest = table["largest", "quantile"] / table["largest", "dynamic"]
    said = ", ".join(f"{number(error)} with {size:,}" for size, error in largest.items())
    ours = {("dynamic", QUANTITY): float(mean.iloc[-1])}
    grows = ", ".join(f"{number(error)} with {size:,}" for size, error in mean.items())
    return Finding(
        numbers=beside(published("8-bit-optimizers", EXHIBIT.name), ours),
        statements=[
            Claim(
                "Quantile quantization has sporadic large errors.",
                bool((largest > 2).all()),
                f"Its largest error is so many times the dynamic map's: {said} numbers.",
            )
        ],
        why="Normal numbers, one scale for all; quantiles are those of the numbers themselves. The "
        "dynamic map's average error grows with the largest of the numbers, and so with how many "
        f"there are: {grows} times that of quantiles.",
        tables={"errors": frames["errors"]},
    )


EXHIBIT = Exhibit(
    name="appendix-e",
    covers=("Appendix E",),
    title="Errors of the maps on normal numbers",
    needs=Needs.NOTHING,
    kind=Kind.MEASURED,
    source="normal numbers (seed 0)",
    build=build,
    find=find,
)
