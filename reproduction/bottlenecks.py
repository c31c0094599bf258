"""Bottlenecks of steps in few bits that are slower than torch's fused one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from reproduction.committed import short
from reproduction.context import Context
from reproduction.differences import Difference
from reproduction.numbers import number, percent

COMMAND = "python -m benchmarks.cores"
BUSY = 0.75
"""Share of the memory's bandwidth above which a step waits for memory."""
SAME = {
    "AdamW 8-bit DE, four matrices": ("AdamW", "8 bits"),
    "AdamW 4-bit preset, four matrices": ("AdamW", "4 bits"),
    "AdamW 4-bit of the paper, four matrices": ("AdamW", "4 bits"),
    "SGD with momentum 8-bit, four matrices": ("SGD with momentum", "8 bits"),
    "LAMB 8-bit, four matrices": ("LAMB", "8 bits"),
    "LARS 8-bit, four matrices": ("LARS", "8 bits"),
}
"""Optimizers and steps of `COMMAND` by case; its 4 bits are those of the preset."""


def cores(context: Context) -> pd.DataFrame:
    """Bottlenecks of steps in few bits, measured with one thread.

    Returns:
        `machine`, `optimizer`, `step`; `cached`, the time of the step with everything in a core's
        cache, as a share of its time on matrices in memory; `bound`, whether that is at least
        `BUSY` and more than its bytes take; `fewer`, how many times as many bytes 32 bits move.
    """
    frame = context.table("bench/cores.csv", COMMAND)
    rows = []
    for (machine, optimizer), part in frame.groupby(["machine", "optimizer"], sort=False):
        base, *narrow = part[part["threads"] == part["threads"].min()].to_dict("records")
        for row in narrow:
            arithmetic, cached = row["arithmetic"], min(1.0, row["arithmetic"] / row["measured"])
            moved = 1e9 * row["bytes"] / row["bytes_per_second"]
            rows.append(
                {"machine": short(str(machine)), "optimizer": optimizer, "step": row["step"],
                 "cached": cached, "bound": bool(cached >= BUSY and arithmetic > moved),
                 "fewer": base["bytes"] / row["bytes"]}
            )  # fmt: skip
    return pd.DataFrame(rows)


@dataclass(frozen=True)
class Bottleneck:
    """Bottleneck of a step of the benchmark, as `COMMAND` measured it.

    Attributes:
        said: the measurement, in words.
        arithmetic: whether it waits for arithmetic.
    """

    said: str
    arithmetic: bool


def measured(cores: pd.DataFrame, machine: str, case: str) -> Bottleneck | None:
    """Bottleneck of a case of the benchmark; None if it was not measured.

    Args:
        cores: the frame that `cores` returns.
        machine: as it names it.
        case: of the benchmark.
    """
    named = (machine, *SAME.get(case, ("", "")))
    for row in cores.to_dict("records"):
        if (row["machine"], row["optimizer"], row["step"]) == named:
            said = (
                f"{row['optimizer']}, {row['step']}: {percent(row['cached'])} of its time with "
                "everything in a core's cache, where no byte waits; 32 bits move "
                f"{number(row['fewer'])} times as many bytes (reports/bench/cores.md)"
            )
            return Bottleneck(said, bool(row["bound"]))
    return None


def slower(steps: pd.DataFrame, cores: pd.DataFrame, cases: Mapping[str, str]) -> list[Difference]:
    """Causes of steps in few bits that are slower than torch's fused one, by machine.

    The machine makes the difference if it takes no step longer that waits for memory, of which
    fewer bits need less. A step does not wait for memory if it is faster on another machine; if it
    moves its bytes at less than `BUSY` of the bandwidth where torch's step reaches more; or if it
    takes `BUSY` of its time or more with everything in a core's cache (`measured`).

    Args:
        steps: the frame that `reproduction.committed.relative_steps` returns.
        cores: the frame that `cores` returns.
        cases: what is explained by each case, see `Difference.of`; the machine's name is added.
    """
    faster = steps[steps["ratio"] < 1].set_index("case")
    differences = []
    for machine, rows in steps.groupby("machine", sort=False):
        busy = float(rows["bandwidth_fused"].max())
        parts: dict[bool, list[tuple[str, str]]] = {True: [], False: []}
        for row in rows[rows["case"].isin(list(cases)) & (rows["ratio"] > 1)].to_dict("records"):
            case, control = row["case"], measured(cores, str(machine), str(row["case"]))
            said = f"{case}, {number(row['ratio'])} times as long at {percent(row['bandwidth'])}"
            shown = row["bandwidth"] < BUSY < busy
            if case in faster.index:
                other = faster.loc[[case]].to_dict("records")[0]
                said += f" ({number(other['ratio'])} times on {other['machine']})"
                shown = True
            if control is not None:
                said += f" ({control.said})"
                shown = shown or control.arithmetic
            parts[shown].append((said, cases[case]))
        for shown, texts in parts.items():
            if texts:
                differences.append(
                    Difference(
                        f"On {machine} torch's fused step moves its bytes at up to {percent(busy)} "
                        f"of the memory's bandwidth, and ours {_ours(shown)}: "
                        f"{'; '.join(said for said, _ in texts)}.",
                        shown,
                        "|".join(
                            f"(?:{of}).*{re.escape(str(machine))}"
                            for of in dict.fromkeys(of for _, of in texts)
                        ),
                    )
                )
    return differences


def _ours(shown: bool) -> str:
    if shown:
        return "wait for arithmetic"
    return "may wait for arithmetic, which no control of ours shows"
