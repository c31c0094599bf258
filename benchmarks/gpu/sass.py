"""``python -m benchmarks.gpu.sass``: bounds of a step, from its machine code and without a GPU.

Kernels are compiled with line numbers, and run on the processor for counts of their lines
(`benchmarks.gpu.counts`). An instruction counts if it lies on the usual path of the loop over
tiles: in blocks of code with an executed line, outside calls of the slow paths of divisions and
roots, and outside code for diverged warps. The time of a step on a GPU is that of its busiest unit,
from the counts by pipe, the bank conflicts, the bytes and the rates of the GPU.
"""

from __future__ import annotations

import argparse
import csv
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.command import one_line_errors
from benchmarks.gpu.chips import CHIPS, SOURCES, Chip
from benchmarks.gpu.counts import CountingEngine, Counts, Line
from benchmarks.gpu.kernels import usage
from benchmarks.markdown import markdown, number
from qmaps.cuda import compiler
from qmaps.cuda.compiler import Entry
from qmaps.cuda.layout import THREADS, UNIT
from qmaps.errors import BadValueError, QmapsError
from qmaps.optim import AdamW
from qmaps.storage.files import write_text
from reproduction.report_file import ROOT, now, stamped
from tests.cuda.emulation import emulated

CASES = (
    ("32bit", torch.float32),
    ("32bit", torch.bfloat16),
    ("8bit", torch.float32),
    ("8bit", torch.bfloat16),
    ("4bit", torch.float32),
    ("4bit", torch.bfloat16),
)
"""Presets of states, and dtypes of parameters and gradients."""
SHAPE = (96, 256)
"""Shape of the emulated matrix: whole tiles."""
REPORT = ROOT / "reports" / "gpu" / "sass.md"

FLOAT64 = {"sm_80": 32, "sm_90": 64}
"""float64 operations of a multiprocessor per clock, where there are more than 2."""
RATES = {"issue": 128, "alu": 64, "imad": 64, "xu": 16, "lsu": 32}
"""Threads of a multiprocessor per clock. A read of shared memory takes as many turns of ``lsu`` as
its bank conflicts say, one of global memory a turn for every 4 bytes of a thread."""
PIPES = (
    ("xu", r"MUFU|I2F$|F2I|F2FP?$|FRND|POPC|FLO|FCHK|REDUX"),
    ("lsu", r"LDG|LD$|STG|ST$|LDS|STS|SHFL|ATOM|RED|LDL|STL"),
    ("imad", r"IMAD"),
    ("fma", r"FADD|FMUL|FFMA|HFMA2"),
    ("fp64", r"D(ADD|MUL|FMA|SETP)"),
    (
        "",
        r"U[A-Z]|R2UR|S2|LDC|BRA|BSSY|BSYNC|BAR|WARPSYNC|EXIT|CALL|RET|NOP|BREAK|ERRBAR|DEPBAR|VOTE",
    ),
)
"""Names of instructions by pipe; the others take ``alu``, and the last ones no pipe of these."""


@dataclass(frozen=True)
class Instruction:
    """An instruction: its name, its line and those of the calls around it, its target."""

    name: str
    lines: tuple[Line, ...]
    target: str | None
    conditional: bool

    @property
    def calls(self) -> bool:
        """True for a call of a function; functions are slow paths."""
        return self.name.startswith("CALL") and not (self.target or "").startswith(".L_x")

    @property
    def pipe(self) -> str:
        """The pipe of the instruction."""
        base = self.name.split(".")[0]
        return next((pipe for pipe, names in PIPES if re.match(names, base)), "alu")

    @property
    def width(self) -> int:
        """Turns of its pipe without conflicts."""
        if self.name.startswith("F2FP"):
            return 2
        match = re.search(r"\.(64|128)\b", self.name)
        return int(match[1]) // 32 if match else 1


@dataclass
class Block:
    """A run of instructions, and the labels of the blocks after it."""

    label: str
    instructions: list[Instruction]
    following: list[str]
    cold: bool = False


def blocks(listing: str, symbol: str) -> list[Block]:
    """The blocks of a kernel, in their order, from nvdisasm's listing."""
    body = listing.split(f"\n.text.{symbol}:\n", 1)[1].split("\n//------", 1)[0]
    made = [Block("entry", [], [])]
    lines: tuple[Line, ...] = ()
    inlined = False
    for text in body.splitlines():
        if match := re.match(r"\s*//## File \"(.*?)\", line (\d+)( inlined)?", text):
            lines = (*(lines if inlined else ()), (Path(match[1]).name, int(match[2])))
            inlined = bool(match[3])
        elif match := re.match(r"(\.L_x_\d+|\$\S+):", text):
            made[-1].following.append(match[1])
            made.append(Block(match[1], [], []))
        elif match := re.match(r"\s*/\*[0-9a-f]+\*/\s+(@!?U?P\w+ )?([A-Z0-9_.a-z]+)(.*);", text):
            jump = re.match(r"(BRA|CALL|BRX|JMP)", match[2])
            target = re.search(r"`\((\S+)\)", match[3]) if jump else None
            # "@P0 BRA P1, target" has two conditions.
            conditional = bool(match[1]) or bool(jump and re.match(r"\s*!?U?P", match[3]))
            instruction = Instruction(match[2], lines, target and target[1], conditional)
            made[-1].instructions.append(instruction)
            if jump or match[2].startswith(("EXIT", "RET")):
                made = _ended(made, instruction)
    return made


def _ended(made: list[Block], last: Instruction) -> list[Block]:
    """End a block with its jump."""
    before = made[-1]
    returns = last.calls or last.name.startswith("BRA.DIV")
    if last.target and not returns:
        before.following.append(last.target)
    following = Block(f"{before.label}+", [], [])
    if last.conditional or returns:
        before.following.append(following.label)
    return [*made, following]


def usual_path(code: Sequence[Block], lines: dict[Line, int]) -> list[Instruction]:
    """The usual instructions of the largest loop, each once."""
    by_label = {block.label: block for block in code}
    for block in code:
        # A join of branches has the line of the branch before it.
        counted = [i for i in block.instructions if i.lines and i.pipe]
        ran = sum(all(lines.get(line, 1) > 0 for line in i.lines) for i in counted)
        calls = any(i.calls for i in block.instructions)
        block.cold = calls or 2 * ran < len(counted)
    order = {block.label: place for place, block in enumerate(code)}
    warm = _reached(by_label, "entry")
    loops = []
    for block in code:
        for label in block.following:
            if block.label in warm and label in warm and order[label] <= order[block.label]:
                inside = warm & _reached(by_label, label) & _reaching(code, block.label, label)
                loops.append([i for b in code if b.label in inside for i in b.instructions])
    return max(loops, key=len)


def _reached(by_label: dict[str, Block], start: str) -> set[str]:
    seen, waiting = set(), [start]
    while waiting:
        label = waiting.pop()
        if label in seen or label not in by_label or by_label[label].cold:
            continue
        seen.add(label)
        waiting += by_label[label].following
    return seen


def _reaching(code: Sequence[Block], end: str, start: str) -> set[str]:
    """Labels with a path to `end` that does not pass `start`."""
    before: dict[str, list[str]] = {}
    for block in code:
        for label in [] if block.cold else block.following:
            before.setdefault(label, []).append(block.label)
    seen, waiting = {start}, [end]
    while waiting:
        label = waiting.pop()
        if label not in seen:
            seen.add(label)
            waiting += before.get(label, [])
    return seen


@dataclass(frozen=True)
class Kernel:
    """A kernel of a case on one architecture, per element.

    Attributes:
        path: instructions of its usual path, for `UNIT` elements.
        turns: mean turns of reads of shared memory by line.
        registers: of a thread.
        shared: shared memory of a block in bytes.
        static: instructions of the whole kernel.
    """

    path: list[Instruction]
    turns: dict[Line, float]
    registers: int
    shared: int
    static: int

    @property
    def pipes(self) -> Counter[str]:
        """Instructions per element by pipe, turns for ``lsu``, and ``issue`` for all."""
        counts: Counter[str] = Counter()
        for instruction in self.path:
            counts["issue"] += 1
            reads_shared = instruction.name.startswith("LDS")
            conflicts = self.turns.get(instruction.lines[0], 1.0) if reads_shared else 1.0
            counts[instruction.pipe] += max(conflicts, instruction.width)  # type: ignore[assignment]
        return Counter({pipe: count / UNIT for pipe, count in counts.items()})


def analyse(entry: Entry, counts: Counts, arch: str) -> Kernel:
    """Compile a kernel and find its usual path."""
    made = compiler.compile_now(entry, arch)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.code)
        file.flush()
        listing = subprocess.run(
            [str(disassembler()), "-gi", "-c", file.name],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    code = blocks(listing, made.symbol)
    if not any(instruction.lines for block in code for instruction in block.instructions):
        raise BadValueError("the machine code has no line numbers; NVRTC needs -lineinfo")
    used = usage(made)
    static = sum(len(block.instructions) for block in code)
    path = usual_path(code, counts.lines)
    return Kernel(path, counts.turns, used["registers"], used["shared"], static)


def disassembler() -> Path:
    """NVIDIA's nvdisasm, from its wheel."""
    for folder in sys.path:
        if (path := Path(folder) / "nvidia" / "cu13" / "bin" / "nvdisasm").exists():
            return path
    raise BadValueError("nvdisasm is not installed; pip install 'nvidia-cuda-nvdisasm>=13'")


def seconds(kernels: Sequence[Kernel], nbytes: float, chip: Chip) -> dict[str, float]:
    """Seconds of each unit of a GPU for one parameter; `nbytes` is the step's traffic."""
    pipes: Counter[str] = sum((kernel.pipes for kernel in kernels), Counter())
    per_second = chip.processors * chip.clock
    rates = {**RATES, "fma": chip.float32, "fp64": FLOAT64.get(chip.arch, 2)}
    counts = {**pipes, "fma": pipes["fma"] + pipes["imad"]}
    needed = {pipe: counts[pipe] / rates[pipe] / per_second for pipe in rates if counts.get(pipe)}
    return {"memory": nbytes / chip.bandwidth, **needed}


@dataclass(frozen=True)
class Case:
    """A step's kernels with their counts, and bytes of memory traffic per parameter."""

    name: str
    counts: dict[Entry, Counts]
    nbytes: float


def case(preset: str, dtype: torch.dtype, folder: Path) -> Case:
    """Step one matrix on the emulation; the first step is the reference's."""
    generator = torch.Generator().manual_seed(0)
    param = torch.nn.Parameter((torch.randn(SHAPE, generator=generator) * 0.02).to(dtype))
    optimizer = AdamW([param], state_quantizers=preset, weight_decay=0.1)
    engine = CountingEngine(folder)

    def step() -> None:
        sizes = torch.exp(torch.randn(SHAPE[0], 1, generator=generator)) * 1e-3
        param.grad = (torch.randn(SHAPE, generator=generator) * sizes).to(dtype)
        optimizer.step()

    step()
    with emulated(engine):
        step()
    states = [optimizer.state[param][name] for name in ("exp_avg", "exp_avg_sq")]
    moved = 3 * param.nbytes + 2 * sum(state.nbytes for state in states)
    name = f"{preset}, {str(dtype).removeprefix('torch.')}"
    return Case(name, engine.counts, moved / param.numel())


COLUMNS = (
    *("case", "gpu", "arch", "static", "executed", "fma", "alu", "imad", "xu", "lsu", "bytes"),
    *("registers", "warps", "ms_per_billion", "bound", "memory_share"),
)


def rows(cases: Iterable[Case], chips: Iterable[Chip]) -> list[dict[str, str]]:
    """A row for each case and GPU."""
    made, analysed = [], {}
    chips = list(chips)
    for case in cases:
        for chip in chips:
            for entry, counts in case.counts.items():
                if (entry, chip.arch) not in analysed:
                    analysed[entry, chip.arch] = analyse(entry, counts, chip.arch)
            kernels = [analysed[entry, chip.arch] for entry in case.counts]
            made.append(_row(case, kernels, chip))
    return made


def _row(case: Case, kernels: Sequence[Kernel], chip: Chip) -> dict[str, str]:
    needed = seconds(kernels, case.nbytes, chip)
    bound = max(needed, key=lambda unit: needed[unit])
    pipes: Counter[str] = sum((kernel.pipes for kernel in kernels), Counter())
    held = [chip.blocks(k.registers, k.shared, THREADS) for k in kernels]
    cells = [
        *(case.name, chip.name, chip.arch, str(sum(k.static for k in kernels))),
        *(number(pipes[pipe]) for pipe in ("issue", "fma", "alu", "imad", "xu", "lsu")),
        *(
            number(case.nbytes),
            str(max(k.registers for k in kernels)),
            str(min(held) * THREADS // 32),
        ),
        *(number(1e12 * needed[bound]), bound, f"{100 * needed['memory'] / needed[bound]:.0f}%"),
    ]
    return dict(zip(COLUMNS, cells, strict=True))


ABOUT = """# What bounds a step on a GPU

`python -m benchmarks.gpu.sass --write`

**A model, not a measurement.** No step was timed, and the error of this model has never been
measured. NVRTC compiles the kernels of AdamW, and the kernels run on the processor to count which
lines run and which addresses they read. `executed` are the instructions of one parameter on the
usual path through the loop over tiles; the next columns are those of each pipe (`lsu`: turns of 32
threads, with the bank conflicts of the addresses read). The time is that of the busiest unit at
the boost clock and the full bandwidth of memory, and `memory_share` how near memory comes to it.

A device is slower: latency, launches, the codebooks that are copied before the loop, and the
bandwidth that a copy does not reach are left out. Known errors of the counts: a path that some
threads take counts for all warps; one that no thread of the emulated step takes (slow divisions
and roots, tails) counts for none; a read of 8 bytes that all threads share counts two turns, and
takes one.
"""


def report(table: Sequence[dict[str, str]]) -> str:
    """The page."""
    lines = [
        ABOUT,
        *markdown(COLUMNS, [list(row.values()) for row in table]),
        "",
        "Registers of a thread, warps that a multiprocessor holds at once. Sources of the numbers,",
        "which were compared with public pages that quote these documents, not with them:",
        "",
        *(f"- {source}" for source in SOURCES),
    ]
    return stamped("\n".join(lines) + "\n", now(), html=False)


@one_line_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; with all architectures and ``--write``, write the report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.sass", description=__doc__)
    parser.add_argument("--arch", action="append", help="such as sm_90; may be repeated (all)")
    parser.add_argument("--case", action="append", help="such as '8bit, float32' (all)")
    parser.add_argument("--lines", action="store_true", help="instructions by line of the source")
    parser.add_argument("--write", action="store_true", help=f"write {REPORT.relative_to(ROOT)}")
    args = parser.parse_args(arguments)
    chips = [chip for chip in CHIPS if not args.arch or chip.arch in args.arch]
    names = {f"{preset}, {str(dtype)[6:]}": (preset, dtype) for preset, dtype in CASES}
    with tempfile.TemporaryDirectory() as folder:
        cases = []
        for place, (name, (preset, dtype)) in enumerate(names.items()):
            if not args.case or name in args.case:
                target = Path(folder) / str(place)
                target.mkdir()
                cases.append(case(preset, dtype, target))
    if args.lines:
        _print_lines(cases, chips[0].arch)
        return 0
    table = rows(cases, chips)
    print("\n".join(markdown(COLUMNS, [list(row.values()) for row in table])))
    if args.write:
        write_text(REPORT, report(table))
        with REPORT.with_suffix(".csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(table)
    return 0


def _print_lines(cases: Iterable[Case], arch: str) -> None:
    for case in cases:
        for entry, counts in case.counts.items():
            kernel = analyse(entry, counts, arch)
            print(case.name, entry, {k: round(v, 1) for k, v in kernel.pipes.items()})
            by_line = Counter(step.lines[0] for step in kernel.path)
            for line, count in by_line.most_common(60):
                print(f"{count / UNIT:7.2f} {line} {counts.turns.get(line, '')}")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except QmapsError as error:
        sys.exit(str(error))
