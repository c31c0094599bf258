"""Time qmaps beside its peers: ``python -m benchmarks`` writes reports/bench/cpu.{json,md}.

Contenders of a case run in one process, interleaved; ratios are of medians. Absolute numbers
belong to this machine and moment.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import shlex
import sys
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

import qmaps
from benchmarks.cases import CASES, OURS, Case
from benchmarks.timing import interleaved, summary
from qmaps.files import output_folder, replacing, write_json


def bandwidth(rounds: int, scale: float) -> float:
    """Bytes per second of copying an array far larger than the caches, read and written."""
    source = torch.ones(max(1 << 20, int((1 << 26) * scale)))
    target = torch.empty_like(source)
    seconds = interleaved({"copy": lambda: target.copy_(source)}, rounds)["copy"]
    return 2 * source.nbytes / min(seconds)


def run(case: Case, rounds: int, scale: float, bytes_per_second: float) -> dict[str, Any]:
    """One case, measured."""
    contenders, elements = case.make(scale)
    seconds = interleaved(contenders, rounds)
    times = {name: summary(values, elements) for name, values in seconds.items()}
    ours = times[OURS]["median"]
    return {
        "name": case.name,
        "elements": elements,
        "ns_per_element": times,
        "ratios": {name: t["median"] / ours for name, t in times.items() if name != OURS},
        "floors": case.floors,
        "share_of_bandwidth": case.nbytes / (1e-9 * ours) / bytes_per_second,
    }


def table(results: dict[str, Any]) -> str:
    """The results in Markdown."""
    about = results["about"]
    lines = [
        "# qmaps beside its peers on a CPU",
        "",
        f"{about['date']}, {about['processor']}, {about['threads']} threads, torch "
        f"{about['torch']}; back end: {about['backend']}. Copying moves "
        f"{about['bytes_per_second'] / 1e9:.0f} GB/s. Command: `{about['command']}`.",
        "",
        "Ratios are medians of the peer over medians of qmaps, interleaved in one process.",
        "",
        "| case | ns per element | ratio to peer (floor) | share of copy bandwidth |",
        "|---|---|---|---|",
    ]
    for row in results["cases"]:
        ratios = []
        for peer, ratio in row["ratios"].items():
            floor = row["floors"].get(peer)
            mark = (
                ""
                if floor is None
                else f" (floor {floor:g}: {'met' if ratio >= floor else 'short'})"
            )
            ratios.append(f"{peer} {ratio:.2f}x{mark}")
        lines.append(
            f"| {row['name']} | {row['ns_per_element'][OURS]['median']:.3f} | "
            f"{', '.join(ratios) or 'no peer installed'} | {row['share_of_bandwidth']:.0%} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="counted rounds of each case")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the work; 1 is full")
    parser.add_argument("--only", default="", help="run cases whose name holds this text")
    parser.add_argument("--out", type=Path, default=Path("reports/bench"))
    options = parser.parse_args()
    folder = output_folder(options.out)
    bytes_per_second = bandwidth(options.rounds, options.scale)
    chosen = [case for case in CASES if options.only.lower() in case.name.lower()]
    rows = [
        run(case, options.rounds, options.scale, bytes_per_second)
        for case in track(chosen, description="benchmarks")
    ]
    backend = next(b for b in qmaps.backends() if b.name == qmaps.backend())
    results = {
        "about": {
            "date": datetime.date.today().isoformat(),
            "processor": platform.processor() or platform.machine(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "backend": f"{backend.name} ({backend.reason})",
            "bytes_per_second": bytes_per_second,
            "command": shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]]),
        },
        "cases": rows,
    }
    write_json(folder / "cpu.json", results)
    with replacing(folder / "cpu.md") as temporary:
        temporary.write_text(table(results), encoding="utf-8")
    print(table(results))


if __name__ == "__main__":
    main()
