"""Figure 6: the maps."""

from __future__ import annotations

import pandas as pd

import qmaps
from qmaps import analyze, figures
from reproduction.claim import Claim
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.numbers import percent

MAPS = ("linear0@8s", "DE@8s", "quantile-normal@8s")
PAPERS_NAMES = dict(zip(MAPS, ("linear", "dynamic", "quantile (normal)"), strict=True))
SMALL = 0.01


def build(_: Context) -> Frames:
    """Codebooks."""
    return {"curves": analyze.map_curves(qmaps.quantizer(f"tensor/{name}").map for name in MAPS)}


def find(frames: Frames) -> Finding:
    """Test the positions of the codes."""
    curves = frames["curves"]
    small = curves["value"].abs().lt(SMALL).groupby(curves["map"]).mean()
    ends = curves.groupby("map")["value"].agg(["min", "max", "size"]).reset_index()
    detail = ", ".join(f"{name} {percent(small[name])}" for name in MAPS)
    return Finding(
        statements=[
            Claim(
                "Dynamic quantization keeps many codes for small values, linear hardly any.",
                bool(small["DE@8s"] > 10 * small["linear0@8s"]),
                f"Codes below a hundredth of the range: {detail}.",
            ),
            Claim(
                "All maps end at 1, and only those of linear and quantile at -1.",
                bool((ends["max"] == 1).all() and _starts(ends)),
            ),
        ],
        tables={"codebooks": curves.pivot(index="code", columns="map", values="value")
                .reset_index()},
    )  # fmt: skip


def _starts(ends: pd.DataFrame) -> bool:
    lowest = ends.set_index("map")["min"]
    return bool(lowest["linear0@8s"] == lowest["quantile-normal@8s"] == -1 < lowest["DE@8s"])


EXHIBIT = Exhibit(
    name="figure-6",
    covers=("Figure 6",),
    title="The maps: linear, dynamic, and quantiles of the normal distribution",
    needs=Needs.NOTHING,
    build=build,
    find=find,
    draw=lambda frames: {
        "figure-6": figures.map_curves(frames["curves"].replace({"map": PAPERS_NAMES}))
    },
    captions={
        "figure-6": "Value of each code, and its magnitude on a logarithmic scale. "
        + "; ".join(f"{name}: {spec}" for spec, name in PAPERS_NAMES.items())
        + "."
    },
)
