"""``python -m qmaps.cuda``: compile kernels without a GPU, and print their registers and memory."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from qmaps.cuda import catalogue, compiler
from qmaps.errors import QmapsError
from qmaps.storage.files import json_text

COLUMNS = ("registers", "spill_stores", "spill_loads", "stack", "shared")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m qmaps.cuda", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    compiling = commands.add_parser(
        "compile", help="compile kernels in the forms that users meet, and report what each takes"
    )
    compiling.add_argument(
        "--arch",
        action="append",
        help="such as sm_90, or all; may be repeated (default: the newest that NVRTC knows)",
    )
    compiling.add_argument("--quick", action="store_true", help="a few kernels only")
    form = compiling.add_mutually_exclusive_group()
    form.add_argument("--summary", action="store_true", help="one line for each architecture")
    form.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    args = parser.parse_args(arguments)
    try:
        return _compile(args.arch, quick=args.quick, summary=args.summary, as_json=args.json)
    except QmapsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _compile(wanted: list[str] | None, *, quick: bool, summary: bool, as_json: bool) -> int:
    if reason := compiler.missing():
        print(f"error: {reason}", file=sys.stderr)
        return 2
    supported = compiler.architectures()
    archs = supported if wanted and "all" in wanted else (wanted or supported[-1:])
    for arch in archs:
        compiler.check_architecture(arch)
    entries = catalogue.entries(quick=quick)
    table = not (summary or as_json)
    usages: dict[str, list[dict[str, Any]]] = {}
    for arch in archs:
        started = time.monotonic()
        rows = usages[arch] = []
        if table:
            print(f"{arch}\n{' '.join(f'{name:>12}' for name in COLUMNS)}  kernel")
        for entry in entries:
            row = {"kernel": entry.name, **compiler.compile_now(entry, arch).usage}
            rows.append(row)
            if table:
                print(f"{' '.join(f'{row[name]:>12}' for name in COLUMNS)}  {entry}", flush=True)
        took = f"{len(rows)} kernels in {time.monotonic() - started:.0f} s"
        if table:
            print(f"{took}\n")
        elif summary:
            used = max(row["registers"] for row in rows)
            spilled = sum(row["spill_stores"] + row["spill_loads"] for row in rows)
            print(f"{arch}: {took}, up to {used} registers, {spilled} bytes spilled", flush=True)
    if as_json:
        print(json_text(usages))
    return 0


if __name__ == "__main__":
    sys.exit(main())
