"""Section 3.2: time to compress and to decompress a number."""

from __future__ import annotations

import pandas as pd

from reproduction import committed
from reproduction.claim import published
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.verdict import beside

CASES = {"compression": "quantize B2048/DE@8s", "decompression": "dequantize B2048/DE@8s"}


def build(context: Context) -> Frames:
    """Times of the benchmark."""
    steps = committed.steps(context)
    return {"times": steps[steps["case"].isin(CASES.values()) & (steps["contender"] == "qmaps")]}


def find(frames: Frames) -> Finding:
    """Nanoseconds per number, machine by machine."""
    printed = published("8-bit-parallelism-2015", EXHIBIT.name)
    parts: list[pd.DataFrame] = []
    ours: dict[tuple[str, str], float] = {}
    for machine, rows in frames["times"].groupby("machine", sort=False):
        quantity = f"time per number on {machine}"
        parts.append(printed.assign(quantity=quantity))
        times = rows.set_index("case")["nanoseconds"]
        ours |= {(name, quantity): float(times[case]) for name, case in CASES.items()}
    return Finding(
        numbers=beside(pd.concat(parts, ignore_index=True), ours),
        why="The paper's are binary searches of the dynamic tree on a GTX Titan. Ours are the "
        "dynamic map in blocks of 2048 on CPUs, scales included; kernels take codebooks, so that "
        "another map of 8 bits takes as long.",
        tables={"times": frames["times"]},
    )


EXHIBIT = Exhibit(
    name="section-3-2",
    covers=("Section 3.2",),
    title="Time to compress and to decompress a number",
    needs=Needs.REPORTS,
    timed=".",
    build=build,
    find=find,
    command=committed.BENCH,
)
