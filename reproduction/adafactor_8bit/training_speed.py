"""Training speed: steps beside other optimizers."""

from __future__ import annotations

import pandas as pd

from qmaps.lab.report.claim import Claim
from reproduction.bottlenecks import BUSY
from reproduction.committed import machines
from reproduction.context import Context
from reproduction.differences import Difference
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.numbers import number, percent

COMMAND = "python -m benchmarks.adafactor"
OURS = "Adafactor8bit"
PEERS = ("AdamW8bit", "bitsandbytes AdamW8bit", "torchao AdamW8bit")
COMPARABLE = 1.5
"""A step of at most so many times the peer's is comparable."""
CASES = {
    "Adafactor 8-bit, four matrices": OURS,
    "AdamW 8-bit DE, four matrices": "AdamW8bit",
}
"""Optimizers of this package by their case in ``python -m benchmarks``."""


def build(context: Context) -> Frames:
    """Ratios of a step's time to that of `OURS`, and the bytes that steps move."""
    ratios = context.json("adafactor.json", COMMAND)["ratios"]
    return {
        "bytes": pd.DataFrame(
            {
                "machine": machine,
                "optimizer": CASES[case["name"]],
                "bytes": case["bytes_per_element"]["qmaps"],
                "bandwidth": case["share_of_bandwidth"]["qmaps"],
            }
            for machine, cases in machines(context).items()
            for case in cases
            if case["name"] in CASES
        ),
        "steps": pd.DataFrame(
            {"optimizer": name, "times": each["ratio"], "q1": each["q1"], "q3": each["q3"]}
            for name, each in ratios.items()
        ),
    }


def find(frames: Frames) -> Finding:
    """Beside each 8-bit peer."""
    times = frames["steps"].set_index("optimizer")["times"]
    return Finding(
        statements=[
            Claim(
                f"A step takes a time comparable to that of {peer}"
                + (" (of this package)." if peer == "AdamW8bit" else "."),
                bool(1 / times[peer] <= COMPARABLE),
                f"{number(1 / times[peer])} times as long.",
            )
            for peer in PEERS
            if peer in times.index
        ],
        differences=[_memory(frames["bytes"])],
        why="The page speaks of GPUs; here are the steps of this package's Adafactor8bit on a CPU, "
        f"one thread, in processor time. Comparable: at most {number(COMPARABLE)} times as long. "
        "Adafactor reads gradients three times, for the means, for the update's norm and for the "
        "update, where AdamW reads them once.",
        tables=dict(frames),
    )


def _memory(bytes_: pd.DataFrame) -> Difference:
    """Compare steps where memory decides, as it does not on our machines."""
    moved = bytes_.groupby("optimizer")["bytes"].first()
    times = float(moved[OURS] / moved["AdamW8bit"])
    busiest = float(bytes_["bandwidth"].max())
    return Difference(
        f"A step moves {number(moved[OURS])} bytes per parameter, that of this package's AdamW8bit "
        f"{number(moved['AdamW8bit'])}: {number(times)} times as many, so that the two are "
        f"comparable where memory decides, as on a GPU. On our processors it does not: both move "
        f"their bytes at {percent(busiest)} of the memory's bandwidth at most, and the rule of "
        "Adafactor is more arithmetic. Which AdamW8bit the page means, and on which GPU, it does "
        "not say.",
        elsewhere=bool(times <= COMPARABLE and busiest < BUSY),
    )


EXHIBIT = Exhibit(
    name="training-speed",
    covers=("Training Speed",),
    title="Time of a step, in times that of 8-bit Adafactor",
    needs=Needs.REPORTS,
    build=build,
    find=find,
    command=COMMAND,
    place=4,
)
