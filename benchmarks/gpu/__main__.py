"""Time qmaps on a CUDA device: ``python -m benchmarks.gpu`` writes reports/gpu/gpu.{json,md,png}.

Answers are checked first. A wrong answer, or a failed case of ours, makes the exit status 1; the
remaining cases are measured all the same. A run of some cases, or of smaller ones, goes to
runs/gpu. ``--dry`` runs everything once, small and on the CPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import command
from benchmarks.case import OURS, row
from benchmarks.gpu.cases import CASES
from benchmarks.gpu.checks import CHECKS
from benchmarks.gpu.items import AFTER, BEFORE, perform
from benchmarks.gpu.machine import about
from benchmarks.gpu.place import Place
from benchmarks.gpu.plot import draw
from benchmarks.gpu.table import table
from benchmarks.gpu.worker import LostError, Worker
from qmaps.errors import QmapsError
from qmaps.storage.files import output_folder, replacing, write_json
from reproduction.report_file import write_report

Row = dict[str, Any]
Ask = Callable[[str, Place, float], Row]

DRY_SCALE = 1e-5
LONGEST = 100.0
"""Timeout of a case in seconds, compilers included."""
CHECKING = 0.4
"""Share of the time for the checks; the rest is for the cases."""
PROGRAM = "python -m benchmarks.gpu"


class Run:
    """Items one after another, within the time limit.

    Args:
        place: the device.
        ask: performs an item, given a timeout in seconds.
        minutes: time limit for all items.
    """

    def __init__(self, place: Place, ask: Ask, minutes: float) -> None:
        self._place = place
        self._ask = ask
        self._begin = time.monotonic()
        self._seconds = 60 * minutes

    def row(self, name: str, remaining: int, share: float = 1.0) -> Row:
        """Result of an item.

        Args:
            name: in `ITEMS`.
            remaining: number of items from this one on.
            share: share of the time limit for all items up to this one.
        """
        seconds = share * self._seconds - (time.monotonic() - self._begin)
        if seconds <= 2:
            return {"error": "not measured: out of time"}
        # What compiling takes is unknown, so a case may use more than its part, once.
        place = replace(self._place, seconds=min(self._place.seconds, seconds / remaining))
        start = time.perf_counter()
        try:
            answer = self._ask(name, place, min(LONGEST, seconds))
        except LostError as error:
            answer = {"error": str(error)}
        print(f"{name}: {_brief(answer)} ({time.perf_counter() - start:.1f} s)", flush=True)
        return answer


def measure(cases: Sequence[Any], checks: Sequence[Any], run: Run) -> dict[str, Any]:
    """Checks, cases, and the bandwidth before and after."""
    remaining = len(cases) + len(checks) + 2
    found_checks, found_cases, rates = [], [], []
    for check in checks:
        record = run.row(check.name, remaining, share=CHECKING)
        if "error" in record:
            record = {"name": check.name, "wrong": [record["error"]], "failed": True}
        found_checks.append(record)
        remaining -= 1
    rates.append(run.row(BEFORE.name, remaining))
    for case in cases:
        record = run.row(f"case {case.name}", remaining)
        if "error" in record:
            record = failure(case, record["error"])
        found_cases.append(record)
        remaining -= 1
    rates.append(run.row(AFTER.name, 1))
    return {"bandwidth": rates, "checks": found_checks, "cases": found_cases}


def failure(case: Any, why: str) -> Row:
    """The row of a case without measurements."""
    nothing: Row = {"share_of_bound": {}, "ns_per_element": {}}
    record = row(case.name, "ms", {}, case.floors, {OURS: why}, case.note) | nothing
    return record | {"goals": case.goals(record), "failed": True}


def write(results: dict[str, Any], out: Path) -> None:
    """JSON, table and plot; each appears whole or not at all."""
    write_json(out / "gpu.json", results)
    with replacing(out / "gpu.png") as temporary:
        draw(results, temporary)
    write_report(out / "gpu.md", table(results))


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The command's options; leaves with a message where one is not allowed."""
    parser = command.shared_options(PROGRAM, __doc__, rounds=9, budget=2.0, out="gpu")
    parser.add_argument(
        "--minutes",
        type=command.positive,
        default=7.0,
        help="after which nothing more is begun, and what runs is ended (default 7)",
    )
    parser.add_argument("--no-checks", action="store_true", help="leave the answers unchecked")
    parser.add_argument("--dry", action="store_true", help="everything once, small, on the CPU")
    options = parser.parse_args(argv)
    if options.dry and options.scale == 1.0:
        options.scale = DRY_SCALE
    options.out = command.folder(options, "gpu")
    options.cases = command.selected(parser, options.case, CASES)
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        0, or 1 if an answer is wrong, a case of ours failed or there is no device. A missed goal is
        a result, not a failure.
    """
    argv = sys.argv[1:] if argv is None else argv
    options = arguments(argv)
    if options.list:
        print("\n".join(case.name for case in options.cases))
        return 0
    if not options.dry and not torch.cuda.is_available():
        print("error: torch finds no CUDA device; --dry runs all cases on the CPU", file=sys.stderr)
        return 1
    device = torch.device("cpu") if options.dry else torch.device("cuda", 0)
    rounds = 1 if options.dry else options.rounds
    place = Place(device, options.scale, rounds, options.budget, dry=options.dry)
    try:
        out = output_folder(options.out)
        start = time.perf_counter()
        results: dict[str, Any] = {"about": about(argv, device)}
        print(f"{results['about']['device']}", flush=True)
        results |= _measured(options, place)
        results["about"] |= {
            "scale": options.scale,
            "rounds": rounds,
            "budget": options.budget,
            "dry": options.dry,
            "seconds": time.perf_counter() - start,
        }
        write(results, out)
    except QmapsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{out / 'gpu.md'}, gpu.json and gpu.png are written")
    return int(any(row.get("failed") for row in results["checks"] + results["cases"]))


def _measured(options: argparse.Namespace, place: Place) -> dict[str, Any]:
    checks = () if options.no_checks else CHECKS
    if options.dry:
        # In this process: there is no device to be broken.
        run = Run(place, lambda name, where, _: perform(name, where), options.minutes)
        return measure(options.cases, checks, run)
    with Worker(perform) as worker:

        def ask(name: str, where: Place, timeout: float) -> Row:
            answer: Row = worker.ask(name, where, timeout=timeout)
            if answer.pop("broken") or "error" in answer:
                worker.end()  # also where a failure left memory behind, or half a recording
            return answer

        return measure(options.cases, checks, Run(place, ask, options.minutes))


def _brief(record: Row) -> str:
    if "error" in record:
        return str(record["error"])
    if "failed" in record:
        return "; ".join(record["wrong"]) or "right"
    if "bytes_per_second" in record:
        rates = record["bytes_per_second"].items()
        return ", ".join(f"{name} {rate / 1e9:.0f} GB/s" for name, rate in rates)
    if OURS not in record["values"]:
        return str(record["skipped"].get(OURS, "not measured"))
    share = record["share_of_bound"].get(OURS)
    of_bound = "" if share is None else f", {share:.0%} of the bound"
    per_billion = 1e3 * record["ns_per_element"][OURS]
    median = record["values"][OURS]["median"]
    return f"{median:.3g} ms, {per_billion:.3g} ms per billion{of_bound}"


if __name__ == "__main__":
    raise SystemExit(main())
