"""Results in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.case import OURS
from benchmarks.machine import named
from benchmarks.markdown import Texts, markdown, number, spread
from benchmarks.neighbours import BUSY

Row = dict[str, Any]


def table(results: dict[str, Any]) -> str:
    """The report: provenance, floors and times."""
    rows = results["cases"]
    parts = [
        ["# qmaps beside its peers on a CPU", ""],
        _about(results["about"], results["bytes_per_second"], results["per_second"]),
        _asked(rows),
        ["![ratios of times to peers](cpu.png)", ""],
        _all(rows),
        checks(rows),
        notes(rows),
    ]
    return "\n".join(line for part in parts for line in part).rstrip() + "\n"


def _about(info: dict[str, Any], rates: dict[str, Any], per_second: dict[str, Any]) -> list[str]:
    machine = info["machine"]
    versions = ", ".join(f"{name} {value}" for name, value in info["versions"].items() if value)
    kernels = ", ".join(f"{name} {giga(rate)}" for name, rate in rates["kernels"].items())
    units = [f"{giga(rate)} {name}" for name, rate in per_second.items() if rate is not None]
    cores = f", {machine['cores']} cores" if machine["cores"] else ""
    isa = f", {info['isa']}" if info["isa"] else ""
    lines = [
        f"`{info['command']}`",
        "",
        f"- {info['date']}, {info['seconds'] / 60:.1f} minutes; {info['rounds']} rounds, fewer "
        f"(at least two) where a contender takes more than {info['budget']:g} s",
        f"- {named(machine)} ({machine['architecture']}, {machine['system']}){cores}, "
        f"{info['threads']} threads",
        f"- {versions}",
        f"- engine: {info['backend']['name']}{isa} ({info['backend']['reason']})",
        f"- memory: {kernels} GB/s; at most {giga(rates['read'])} of them read, "
        f"{giga(rates['written'])} written",
        f"- arithmetic: {', '.join(units) or 'not measured'}, in 1e9 a second (shuffles are of "
        "registers, the others of numbers)",
        "",
        "Contenders take turns in one process, on the same data. Times are medians with quartiles; "
        "ratios are a peer's median over that of qmaps, with the quartiles of the rounds, so more "
        "than 1 means that qmaps is faster.",
        "",
        "The roofline is the least time that a case could take here if nothing else took any: that "
        "of its bytes at the largest bandwidth (memory), of those that it reads or writes at the "
        "largest bandwidth in that direction (reading, writing), of its divisions and square roots "
        "(divider), or of the permutes and packs of registers that look codes and values up "
        "(shuffles), whichever is longest. Other arithmetic is not in it, nor are random numbers.",
        "",
    ]
    if info["scale"] != 1:
        lines += [
            f"**Sizes are scaled by {info['scale']:g}; what is asked is meant for full size.**",
            "",
        ]
    return lines


def _asked(rows: Sequence[Row]) -> list[str]:
    cells = []
    for row in rows:
        for peer, floor in row["floors"].items():
            ratio = row["ratios"].get(peer)
            if ratio is None:
                verdict = f"not measured: {row['skipped'].get(peer, row['skipped'].get(OURS, ''))}"
                cells.append([_name(row), peer, "", f"at least {floor:.3g}", verdict])
                continue
            verdict = "reached" if row["reached"][peer] else "**missed**"
            cells.append(
                [_name(row), peer, spread(ratio, "ratio"), f"at least {floor:.3g}", verdict]
            )
        if row.get("goal") is not None and OURS in row["roofline"]:
            reached = row["roofline"][OURS]
            verdict = "reached" if reached["share"] >= row["goal"] else "**missed**"
            goal = f"at least {row['goal']:.0%}"
            cells.append([_name(row), "roofline", _share(reached), goal, verdict])
        if "limit" in row:
            ours = f"{number(row['values'][OURS]['median'])} {row['unit']}"
            verdict = "kept" if row["kept"] else "**exceeded**"
            cells.append([_name(row), "", ours, f"at most {row['limit']:g}", verdict])
    if not cells:
        return []
    head = ["case", "beside", "measured", "asked", ""]
    return ["## What is asked", "", *markdown(head, cells), ""]


def _share(reached: dict[str, Any]) -> str:
    return f"{reached['share']:.0%} of {reached['bound']}"


def _all(rows: Sequence[Row]) -> list[str]:
    cells = []
    for row in rows:
        first = _name(row)
        for method, value in row["values"].items():
            ratio = row["ratios"].get(method)
            share = row.get("roofline", {}).get(method)
            cells.append(
                [
                    first,
                    method,
                    f"{spread(value, 'median')} {row['unit']}",
                    str(len(row["samples"][method])),
                    "" if ratio is None else spread(ratio, "ratio"),
                    "" if share is None else _share(share),
                ]
            )
            first = ""
    head = ["case", "contender", "median (quartiles)", "rounds", "ratio", "roofline"]
    return ["## All that was measured", "", *markdown(head, cells), ""]


def checks(rows: Sequence[Row]) -> list[str]:
    """Section with the checks of the answers."""
    texts = Texts()
    for row in rows:
        for name, value in row.get("checks", {}).items():
            texts.add(f"{name}: {value:.6g}", row["name"])
    return texts.section("Checks")


def notes(rows: Sequence[Row]) -> list[str]:
    """Section with the notes on rows."""
    texts = Texts()
    for row in rows:
        if row["note"]:
            texts.add(row["note"], row["name"])
        for name, form in row.get("forms", {}).items():
            texts.add(f"{name} is {form}", row["name"])
        for name, why in row["skipped"].items():
            texts.add(f"{name} is left out: {why}", row["name"])
        if _busy(row):
            text = "\\*: other programs kept this share of the processors busy meanwhile"
            texts.add(text, f"{row['name']} {row['others_cpu']:.0%}")
    return texts.section("Notes")


def _busy(row: Row) -> bool:
    return (row.get("others_cpu") or 0) > BUSY


def _name(row: Row) -> str:
    return row["name"] + (" \\*" if _busy(row) else "")


def giga(rate: float) -> str:
    """Billions, rounded."""
    return f"{rate / 1e9:.0f}"
