"""Results of a device in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.case import OURS
from benchmarks.gpu.clock import SHORT
from benchmarks.gpu.predictions import predictions
from benchmarks.markdown import markdown, number, spread
from benchmarks.table import checks, giga, notes

Row = dict[str, Any]


def table(results: dict[str, Any]) -> str:
    """The report: provenance, checks, goals and times."""
    rows = results["cases"]
    parts = [
        ["# qmaps on a GPU", ""],
        _about(results),
        _right(results["checks"]),
        _goals(rows),
        ["![shares of the bound, and ratios](gpu.png)", ""],
        _all(rows, predictions(results["about"]["device"]["name"])),
        checks(rows),
        notes([_noted(row) for row in rows]),
    ]
    return "\n".join(line for part in parts for line in part).rstrip() + "\n"


def _about(results: dict[str, Any]) -> list[str]:
    info, device = results["about"], results["about"]["device"]
    versions = ", ".join(f"{name} {value}" for name, value in info["versions"].items() if value)
    facts = [f"{name} {_fact(value)}" for name, value in device.items() if name != "name"]
    rates = [row["copy_bytes_per_second"] for row in rows_with_copy(results)]
    spans = f"{giga(min(rates))} to {giga(max(rates))}" if rates else "no"
    bandwidths = [
        f"{name} {giga(rate)}"
        for record in results["bandwidth"]
        for name, rate in record.get("bytes_per_second", {}).items()
    ]
    lines = [
        f"`{info['command']}`",
        "",
        f"- {info['date']}, {info['seconds'] / 60:.1f} minutes; {info['rounds']} rounds, fewer "
        f"(at least two) where a method takes more than {info['budget']:g} s",
        f"- {device['name']}{': ' if facts else ''}{', '.join(facts)}",
        f"- {versions}",
        f"- engine: {info['engine']['reason']}",
        f"- memory: copies in turns with the cases moved {spans} GB/s, read plus written; before "
        f"and after all cases, best rounds: {', '.join(bandwidths) or 'not measured'} GB/s",
        "",
        "Methods take turns in one process, on the same random data, and a copy from memory to "
        "memory takes its turn with them. The bound of a method is the time that this copy "
        "would take to move the bytes that the work has to read and to write; the share is the "
        "bound over the time. Times are those of events on the device, medians with quartiles, "
        f"after warming up; calls shorter than {1e3 * SHORT:.0f} ms are timed many in a row. "
        "Ratios are a peer's median over that of qmaps: more than 1 means that qmaps is faster. "
        "The model is the time per billion parameters that `python -m benchmarks.gpu.sass` "
        "predicts from the machine code, if nothing but its busiest unit took time.",
        "",
    ]
    if info["dry"]:
        lines += ["**A dry run: one call of everything on the CPU, no measurement.**", ""]
    elif info["scale"] != 1:
        lines += [f"**The sizes are scaled by {info['scale']:g}; goals are meant for full size.**"]
        lines += [""]
    return lines


def rows_with_copy(results: dict[str, Any]) -> list[Row]:
    """The measured rows."""
    return [row for row in results["cases"] if "copy_bytes_per_second" in row]


def _right(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    bad = [row for row in rows if row["failed"]]
    head = (
        f"**{len(bad)} of {len(rows)} failed.**"
        if bad
        else f"All {len(rows)}: the same bits as the reference on the device, and as the CPU; "
        "metrics but for the order of their sums."
    )
    lines = [f"- **{row['name']}**: {text}" for row in bad for text in row["wrong"]]
    fine = "; ".join(row["name"] for row in rows if not row["failed"])
    return ["## Answers", "", head, "", *lines, *([f"- right: {fine}"] if fine else []), ""]


def _goals(rows: Sequence[Row]) -> list[str]:
    cells = []
    for row in rows:
        for goal in row.get("goals", ()):
            asked = f"{'at least' if goal['least'] else 'at most'} {_amount(goal, 'asked')}"
            if goal["found"] is None:
                why = goal.get("skipped") or row["skipped"].get(OURS, "")
                cells.append([row["name"], goal["what"], "", asked, f"not measured: {why}"])
                continue
            verdict = "reached" if goal["reached"] else "**missed**"
            cells.append([row["name"], goal["what"], _amount(goal, "found"), asked, verdict])
    if not cells:
        return []
    head = ["case", "measure", "found", "goal", ""]
    return ["## What is asked", "", *markdown(head, cells), ""]


def _amount(goal: Row, which: str) -> str:
    value = goal[which]
    return f"{value:.0%}" if goal["what"].startswith("share") else number(value)


def _all(rows: Sequence[Row], predicted: Mapping[str, str]) -> list[str]:
    cells = []
    for row in rows:
        first = row["name"]
        for method, value in row["values"].items():
            ratio = row["ratios"].get(method)
            cells.append(
                [
                    first,
                    method,
                    spread(value, "median"),
                    number(1e3 * row["ns_per_element"][method]),
                    predicted.get(row["predicted"].get(method, ""), ""),
                    _optional(row["share_of_bound"].get(method), "{:.0%}"),
                    "" if ratio is None else number(ratio["ratio"]),
                    _optional(row.get("host_ms", {}).get(method), "{:.3g}"),
                    _optional(row.get("peak_mib", {}).get(method), "{:.1f}"),
                    str(len(row["samples"][method])),
                ]
            )
            first = ""
    head = ["case", "method", "ms (quartiles)", "ms per billion", "model", "share of the bound"]
    head += ["ratio", "ms of the host", "peak MiB", "rounds"]
    return ["## All that was measured", "", *markdown(head, cells), ""]


def _noted(row: Row) -> Row:
    """The row, with its scaling and its number of kernels among its forms."""
    forms = dict(row.get("forms", {}))
    if row.get("scaled_down_from"):
        forms["the work"] = (
            f"scaled down from {row['scaled_down_from']:,} elements to {row['elements']:,}, for "
            "want of memory"
        )
    launched = row.get("own_kernels")
    if launched is not None:
        forms[OURS] = (
            f"{launched} kernels of its own a call"
            if launched
            else "**the reference**: no kernel of its own"
        )
    return row | {"forms": forms}


def _optional(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _fact(value: object) -> str:
    return f"{value:.0f}" if isinstance(value, float) else str(value)
