"""Instructions that the native engine takes on Arm, counted in emulation; no processor is timed.

``python -m benchmarks.arm`` cross-compiles the kernels by Zig's Clang, compares the bits of NEON
with those of portable code on floats of [-1, 1], and runs the steps of the presets under qemu,
which lists every stretch of code that it executes. The difference between a run of one step and a
run of two is what a step takes, with all that comes around its loops. llvm-mca models the cycles of
each stretch, as if it were a loop. It writes reports/bench/arm.md. It needs ``ziglang`` (a Python
package), qemu-aarch64-static, and, for the model, LLVM's llvm-mc and llvm-mca.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.arm import quantizers
from benchmarks.command import one_line_errors
from benchmarks.markdown import markdown
from docsite.page import ROOT
from qmaps.errors import BackendError
from qmaps.optim.presets import PRESETS
from reproduction.report_file import write_report

SOURCE = ROOT / "qmaps" / "engines" / "native" / "src"
DECLARATIONS = ROOT / "qmaps" / "engines" / "kernels" / "declarations.py"
FLAGS = (
    *("-std=c++20", "-O3", "-Wall", "-Wextra", "-DQMAPS_ARM", "-ffp-contract=off"),
    *("-fno-math-errno", "-fno-trapping-math", "-fno-stack-protector"),
)
UNITS = ("codebook.cpp", "buckets.cpp", "kernels_portable.cpp", "kernels_neon.cpp")
KERNELS = "_ZN5qmaps12_GLOBAL__N_1"
"""The functions of kernels begin so. Functions of codebooks do as well, but run once."""
NUMEL = 4096
CORES = ("neoverse-v2", "neoverse-n1", "apple-m1")
BRANCH = re.compile(r"\t(b|bl|br|ret|cbn?z|tbn?z)\b")
STRIDE = 4099
"""Of the floats that are compared."""
SPECS = (
    *("B256/DE@8s", "B256/DE-0@8u", "B256/linear@8s", "B64/geometric@8u", "B128/DE@4s"),
    *("B100/DE@5s", "B64xbf16/mu-law10:linear0@4s", "B64xbf16/geometric@4u", "B32/linear@3u"),
    *("B48/DE@7s", "B64/nf4@4s", "B32/linear@2s", "B24/DE@6s", "B24/linear0@2u", "B64/e4m3@8s"),
)


def presets() -> dict[str, tuple[str, str]]:
    """The quantizers of both moments, by the preset's name."""
    pairs: dict[str, tuple[str, str]] = {}
    for name in ("8bit", "4bit"):
        preset = PRESETS[name]
        signed, unsigned = preset.paired or (preset.signed, preset.unsigned)
        assert signed is not None
        assert unsigned is not None
        size = preset.block_size
        pairs[name] = (signed.format(block=size), unsigned.format(block=size))
    return pairs


def build(folder: Path, compiler: Sequence[str]) -> Path:
    """The program of steps.cpp for aarch64."""
    generated = folder / "generated"
    generated.mkdir()
    for what in ("rules", "enumerations"):
        subprocess.run([sys.executable, DECLARATIONS, what, generated / f"{what}.hpp"], check=True)
    program = folder / "steps"
    sources = [*(SOURCE / unit for unit in UNITS), Path(__file__).with_name("steps.cpp")]
    command = [*compiler, *FLAGS, "-static", f"-I{ROOT}", f"-I{folder}"]
    subprocess.run([*command, *sources, "-o", program], check=True)
    return program


class Code(NamedTuple):
    """A stretch of code without a branch in it."""

    function: str
    instructions: tuple[int, ...]


def executed(program: Path, words: Sequence[str]) -> tuple[Counter[int], dict[int, Code]]:
    """Executions of each stretch by its address, and the stretches.

    Args:
        program: the program of `build`.
        words: its arguments.
    """
    command = ["qemu-aarch64-static", "-d", "in_asm,exec,nochain", str(program), *words]
    counts: Counter[int] = Counter()
    found: dict[int, Code] = {}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace") as process:
        assert process.stderr is not None
        function, address = "", 0
        code: list[int] = []
        for line in process.stderr:
            if line.startswith("Trace"):
                counts[int(line.split("/", 2)[1], 16)] += 1
            elif line.startswith("0x"):
                fields = line.split()
                address = address if code else int(fields[0].rstrip(":"), 16)
                code.append(int(fields[1], 16))
                found[address] = Code(function, tuple(code))
            else:
                function = line[4:].strip() if line.startswith("IN:") else function
                code = []
    if process.returncode:
        raise BackendError(f"{' '.join(command)} ended with status {process.returncode}")
    return counts, found


class Stretch(NamedTuple):
    """A stretch of code, and its executions per element."""

    code: Code
    times: float

    @property
    def instructions(self) -> float:
        """Per element."""
        return self.times * len(self.code.instructions)


def stretches(program: Path, file: Path, isa: str, operation: str) -> list[Stretch]:
    """The code of kernels that an operation runs.

    Args:
        program: the program of `build`.
        file: the quantizers.
        isa: an instruction set.
        operation: of steps.cpp.
    """
    words = [str(file), "run", isa, operation, str(NUMEL)]
    (once, _), (twice, code) = (executed(program, [*words, times]) for times in ("1", "2"))
    return [
        Stretch(code[address], (twice[address] - once[address]) / NUMEL)
        for address in twice
        if twice[address] > once[address] and code[address].function.startswith(KERNELS)
    ]


def cycles(code: Sequence[Stretch], core: str, llvm: str) -> float:
    """Cycles an element by llvm-mca, where stretches do not overlap."""
    total = 0.0
    for stretch in code:
        raw = " ".join(
            " ".join(f"0x{word >> shift & 255:02x}" for shift in (0, 8, 16, 24))
            for word in stretch.code.instructions
        )
        target = ["-triple=aarch64", f"-mcpu={core}"]
        text = subprocess.run(
            [f"{llvm}mc", "-disassemble", *target, "-mattr=+all"],
            input=raw, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        lines = [
            line
            for line in text.splitlines()
            if line.startswith("\t") and not (line.startswith("\t.") or BRANCH.search(line))
        ]
        if not lines:
            continue
        answer = subprocess.run(
            [f"{llvm}mca", "-mtriple=aarch64", f"-mcpu={core}", "-iterations=100"],
            input="\n".join(lines), capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        total += stretch.times * int(re.search(r"Total Cycles:\s+(\d+)", answer)[1]) / 100  # type: ignore[index]
    return total


PARTS = {
    "rule": ("apply",),
    "decoding": ("look_up", "unpack", "decode", "log_values", "widen"),
    "encoding": ("encode", "find_codes", "round", "search", "store_codes", "largest", "highest"),
}


def part_of(function: str) -> str:
    """Part of a step that a function belongs to."""
    plain = function.removeprefix(KERNELS).lstrip("0123456789")
    return next((part for part, names in PARTS.items() if plain.startswith(names)), "the rest")


def counted(program: Path, folder: Path, llvm: str | None) -> list[str]:
    """Lines of the report."""
    rows, parts = [], []
    for name, pair in presets().items():
        file = folder / f"{name}.txt"
        quantizers.write(file, pair)
        for isa in ("portable", "neon"):
            code = stretches(program, file, isa, "step:0")
            model = (
                [f"{cycles(code, core, llvm):.1f}" for core in CORES] if llvm is not None else []
            )
            sums: dict[str, float] = defaultdict(float)
            for stretch in code:
                sums[part_of(stretch.code.function)] += stretch.instructions
            rows.append(
                (
                    f"AdamW {name}",
                    isa,
                    f"{sum(s.instructions for s in code):.1f}",
                    *model,
                )
            )
            parts.append(
                (f"AdamW {name}", isa, *(f"{sums[part]:.1f}" for part in (*PARTS, "the rest")))
            )
            print(*rows[-1], *parts[-1][2:], flush=True)
    head = ("step", "instruction set", "instructions")
    cores = CORES if llvm is not None else ()
    return [
        *markdown((*head, *cores), rows),
        "",
        "Instructions of its parts:",
        "",
        *markdown(("step", "instruction set", *PARTS, "the rest"), parts),
    ]


@one_line_errors
def main(argv: Sequence[str] | None = None) -> int:
    """Compare, count, and write the report."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.arm", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--compiler", default=f"{sys.executable} -m ziglang c++")
    parser.add_argument("--llvm", metavar="PREFIX", help="path of llvm-mc and llvm-mca up to llvm-")
    parser.add_argument("--check", action="store_true", help="compare alone; write no report")
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "bench" / "arm.md")
    options = parser.parse_args(argv)
    if shutil.which("qemu-aarch64-static") is None:
        raise BackendError("there is no qemu-aarch64-static; install qemu-user-static")
    compiler = [*options.compiler.split(), "-target", "aarch64-linux-musl"]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        program = build(folder, compiler)
        every = folder / "every.txt"
        more = tuple(spec + way for spec in SPECS for way in ("", "+sr", "+qsr"))
        quantizers.write(every, (*(spec for pair in presets().values() for spec in pair), *more))
        command = ["qemu-aarch64-static", str(program), str(every), "check", str(STRIDE)]
        if subprocess.run(command, check=False).returncode:
            raise BackendError("NEON and portable code make other bits")
        if options.check:
            return 0
        table = counted(program, folder, options.llvm)
    lines = [
        "# Instructions on Arm",
        "",
        "`python -m benchmarks.arm`",
        "",
        "No Arm processor was timed. Instructions an element of a step of AdamW, compiled by Clang "
        "(Zig's) and counted under qemu, and cycles an element of the same code by llvm-mca's "
        "models, where stretches of code do not overlap. Its apple-m1 takes divisions and square "
        "roots for as cheap as sums, which they are not. GCC makes more instructions: version 12 "
        "made 32 and 40 of the code for NEON.",
        "",
        *table,
        "",
    ]
    write_report(options.out, "\n".join(lines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
