"""Figure 32: the maps at 4 bits."""

from __future__ import annotations

from matplotlib.figure import Figure

import qmaps
from qmaps import analyze, figures
from reproduction.claim import published
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.four_bit._names import renamed
from reproduction.verdict import beside

MAPS = ("linear@4s", "DE@4s", "linear@4u", "DE@4u", "DE-0@4u")
SMALLEST = "smallest value above zero"


def build(_: Context) -> Frames:
    """Codebooks."""
    return {"curves": analyze.map_curves(qmaps.quantizer(f"tensor/{name}").map for name in MAPS)}


def find(frames: Frames) -> Finding:
    """Compare the smallest values with the paper's."""
    curves = frames["curves"]
    above = curves[curves["value"] > 0].groupby("map")["value"].min()
    ours = {(name, SMALLEST): float(above[name]) for name in MAPS}
    numbers = beside(published("4-bit-optimizers", EXHIBIT.name), ours, tolerance=0.02)
    return Finding(
        numbers=numbers,
        tables={"codebooks": curves.pivot(index="code", columns="map", values="value")
                .reset_index()},
    )  # fmt: skip


def draw(frames: Frames) -> dict[str, Figure]:
    """Signed and unsigned maps apart."""
    curves = frames["curves"]
    return {
        f"figure-32-{name}": figures.map_curves(renamed(curves[of_it], "map"))
        for name, of_it in (
            ("signed", curves["map"].str.endswith("s")),
            ("unsigned", curves["map"].str.endswith("u")),
        )
    }


EXHIBIT = Exhibit(
    name="figure-32",
    covers=("Figure 32",),
    title="Linear and dynamic exponent maps at 4 bits",
    needs=Needs.NOTHING,
    build=build,
    find=find,
    draw=draw,
    captions={
        "figure-32-signed": "Signed: linear@4s and DE@4s.",
        "figure-32-unsigned": "Unsigned: linear@4u, DE@4u and DE-0@4u, of which the last has no "
        "zero.",
    },
)
