"""Figure 1: the fields of bits of the four data types."""

from __future__ import annotations

import pandas as pd

import qmaps
from reproduction import analyses, figures
from reproduction.claim import Claim, published
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.numbers import percent
from reproduction.verdict import beside

MAPS = {
    "dynamic tree": "tree@8s",
    "static tree": "static-tree@8s",
    "mantissa": "mantissa@8s",
    "linear quantization": "linear0@8s",
}
LARGE, SMALL = 0.2345678, 0.0000234
"""The paper's examples."""
TOLERANCE = 0.015
"""The paper prints one of the numbers to two digits; the next codes are further away."""


def build(_: Context) -> Frames:
    """The bits of the paper's examples."""
    maps = [qmaps.quantizer(f"tensor/{name}").map for name in MAPS.values()]
    frame = analyses.bit_fields(maps, [LARGE, SMALL])
    types = {spec: name for name, spec in MAPS.items()}
    return {"bits": frame.assign(map=frame["map"].map(types))}


def find(frames: Frames) -> Finding:
    """Compare the decoded numbers and their bit fields with the paper's."""
    bits = frames["bits"]
    becomes = bits.groupby(["value", "map"])["decoded"].first()
    ours = {
        (f"x = {value:.7f}", name): float(becomes[value, name])
        for value in (LARGE, SMALL)
        for name in MAPS
    }
    off = {key: abs(float(becomes[key]) / key[0] - 1) for key in becomes.index}
    changing = [name for name, part in bits.groupby("map", sort=False) if _changes(part)]
    return Finding(
        numbers=beside(
            published("8-bit-parallelism-2015", EXHIBIT.name), ours, tolerance=TOLERANCE
        ),
        statements=[
            Claim(
                "In the dynamic tree, and in no other type, it varies from number to number which "
                "bits are the exponent and which the tree.",
                changing == ["dynamic tree"],
                f"Of the tree: {_width(bits, LARGE)} bits of {LARGE:.7f}, {_width(bits, SMALL)} of "
                f"{SMALL:.7f}.",
            ),
            Claim(
                "A large number has a smaller error in the dynamic tree than in the static tree, "
                "and there than with a mantissa.",
                off[LARGE, "dynamic tree"] < off[LARGE, "static tree"] < off[LARGE, "mantissa"],
                ", ".join(f"{name} {percent(off[LARGE, name])}" for name in MAPS) + ".",
            ),
            Claim(
                "The dynamic tree still approximates a small number (linear quantization does "
                "not).",
                off[SMALL, "dynamic tree"] < 0.5 <= off[SMALL, "linear quantization"],
                ", ".join(f"{name} {percent(off[SMALL, name])}" for name in MAPS) + ".",
            ),
        ],
        why="Our copy of the paper lacks the drawing: this one is made from its text, which leaves "
        "open in which order fields of fixed width stand. Every type is shown without an offset "
        "of the exponent. The last bits of 0.0000234 in the dynamic tree are few, as the paper "
        "says: its error is larger than in the types of fixed width.",
        tables={"bits": bits},
    )


def _changes(part: pd.DataFrame) -> bool:
    """True if places have other fields in one number than in another."""
    return bool((part.groupby("bit")["field"].nunique() > 1).any())


def _width(bits: pd.DataFrame, value: float) -> int:
    """Bits of the dynamic tree's tree."""
    rows = bits[(bits["map"] == "dynamic tree") & (bits["value"] == value)]
    return int((rows["field"] == "tree").sum())


EXHIBIT = Exhibit(
    name="figure-1",
    covers=("Figure 1",),
    title="Anatomy of the four 8-bit data types",
    needs=Needs.NOTHING,
    build=build,
    find=find,
    draw=lambda frames: {"figure-1": figures.bit_fields(frames["bits"])},
    captions={"figure-1": "The paper's two examples, their bits, and what these stand for."},
)
