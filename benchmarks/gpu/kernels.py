"""``python -m benchmarks.gpu.kernels``: compile kernels without a GPU; print their resources.

The kernels are those of `qmaps.cuda`, with the template arguments of common options.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from itertools import product

from qmaps.algebra.quantizer import quantizer
from qmaps.cuda import compiler
from qmaps.cuda.compiler import Compiled, Entry, kernel
from qmaps.cuda.plan import SPLIT_TYPES
from qmaps.cuda.tensors import format_name, layout_of
from qmaps.engines.rules import Factoring, rules
from qmaps.engines.step import FACTORED
from qmaps.errors import QmapsError

USAGE = {
    "registers": r"Used (\d+) registers",
    "spill_stores": r"(\d+) bytes spill stores",
    "spill_loads": r"(\d+) bytes spill loads",
    "stack": r"(\d+) bytes stack frame",
    "shared": r"(\d+) bytes smem",
}
"""The columns of the table, and the compiler's words for each."""

SPECS = (
    *("B256/DE@8s", "B256/DE@8s+sr", "B2048/DE-0@8u", "B128/DE@4s", "B128/DE@4s+sr"),
    *("B128/linear@4u", "rank1/linear@4u", "B64/DE@5s+sr", "logB128/log2@8u"),
    *("logB128q0.1/log2-0@4u", "powB128r100352/e4m3@8s", "powB128r100352/e4m3@8u"),
    *("powB128r16/linear@4s+sr", "B32xf16/softsign@8s", "B32xf16sq/sqrt@8u"),
    *("B16xe4m3/e2m1@4s", "bf16+sr", "fp16", "B256/linear@12u"),
)


def _format(spec: str) -> str:
    q = quantizer(spec)
    return format_name(q.map, layout_of(q.normalizer, (64, 2048)), stochastic=q.stochastic)


FORMATS = {
    **{spec: _format(spec) for spec in SPECS},
    "any codebook": "Format<8, 256, false, false, true, 4>",
}
"""Template arguments of kernels, by a quantizer that needs them; ``B128/DE-0@4u`` needs the same as
``B128/linear@4u``."""

MOST = 128
"""Registers of a thread; with more, two blocks of 256 threads do not fit in a multiprocessor."""

MULTI_BLOCK = ("rank1/linear@4u", "fp16")
"""Names in `FORMATS` of scales of more than a block."""

PAIRS = (
    ("B256/DE@8s", "B2048/DE-0@8u"),
    ("B256/DE@8s+sr", "logB128/log2@8u"),
    ("B128/DE@4s", "B128/linear@4u"),
    ("B128/DE@4s", "rank1/linear@4u"),
    ("B128/DE@4s+sr", "B128/linear@4u"),
    ("B32xf16/softsign@8s", "B32xf16sq/sqrt@8u"),
    ("B128/DE@4s", "logB128q0.1/log2-0@4u"),
    ("bf16+sr", "fp16"),
    ("B256/linear@12u", "B256/linear@12u"),
    ("powB128r100352/e4m3@8s", "powB128r100352/e4m3@8u"),
    ("powB128r16/linear@4s+sr", None),
    ("any codebook", None),
)
"""Names in `FORMATS` of first and second moments; None means float32."""


def entries(*, quick: bool = False) -> list[Entry]:
    """At least one entry for every kernel; with `quick` a few with most of the code."""
    if quick:
        return [*_tensors(["float"], ["B256/DE@8s", "rank1/linear@4u"]), *_steps(PAIRS[3:5])]
    types = ["float", "Bf16", "F16"]
    return [
        *_tensors(types, list(FORMATS)),
        *_scales(),
        *_steps(PAIRS),
        *_splits(),
        *_rules(),
        *_quantiles(types),
    ]


def _tensors(types: list[str], formats: list[str]) -> list[Entry]:
    plain = [kernel(name, type_) for name in ("scan", "find_maxima") for type_ in types]
    # Every format with one type, every type with one format.
    pairs = [("float", name) for name in formats] + [(type_, formats[0]) for type_ in types[1:]]
    coded = [
        kernel(name, type_, FORMATS[form])
        for name, (type_, form) in product(("encode", "decode"), pairs)
    ]
    return plain + coded


def _scales() -> list[Entry]:
    names = ("find_{}_ends", "new_{}_grids", "round_{}_scales", "commit_{}_scales", "read_{}_grids")
    return [kernel(name.format(of)) for of in ("tensor", "step") for name in names]


def _steps(pairs: tuple[tuple[str, str | None], ...]) -> list[Entry]:
    made = [kernel(name) for name in ("begin_step", "write_words")]
    made.append(kernel("check_gradients", "Bf16"))
    for first, second in pairs:
        formats = [FORMATS[name] if name else "Plain" for name in (first, second)]
        kind = f"Kind<AdamW, float, float, false, {', '.join(formats)}>"
        made.append(kernel("step", kind))
        if second in MULTI_BLOCK:
            made.append(kernel("step_maxima", kind))
    return made


def _splits() -> list[Entry]:
    """Bfloat16 parameters with remainders."""
    states = ", ".join(FORMATS[name] for name in PAIRS[0] if name)
    kinds = [f"Kind<AdamW, {type_}, Bf16, false, {states}>" for type_ in SPLIT_TYPES.values()]
    return [kernel("step", kind) for kind in kinds]


def _rules() -> list[Entry]:
    """Every rule, with bfloat16 parameters rounded stochastically."""
    made = []
    for rule in rules().values():
        formats = [FORMATS["B256/DE@8s"] for state in rule.states if state != FACTORED]
        kind = ", ".join([rule.type, "Bf16", "Bf16", "true", *formats])
        names = ["step", *(["step_norms", "finish_norms"] if rule.takes_norms else [])]
        names += ["factored_sums", "finish_factored"] if rule.factoring is Factoring.PRODUCT else []
        made += [kernel(name, f"Kind<{kind}>") for name in names]
    return made


def _quantiles(types: list[str]) -> list[Entry]:
    """Chunks of 4096, and some shorter ones."""
    finds = [kernel("find_quantiles", type_, 12) for type_ in types]
    finds += [kernel("find_quantiles", "float", bits) for bits in (0, 3, 7, 10)]
    return [*finds, kernel("add_rows")]


def usage(made: Compiled) -> dict[str, int]:
    """Registers per thread, and bytes of spills (stores, loads), stack and shared memory."""
    lines = made.log.splitlines()
    start = next(i for i, line in enumerate(lines) if f"function '{made.symbol}'" in line)
    block = "\n".join(lines[start : start + 4])
    matches = {name: re.search(pattern, block) for name, pattern in USAGE.items()}
    return {name: int(match[1]) if match else 0 for name, match in matches.items()}


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status, 1 where a kernel needs too many registers."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.kernels", description=__doc__)
    parser.add_argument(
        "--arch",
        action="append",
        help="such as sm_90, or all; may be repeated (default: the newest that NVRTC knows)",
    )
    parser.add_argument("--quick", action="store_true", help="a few kernels only")
    parser.add_argument("--summary", action="store_true", help="one line for each architecture")
    args = parser.parse_args(arguments)
    try:
        fit = _compile(args.arch, quick=args.quick, summary=args.summary)
    except QmapsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return int(not fit)


def _compile(wanted: list[str] | None, *, quick: bool, summary: bool) -> bool:
    """Compile and print; True if all kernels take at most `MOST` registers and spill none."""
    supported = compiler.architectures()
    archs = supported if wanted and "all" in wanted else (wanted or supported[-1:])
    for arch in archs:
        compiler.check_architecture(arch)
    selected = entries(quick=quick)
    fit = True
    for arch in archs:
        started = time.monotonic()
        used = spilled = 0
        if not summary:
            print(f"{arch}\n{' '.join(f'{name:>12}' for name in USAGE)}  kernel")
        for entry in selected:
            resources = usage(compiler.compile_now(entry, arch))
            used = max(used, resources["registers"])
            spilled += resources["spill_stores"] + resources["spill_loads"]
            if not summary:
                print(
                    f"{' '.join(f'{resources[name]:>12}' for name in USAGE)}  {entry}", flush=True
                )
        took = f"{len(selected)} kernels in {time.monotonic() - started:.0f} s"
        print(f"{arch}: {took}, up to {used} registers, {spilled} bytes spilled", flush=True)
        fit &= not spilled and used <= MOST
    return fit


if __name__ == "__main__":
    sys.exit(main())
