"""``python -m qmaps.cuda``: compile kernels without a GPU, and print their registers and memory."""

from __future__ import annotations

import argparse
import sys
import time

from qmaps.cuda import catalogue, compiler
from qmaps.errors import QmapsError

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
    compiling.add_argument("--summary", action="store_true", help="one line for each architecture")
    args = parser.parse_args(arguments)
    try:
        return _compile(args.arch, quick=args.quick, summary=args.summary)
    except QmapsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _compile(wanted: list[str] | None, *, quick: bool, summary: bool) -> int:
    if reason := compiler.missing():
        print(f"error: {reason}", file=sys.stderr)
        return 2
    supported = compiler.architectures()
    archs = supported if wanted and "all" in wanted else (wanted or supported[-1:])
    for arch in archs:
        compiler.check_architecture(arch)
    entries = catalogue.entries(quick=quick)
    for arch in archs:
        started = time.monotonic()
        used = spilled = 0
        if not summary:
            print(f"{arch}\n{' '.join(f'{name:>12}' for name in COLUMNS)}  kernel")
        for entry in entries:
            usage = compiler.compile_now(entry, arch).usage
            used = max(used, usage["registers"])
            spilled += usage["spill_stores"] + usage["spill_loads"]
            if not summary:
                print(f"{' '.join(f'{usage[name]:>12}' for name in COLUMNS)}  {entry}", flush=True)
        took = f"{len(entries)} kernels in {time.monotonic() - started:.0f} s"
        print(f"{arch}: {took}, up to {used} registers, {spilled} bytes spilled", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
