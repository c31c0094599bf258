"""Table 5: time of an update."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pandas as pd

from qmaps.lab.report.claim import Claim, published
from reproduction import bottlenecks, committed
from reproduction.context import Context
from reproduction.differences import Difference
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.numbers import number, percent
from reproduction.proxy_metrics import ProxyMetric, in_place

CASES = {
    "Adam": "AdamW 8-bit DE, four matrices",
    "Momentum": "SGD with momentum 8-bit, four matrices",
    "LAMB": "LAMB 8-bit, four matrices",
    "LARS": "LARS 8-bit, four matrices",
}
CONTENDERS = {
    "torch foreach": "32-bit PyTorch",
    "torch fused": "32-bit Apex",
    "qmaps, 32 bits": "32-bit Apex",
    "qmaps": "8-bit",
    "bitsandbytes": "bitsandbytes, 8-bit",
    "torchao": "torchao, 8-bit",
}
"""Today's fused step of torch stands where Apex did, and ours in 32 bits where torch has none."""
Step = tuple[float, float]


def build(context: Context) -> Frames:
    """Times of steps."""
    return {
        "steps": committed.steps(context),
        "relative": committed.relative_steps(context),
        "cores": bottlenecks.cores(context),
    }


def find(frames: Frames) -> Finding:
    """Nanoseconds per element, machine by machine."""
    proxies, statements = [], []
    for machine, rows in frames["steps"].groupby("machine", sort=False):
        for quantity, case in CASES.items():
            ours: dict[str, Step] = {
                CONTENDERS[str(row["contender"])]: (row["nanoseconds"], row["spread"])
                for row in rows[rows["case"] == case].to_dict("records")
                if row["contender"] in CONTENDERS
            }
            rivals = [name for name in ("32-bit PyTorch", "32-bit Apex") if name in ours]
            if rivals:
                proxies.append(ProxyMetric(quantity, f"ns per element, {machine}", ours))
            statements += [_faster(quantity, rival, ours, str(machine)) for rival in rivals]
    return Finding(
        numbers=in_place(published("8-bit-optimizers", EXHIBIT.name), proxies),
        statements=statements,
        differences=[
            *bottlenecks.slower(
                frames["relative"],
                frames["cores"],
                {case: f"^{name}: |^8-bit {name} " for name, case in CASES.items()},
            ),
            *_norms(frames["steps"], frames["cores"]),
        ],
        why="The paper's GPU has some twenty times a CPU's memory bandwidth, so that only the "
        "order can be compared: nanoseconds per element, ± half of what the middle half of the "
        "rounds spans, on every machine whose results are committed. PyTorch: torch's own foreach "
        "step. Apex: torch's fused step, and ours in 32 bits for LAMB and LARS, which torch lacks. "
        "bitsandbytes and torchao are today's.",
        tables={"steps": frames["steps"]},
    )


def _faster(quantity: str, rival: str, ours: Mapping[str, Step], machine: str) -> Claim:
    times = ours[rival][0] / ours["8-bit"][0]
    return Claim(
        f"8-bit {quantity} is faster than 32-bit {quantity} in {rival.removeprefix('32-bit ')} "
        f"({machine}).",
        times > 1,
        f"{number(times)} times as fast.",
    )


def _norms(steps: pd.DataFrame, cores: pd.DataFrame) -> list[Difference]:
    """Cause of slower steps in few bits where norms come first."""
    statements = []
    for name in ("LAMB", "LARS"):
        rows = steps[steps["case"] == CASES[name]]
        for machine in rows.loc[rows["contender"] == "qmaps, 32 bits", "machine"]:
            part = rows[rows["machine"] == machine].set_index("contender")
            share = float(part["bandwidth"]["qmaps"])
            times = part["nanoseconds"]["qmaps"] / part["nanoseconds"]["qmaps, 32 bits"]
            control = bottlenecks.measured(cores, machine, CASES[name])
            shown = control is not None and control.arithmetic
            statements.append(
                Difference(
                    f"{name} in 8 bits takes {number(times)} times as long as in 32 bits on "
                    f"{machine}, at {percent(share)} of the memory's bandwidth. "
                    + ("" if control is None else f"{control.said}. ")
                    + (
                        "It waits for arithmetic, of which decoding twice, for the norms and for "
                        "the step, is more."
                        if shown
                        else "No control of ours shows that it waits for arithmetic."
                    ),
                    shown,
                    f"{name}.*{re.escape(machine)}",
                )
            )
    return statements


EXHIBIT = Exhibit(
    name="table-5",
    covers=("Table 5",),
    title="Milliseconds per update per billion parameters",
    needs=Needs.REPORTS,
    build=build,
    find=find,
    command=f"{committed.BENCH}` and of `{bottlenecks.COMMAND}",
)
