"""Training speed: steps beside other optimizers."""

from __future__ import annotations

import pandas as pd

from reproduction.claim import Claim
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.numbers import number
from reproduction.report_file import closed

COMMAND = closed("python -m benchmarks.adafactor")
OURS = "Adafactor8bit"
PEERS = ("AdamW8bit", "bitsandbytes AdamW8bit", "torchao AdamW8bit")
COMPARABLE = 1.5
"""Times of two steps are comparable if neither is longer by more than this factor."""


def build(context: Context) -> Frames:
    """Times of a step divided by that of `OURS`."""
    ratios = context.json("adafactor.json", COMMAND)["ratios"]
    return {
        "steps": pd.DataFrame(
            {"optimizer": name, "times": ratio["ratio"], "q1": ratio["q1"], "q3": ratio["q3"]}
            for name, ratio in ratios.items()
        )
    }


def find(frames: Frames) -> Finding:
    """Beside each 8-bit peer."""
    times = frames["steps"].set_index("optimizer")["times"]
    return Finding(
        statements=[
            Claim(
                f"A step takes a time comparable to that of {peer}"
                + (" (of this package)." if peer == "AdamW8bit" else "."),
                bool(1 / COMPARABLE <= times[peer] <= COMPARABLE),
                f"{number(max(times[peer], 1 / times[peer]))} times as "
                + ("fast." if times[peer] > 1 else "long."),
            )
            for peer in PEERS
            if peer in times.index
        ],
        why="The page speaks of GPUs, and names neither its own nor the AdamW8bit that it means; "
        f"here are the steps of this package's {OURS} on a CPU, one thread, in processor time. "
        "Adafactor reads gradients three times, for the means, for the update's norm and for the "
        "update, where AdamW reads them once.",
        tables=dict(frames),
    )


EXHIBIT = Exhibit(
    name="training-speed",
    covers=("Training Speed",),
    title="Time of a step, in times that of 8-bit Adafactor",
    needs=Needs.REPORTS,
    timed=".",
    build=build,
    find=find,
    command=COMMAND,
    place=4,
)
