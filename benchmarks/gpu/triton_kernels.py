"""``python -m benchmarks.gpu.triton_kernels``: Triton's kernels, compiled without a GPU.

For each case and architecture: registers of a thread, bytes of spills and of shared memory, and
instructions. `check` raises where a compiler fused a product with a sum, flushed subnormal numbers,
or approximated a division or a root. With ``--model``, prints the table of `benchmarks.gpu.sass`
for these kernels, beside those of the CUDA engine.
"""

from __future__ import annotations

import argparse
import csv
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from benchmarks.command import one_line_errors
from benchmarks.gpu.chips import CHIPS
from benchmarks.markdown import markdown, number
from qmaps import optim
from qmaps.algebra.quantizer import quantizer
from qmaps.engines.step_scalars import values_at
from qmaps.engines.triton import source
from qmaps.engines.triton.engine import OPTIONS
from qmaps.engines.triton.source import DTYPES, Kind
from qmaps.engines.triton.tensors import DECODE, ENCODE
from qmaps.engines.triton.trace import Trace, trace
from qmaps.errors import BadValueError
from qmaps.storage.files import write_text
from reproduction.report_file import ROOT, now, stamped

ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_120", "gfx90a", "gfx942", "gfx950", "gfx1100",
                 "gfx1201")  # fmt: skip
NUMEL = 1 << 20
REPORT = ROOT / "reports" / "gpu" / "triton.md"
SASS = ROOT / "reports" / "gpu" / "sass.csv"


@dataclass(frozen=True)
class Case:
    """A kernel: a rule's step over whole tiles, or with masks; without a rule a quantizer."""

    rule: str
    states: str
    dtype: torch.dtype = torch.float32
    whole: bool = True
    rounds: bool = False

    @property
    def name(self) -> str:
        """Its name in tables."""
        words = [self.rule, self.states, str(self.dtype).removeprefix("torch.")]
        words += ["rounded stochastically"] if self.rounds else []
        return ", ".join(words if self.whole else [*words, "ragged"])


CASES = (
    Case("AdamW", "8bit"), Case("AdamW", "8bit", torch.bfloat16),
    Case("AdamW", "4bit"), Case("AdamW", "4bit", torch.bfloat16),
    Case("AdamW", "32bit"), Case("AdamW", "8bit", whole=False),
    Case("AdamW", "4bit-0.3", torch.bfloat16, rounds=True),
    Case("quantize", "B64xbf16/geometric@4u+qsr"),
)  # fmt: skip


def described(case: Case) -> tuple[Trace, Kind]:
    """A case's rule and kind."""
    dtype = DTYPES[case.dtype]
    if "/" in case.states:
        q = quantizer(case.states)
        state = source.kind_of(q, (NUMEL,))
        kind = Kind(dtype, dtype, (state,), source.stride_of([state], NUMEL), mode=case.rule)
        return (ENCODE if case.rule == "quantize" else DECODE), replace(kind, whole=case.whole)
    param = torch.nn.Parameter(torch.zeros(NUMEL, dtype=case.dtype))
    optimizer = getattr(optim, case.rule)([param], state_quantizers=case.states)
    scalars = optimizer.step_scalars(optimizer.param_groups[0])
    values = dict(zip(scalars, values_at(scalars.values(), 1), strict=True))
    states = {s.name: s.quantizer for s in optimizer._parameters.records()[0].states()}
    kinds = tuple(source.kind_of(q, (NUMEL,)) for q in states.values())
    stride = source.stride_of(kinds, NUMEL)
    kind = Kind(dtype, dtype, kinds, stride, rounds=case.rounds, whole=case.whole)
    return trace(optimizer.advance, states, values), kind


@dataclass(frozen=True)
class Compiled:
    """A kernel for one architecture: its code by kind of text, and its resources."""

    asm: dict[str, Any]
    usage: dict[str, int]
    kind: Kind


@cache
def compiled(case: Case, arch: str) -> Compiled:
    """Compile a case without a GPU."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile  # noqa: A004

    traced, kind = described(case)
    function = source.built(source.text_of(traced, kind, aligned=True))
    types = {name: _type(name) for name in function.arg_names}
    pointers = [place for place, name in enumerate(types) if types[name].startswith("*")]
    attributes = {(place,): [["tt.divisibility", source.ALIGNED]] for place in pointers}
    made = ASTSource(function, types, constexprs={}, attrs=attributes)
    target = (
        GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)
        if arch.startswith("sm_")
        else GPUTarget("hip", arch, 64 if arch.startswith("gfx9") else 32)
    )
    done = compile(made, target=target, options={"num_warps": kind.warps, **OPTIONS})
    usage = (
        _cubin_usage(done.asm["cubin"]) if "cubin" in done.asm else _amd_usage(done.asm["amdgcn"])
    )
    usage["shared"] = done.metadata.shared
    return Compiled(dict(done.asm), usage, kind)


def _type(name: str) -> str:
    if name in source.STEP_WORDS:
        return "i32"
    if re.fullmatch(r"s\d+", name):
        return "fp32"
    kinds = {"items": "*i32", "table": "*i64", "gradients": "*i64", "grad_scale": "*i64"}
    return kinds.get(name) or ("*u8" if name.startswith("guess") else "*fp32")


def tool(name: str) -> str:
    """A program of NVIDIA's in Triton's wheel."""
    import triton

    return str(Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name)


def _run(name: str, code: bytes, *options: str) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        command = [tool(name), *options, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _cubin_usage(code: bytes) -> dict[str, int]:
    text = _run("cuobjdump", code, "-res-usage")
    fields = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", text)}
    instructions = re.findall(r"/\*[0-9a-f]{4,}\*/\s+[^;]+;", _run("nvdisasm", code, "-c"))
    return {"registers": fields["REG"], "spills": fields["STACK"] + fields["LOCAL"],
            "instructions": len(instructions)}  # fmt: skip


def _amd_usage(text: str) -> dict[str, int]:
    body = text.split("s_endpgm")[0]
    fields = {
        name: int(value)
        for name, value in re.findall(
            r"\.(vgpr_count|vgpr_spill_count|sgpr_spill_count|private_segment_fixed_size):\s+(\d+)",
            text,
        )
    }
    lines = [line for line in body.splitlines() if re.match(r"\s+[vsdgb]\w*_\w+", line)]
    spills = fields["vgpr_spill_count"] + fields["private_segment_fixed_size"]
    return {"registers": fields["vgpr_count"], "spills": spills, "instructions": len(lines)}


def faults(asm: dict[str, Any]) -> list[str]:
    """Operations in a kernel's code that give other bits than the reference."""
    if "ptx" in asm:
        words = {
            "a fused multiply-add": r"\bfma\.|\bmad\.\S*f32", "subnormals flushed": r"\.ftz\b",
            "an approximate division": r"\bdiv\.(full|approx)|\brcp\.approx",
            "an approximate root": r"\bsqrt\.approx|\brsqrt",
        }  # fmt: skip
        return [name for name, pattern in words.items() if re.search(pattern, asm["ptx"])]
    words = {
        "a fused multiply-add": r"llvm\.fmuladd|llvm\.fma\.|\bcontract\b",
        "an approximate operation": r"\b(fast|afn|arcp)\b|llvm\.amdgcn\.(rcp|rsq|sqrt)",
    }
    operations = [name for name, pattern in words.items() if re.search(pattern, asm["llir"])]
    divides = re.search(
        r"v_div_fixup|v_sqrt|v_rcp|v_rsq", asm["amdgcn"]
    )  # which consist of fused operations
    if not (operations or divides) and re.search(r"v_(pk_)?(fma|fmac|mac|mad)_f32", asm["amdgcn"]):
        operations.append("a fused multiply-add")
    if '"denormal-fp-math-f32"="ieee"' not in asm["llir"]:
        operations.append("subnormals flushed")
    return operations


COLUMNS = ("case", "arch", "registers", "spills", "shared", "instructions")


def rows(cases: Sequence[Case], architectures: Sequence[str]) -> Iterator[list[str]]:
    """A row for each case and architecture."""
    for case in cases:
        for arch in architectures:
            kernel = compiled(case, arch)
            if wrong := faults(kernel.asm):
                raise BadValueError(f"{case.name} for {arch} has {', '.join(wrong)}")
            usage = [str(kernel.usage[name]) for name in COLUMNS[2:6]]
            yield [case.name, arch, *usage]


MODEL = (
    "case", "gpu", "executed", "executed_cuda", "lsu", "lsu_cuda", "bytes", "ms_per_billion",
    "ms_cuda", "bound", "memory_share",
)  # fmt: skip


def model(cases: Sequence[Case]) -> Iterator[list[str]]:
    """The model of `benchmarks.gpu.sass` for these kernels, and its numbers for the CUDA engine."""
    from benchmarks.gpu import sass

    with SASS.open() as file:
        theirs = {(row["case"], row["gpu"]): row for row in csv.DictReader(file)}
    for case in cases:
        for chip in CHIPS:
            key = f"{case.states}, {str(case.dtype).removeprefix('torch.')}", chip.name
            if key not in theirs or chip.arch not in ("sm_80", "sm_90"):
                continue
            kernel, cuda = compiled(case, chip.arch), theirs[key]
            pipes = _pipes(kernel, sass)
            per_second = chip.processors * chip.clock
            rates = {**sass.RATES, "fma": chip.float32}
            counts = {**pipes, "fma": pipes["fma"] + pipes["imad"]}
            needed = {pipe: counts[pipe] / rates[pipe] / per_second for pipe in rates}
            needed["memory"] = float(cuda["bytes"]) / chip.bandwidth
            bound = max(needed, key=lambda unit: needed[unit])
            yield [
                key[0], chip.name, number(pipes["issue"]), cuda["executed"], number(pipes["lsu"]),
                cuda["lsu"], cuda["bytes"], number(1e12 * needed[bound]), cuda["ms_per_billion"],
                bound, f"{100 * needed['memory'] / needed[bound]:.0f}%",
            ]  # fmt: skip


LINE = 128
"""Bytes of a line of the first-level cache; a gather reads one line in a turn."""


def _pipes(kernel: Compiled, sass: Any) -> Counter[str]:
    """Instructions per element by pipe, on the usual path: without slow paths of divisions."""
    code = sass.blocks(_run("nvdisasm", kernel.asm["cubin"], "-c"), "kernel")
    by_label = {block.label: block for block in code}
    for block in code:
        block.cold = any(step.calls for step in block.instructions)
    warm = sass._reached(by_label, "entry")
    elements = kernel.kind.tile / (32 * kernel.kind.warps)
    counts: Counter[str] = Counter()
    for block in code:
        for step in block.instructions if block.label in warm else []:
            counts["issue"] += 1
            counts[step.pipe] += step.width
    # Gathers from tables: a turn for each line that 32 random places of a table touch.
    turns = 0.0
    for state in kernel.kind.states:
        if state.bits != source.PLAIN.bits:
            _, _, buckets, signed, steps = state.search
            book, guess = _lines_touched(4 << state.bits), _lines_touched(buckets << signed)
            looks = 1 + 2 * state.rounding.stochastic
            turns += (looks + steps) * (book - 1) + guess - 1
    per_element = Counter({pipe: count / elements for pipe, count in counts.items()})
    per_element["lsu"] += turns  # type: ignore[assignment]
    return per_element


def _lines_touched(nbytes: int) -> float:
    lines = max(1.0, nbytes / LINE)
    return float(lines * (1 - (1 - 1 / lines) ** 32))


ABOUT = """# Triton's kernels, compiled without a GPU

`python -m benchmarks.gpu.triton_kernels --write`, Triton {version}: registers of a thread, bytes of
spills and of stack, bytes of shared memory of a block, and instructions of the whole kernel.
Kernels are those of whole tiles, unless they are called ragged. None has a fused multiply-add, an
approximate division or root, or flushes subnormal numbers: the command checks the code of each.
**Nothing here has run on a GPU yet.**
"""
ABOUT_MODEL = """
## Beside the CUDA engine, by the model

[The model of the CUDA kernels](sass.md) for both engines, for AdamW and whole tiles: instructions
of one parameter on the usual path (`executed`), turns of the load and store unit (`lsu`), and the
time of the busiest unit. **No step was timed.** Triton's kernels read codebooks and guesses
through the first cache, where a read of 32 places takes a turn for each line of 128 bytes: the
model takes the places to be random, which is the worst case. The CUDA engine's tables are in shared
memory.

Triton's step needs 1.2 times the instructions of the CUDA engine in 32 bits, and about twice as
many in 8 and 4 bits, where the CUDA engine is near the memory's bound and Triton's is not. So
NVIDIA's GPUs keep the CUDA engine wherever it can be compiled.
"""


@one_line_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; with ``--write``, write the report."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.triton_kernels", description=__doc__
    )
    parser.add_argument(
        "--arch", action="append", choices=ARCHITECTURES, help="may be repeated (all)"
    )
    parser.add_argument("--quick", action="store_true", help="the first and the fourth case only")
    parser.add_argument("--model", action="store_true", help="also the model of a step's time")
    parser.add_argument("--write", action="store_true", help=f"write {REPORT.relative_to(ROOT)}")
    args = parser.parse_args(arguments)
    import triton

    cases = (CASES[0], CASES[3]) if args.quick else CASES
    table = list(rows(cases, args.arch or ARCHITECTURES))
    lines = [ABOUT.format(version=triton.__version__), *markdown(COLUMNS, table)]
    if args.model or args.write:
        full_tiles = [
            case for case in cases if case.rule == "AdamW" and case.whole and not case.rounds
        ]
        lines += [ABOUT_MODEL, *markdown(MODEL, list(model(full_tiles)))]
    text = "\n".join(lines) + "\n"
    print(text)
    if args.write:
        write_text(REPORT, stamped(text, now(), html=False))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
