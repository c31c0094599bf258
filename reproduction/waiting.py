"""Why steps in few bits are slower than torch's fused one: what they wait for."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from reproduction.committed import short
from reproduction.context import Context
from reproduction.differences import Difference
from reproduction.numbers import number, percent

COMMAND = "python -m benchmarks.cores"
BUSY = 0.75
"""Share of the memory's bandwidth above which a step waits for memory."""
GAIN = 1.2
"""By so much, at least, a step that waits for arithmetic gains on torch's with more cores."""
FUSED = "32 bits, torch fused"
SAME = {
    "AdamW 8-bit DE, four matrices": "8 bits",
    "AdamW 4-bit preset, four matrices": "4 bits",
    "AdamW 4-bit of the paper, four matrices": "4 bits",
}
"""Steps of `COMMAND` by case of the benchmark; its 4 bits are those of the preset."""


def cores(context: Context) -> pd.DataFrame:
    """Steps of AdamW with one thread and with more.

    Returns:
        `machine`, `step`; `threads`, as many as gave the other columns beside the one thread;
        `one` and `more`, the step's speed beside torch's fused one with one thread and with so
        many; `bound`, whether its arithmetic, measured in a cache, takes longer than its bytes.
    """
    frame = context.table("bench/cores.csv", COMMAND)
    frame = frame[frame["optimizer"] == "AdamW"]
    rows = []
    for machine, part in frame.groupby("machine", sort=False):
        times = part.pivot_table("measured", "threads", "step", sort=False)
        first = part[part["threads"] == part["threads"].min()].set_index("step")
        for step in times.columns.drop(FUSED):
            speeds = times[FUSED] / times[step]
            row = first.loc[step]
            rows.append(
                {"machine": short(str(machine)), "step": step, "threads": int(speeds.index.max()),
                 "one": float(speeds.iloc[0]), "more": float(speeds[speeds.index.max()]),
                 "bound": bool(row["arithmetic"] > 1e9 * row["bytes"] / row["bytes_per_second"])}
            )  # fmt: skip
    return pd.DataFrame(rows)


def slower(steps: pd.DataFrame, cores: pd.DataFrame, cases: Mapping[str, str]) -> list[Difference]:
    """Why steps in few bits are slower than torch's fused one where they are, by machine.

    The machine makes the difference if it takes no step longer that waits for memory, of which
    fewer bits need less. A step does not wait for memory if it is faster on another machine; if it
    moves its bytes at less than `BUSY` of the bandwidth where torch's step reaches more; or if more
    cores of the same processor, which share its memory, make it gain on torch's step.

    Args:
        steps: the frame that `reproduction.committed.relative_steps` returns.
        cores: the frame that `cores` returns.
        cases: what is explained by each case, see `Difference.of`; the machine's name is added.
    """
    faster = steps[steps["ratio"] < 1].set_index("case")
    gains = {(row["machine"], row["step"]): row for row in cores.to_dict("records")}
    found = []
    for machine, rows in steps.groupby("machine", sort=False):
        busy = float(rows["bandwidth_fused"].max())
        parts: dict[bool, list[tuple[str, str]]] = {True: [], False: []}
        for row in rows[rows["case"].isin(list(cases)) & (rows["ratio"] > 1)].to_dict("records"):
            case, gain = row["case"], gains.get((machine, SAME.get(row["case"], "")))
            said = f"{case}, {number(row['ratio'])} times as long at {percent(row['bandwidth'])}"
            shown = row["bandwidth"] < BUSY < busy
            if case in faster.index:
                other = faster.loc[[case]].to_dict("records")[0]
                said += f" ({number(other['ratio'])} times on {other['machine']})"
                shown = True
            if gain is not None:
                said += (
                    f" ({gain['step']} have {number(gain['one'])} times the speed of torch's step "
                    f"with one thread, {number(gain['more'])} times with {gain['threads']}: "
                    "reports/bench/cores.md)"
                )
                shown = shown or (gain["bound"] and gain["more"] > GAIN * gain["one"])
            parts[shown].append((said, cases[case]))
        for shown, each in parts.items():
            if each:
                found.append(
                    Difference(
                        f"On {machine} torch's fused step moves its bytes at up to {percent(busy)} "
                        f"of the memory's bandwidth, and ours {_ours(shown)}: "
                        f"{'; '.join(said for said, _ in each)}.",
                        shown,
                        "|".join(
                            f"(?:{of}).*{machine}" for of in dict.fromkeys(of for _, of in each)
                        ),
                    )
                )
    return found


def _ours(shown: bool) -> str:
    if shown:
        return "wait for arithmetic"
    return "may wait for arithmetic, which no control of ours shows"
