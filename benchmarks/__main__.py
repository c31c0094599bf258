"""Run a study, ``python -m benchmarks STUDY``, or time qmaps beside its peers, without a name.

A study is one of `benchmarks.losses.studies`, or a module of this folder; its arguments follow its
name. Without a name, cpu.{json,md,png} are written.

They go to a folder of the processor's, reports/bench/amd-epyc for example.

Methods of a case run in one process, in turns; ratios are of medians. Absolute numbers belong
to this machine and moment. A run of some cases, or of smaller ones, goes to runs/bench.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.bandwidth import bandwidth, one_way
from benchmarks.case import OURS, Measured, Options, failure
from benchmarks.cases import CASES
from benchmarks.command import folder, one_line_errors, selected, shared_options
from benchmarks.limits import Limits, arithmetic, shares
from benchmarks.losses.__main__ import main as losses
from benchmarks.losses.studies import STUDIES
from benchmarks.machine import about, processor, processor_folder
from benchmarks.plot import draw
from benchmarks.table import table
from qmaps.errors import BadValueError, QmapsError, nearest
from qmaps.storage.files import output_folder, replacing, write_json
from reproduction.report_file import write_report


@one_line_errors
def study(name: str, *options: str) -> int:
    """Run a study by its name; returns the exit status."""
    if name in STUDIES:
        return losses([name, *options])
    takes = ": Sequence[str] | None = None) -> int:"
    files = [path for path in Path(__file__).parent.glob("[a-z]*.py") if takes in path.read_text()]
    modules = {f.stem.replace("_", "-"): f.stem for f in files} | {"gpu": "gpu.__main__"}
    if name not in modules:
        allowed = sorted([*STUDIES, *modules])
        raise BadValueError(
            f"study={name!r} is unknown; allowed are {', '.join(allowed)}{nearest(name, allowed)}"
        )
    main_of: Callable[[Sequence[str]], int]
    main_of = importlib.import_module(f"benchmarks.{modules[name]}").main
    return main_of(options)


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The command's options; leaves with a message where one is not allowed."""
    out = f"bench/{processor_folder(processor())}"
    parser = shared_options("python -m benchmarks", __doc__, rounds=9, budget=10.0, out=out)
    options = parser.parse_args(argv)
    options.out = folder(options, out)
    options.cases = selected(parser, options.case, CASES)
    return options


def measure(cases: Sequence[Measured], options: Options) -> dict[str, Any]:
    """Measure bandwidth and all cases; a case with an error becomes a row with its reason."""
    before = bandwidth(options.rounds, options.scale), arithmetic(options.rounds)
    rows: list[dict[str, Any]] = []
    for number, case in enumerate(cases, 1):
        start = time.perf_counter()
        try:
            records = case.measure(options)
        except Exception as error:
            traceback.print_exc()
            records = [failure(case, error)]
        rows += records
        gc.collect()  # optimizers are cycles, and their states the largest part of the memory
        took = time.perf_counter() - start
        print(f"{number}/{len(cases)} {_brief(records[0])} ({took:.1f} s)", flush=True)
    # Once more: other programs may have been at work at the beginning.
    after = bandwidth(options.rounds, options.scale), arithmetic(options.rounds)
    kernels: dict[str, Any]
    per_second: dict[str, Any]
    kernels, per_second = (
        {name: None if rate is None else max(rate, again[name]) for name, rate in first.items()}  # type: ignore[attr-defined]
        for first, again in zip(before, after, strict=True)
    )
    best = max(kernels.values())
    reading, writing = one_way(kernels)
    limits = Limits(best, reading, writing, **per_second)
    for row in rows:
        row["share_of_bandwidth"] = {
            name: 1e9 * nbytes / row["values"][name]["median"] / best
            for name, nbytes in row.get("bytes_per_element", {}).items()
        }
        row["roofline"] = shares(row, limits)
    return {
        "bytes_per_second": {
            "best": best,
            "read": reading,
            "written": writing,
            "kernels": kernels,
        },
        "per_second": per_second,
        "cases": rows,
    }


def write(results: dict[str, Any], out: Path) -> None:
    """JSON, table and plot; each appears whole or not at all."""
    write_json(out / "cpu.json", results)
    with replacing(out / "cpu.png") as temporary:
        draw(results, temporary)
    write_report(out / "cpu.md", table(results))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        0, or 1 if a case of ours failed. A missed floor is a result, not a failure.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    if argv and not argv[0].startswith("-"):
        return study(*argv)
    options = arguments(argv)
    if options.list:
        print("\n".join(case.name for case in options.cases))
        return 0
    try:
        out = output_folder(options.out)
        start = time.perf_counter()
        settings = Options(options.scale, options.rounds, options.budget)
        results = {"about": about(argv)} | measure(options.cases, settings)
        results["about"] |= {
            "scale": options.scale,
            "rounds": options.rounds,
            "budget": options.budget,
            "seconds": time.perf_counter() - start,
        }
        write(results, out)
    except QmapsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{out / 'cpu.md'}, cpu.json and cpu.png are written")
    return int(any(row.get("failed") for row in results["cases"]))


def _brief(row: dict[str, Any]) -> str:
    if OURS not in row["values"]:
        return f"{row['name']}: {row['skipped'].get(OURS, 'not measured')}"
    return f"{row['name']}: {row['values'][OURS]['median']:.3g} {row['unit']}"


if __name__ == "__main__":
    raise SystemExit(main())
