"""Table 5: time of an update."""

from __future__ import annotations

from qmaps.lab.report.claim import Claim
from qmaps.lab.report.published import published
from reproduction import committed
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.numbers import number
from reproduction.verdict import beside

CASES = {
    "Adam": "AdamW 8-bit DE, four matrices",
    "Momentum": "SGD with momentum 8-bit, four matrices",
    "LAMB": "LAMB 8-bit, four matrices",
    "LARS": "LARS 8-bit, four matrices",
}
CONTENDERS = {
    "torch foreach": "32-bit PyTorch",
    "torch fused": "32-bit Apex",
    "qmaps": "8-bit",
    "bitsandbytes": "bitsandbytes, 8-bit",
    "torchao": "torchao, 8-bit",
}
"""Today's fused step of torch stands where Apex did."""


def build(context: Context) -> Frames:
    """Times of steps."""
    return {"steps": committed.steps(context)}


def find(frames: Frames) -> Finding:
    """Milliseconds per update per 1e9 parameters."""
    steps = frames["steps"].set_index(["case", "contender"])["nanoseconds"]
    ours = {
        (name, quantity): 1000 * float(steps[case, contender])
        for quantity, case in CASES.items()
        for contender, name in CONTENDERS.items()
        if (case, contender) in steps.index
    }
    statements = [
        Claim(
            f"8-bit {quantity} is faster than 32-bit {quantity} in {rival.removeprefix('32-bit ')}"
            + (" (torch's fused step here)." if rival == "32-bit Apex" else "."),
            ours["8-bit", quantity] < ours[rival, quantity],
            f"{number(ours[rival, quantity] / ours['8-bit', quantity])} times as fast.",
        )
        for quantity in CASES
        for rival in ("32-bit PyTorch", "32-bit Apex")
        if {("8-bit", quantity), (rival, quantity)} <= ours.keys()
    ]
    return Finding(
        numbers=beside(published("8-bit-optimizers", EXHIBIT.name), ours),
        statements=statements,
        why="The paper's GPU has some twenty times this CPU's memory bandwidth; only the order can "
        f"be compared. {committed.ON_A_CPU} PyTorch: torch's own foreach step. bitsandbytes and "
        "torchao are today's. "
        "What the table of that command does not time is not compared.",
        tables={"steps": frames["steps"]},
    )


EXHIBIT = Exhibit(
    name="table-5",
    covers=("Table 5",),
    title="Milliseconds per update per billion parameters",
    needs=Needs.REPORTS,
    build=build,
    find=find,
    command=committed.BENCH,
)
