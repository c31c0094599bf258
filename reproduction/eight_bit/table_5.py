"""Table 5: time of an update."""

from __future__ import annotations

from reproduction import committed
from reproduction.claim import published
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.proxy_metrics import ProxyMetric, in_place

CASES = {
    "Adam": "AdamW 8-bit DE, four matrices",
    "Momentum": "SGD with momentum 8-bit, four matrices",
    "LAMB": "LAMB 8-bit, four matrices",
    "LARS": "LARS 8-bit, four matrices",
}
METHODS = {
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
    return {"steps": committed.steps(context)}


def find(frames: Frames) -> Finding:
    """Nanoseconds per element, machine by machine."""
    proxies = []
    for machine, rows in frames["steps"].groupby("machine", sort=False):
        for quantity, case in CASES.items():
            ours: dict[str, Step] = {
                METHODS[str(row["contender"])]: (row["nanoseconds"], row["spread"])
                for row in rows[rows["case"] == case].to_dict("records")
                if row["contender"] in METHODS
            }
            if ours:
                proxies.append(ProxyMetric(quantity, f"ns per element, {machine}", ours))
    return Finding(
        numbers=in_place(published("8-bit-optimizers", EXHIBIT.name), proxies),
        why="The paper's are steps on a GPU, which has some twenty times a CPU's memory bandwidth; "
        "ours are steps on CPUs, for a look: nanoseconds per element, ± half of what the middle "
        "half of the rounds spans, on every machine whose results are committed. PyTorch: torch's "
        "own foreach step. Apex: torch's fused step, and ours in 32 bits for LAMB and LARS, which "
        "torch lacks. bitsandbytes and torchao are today's. What the steps wait for is in "
        "reports/bench/cores.md.",
        tables={"steps": frames["steps"]},
    )


EXHIBIT = Exhibit(
    name="table-5",
    covers=("Table 5",),
    title="Milliseconds per update per billion parameters",
    needs=Needs.REPORTS,
    build=build,
    find=find,
    timed=".",
    command=committed.BENCH,
)
