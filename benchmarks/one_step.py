"""One-step errors of the formats of 2026, with and without a spec.

``python -m benchmarks.one_step`` quantizes both moments of 32-bit AdamW once, after half of a
task's steps, with each format, and writes reports/one-step.{csv,md}. Formats outside the algebra
are implemented here, after the encoders and decoders of their packages.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

import qmaps
from benchmarks.command import among, command_line, one_line_errors
from benchmarks.markdown import markdown, number
from benchmarks.trials import FULL
from qmaps.algebra.pair import adam_update
from qmaps.capture import StateRecorder, load
from qmaps.lab.compare import Contender
from qmaps.lab.workloads import train
from qmaps.optim.presets import pair_of
from qmaps.storage.files import output_folder, write_text
from reproduction.report_file import write_report
from reproduction.tasks import TASKS

DEFAULT = ("docstring-lm", "lm-tiny")
BETAS = 0.9, 0.999
LARGE = 4096
"""Tensors of at most this many elements stay in 32 bits."""

Stored = tuple[Tensor, float]
"""Decoded values, and bits per element."""
State = Callable[[Tensor], Stored]


@dataclass(frozen=True)
class Method:
    """A format of both moments.

    Attributes:
        name, source: its name, and the package.
        first, second: encode and decode a moment; the first also gets the update's denominator.
        spec: the same format, or the closest one, in the algebra.
    """

    name: str
    source: str
    first: Callable[[Tensor, Tensor], Stored]
    second: State
    spec: str = ""


def blocks(x: Tensor, size: int) -> Tensor:
    """The elements in rows of `size`, the last one filled up by its last element."""
    flat = x.reshape(-1)
    missing = -flat.numel() % size
    return torch.cat([flat, flat[-1:].expand(missing)]).view(-1, size)


def whole(rows: Tensor, x: Tensor) -> Tensor:
    return rows.reshape(-1)[: x.numel()].view(x.shape)


def by_spec(spec: str) -> State:
    """The encoding of a quantizer of the algebra."""
    q = qmaps.quantizer(spec)

    def stored(x: Tensor) -> Stored:
        t = q.quantize(x)
        return t.dequantize(), t.bits_per_element

    return stored


def twos_complement(bits: int, size: int = 256) -> State:
    """Multiples of 2^(1 - bits) of a block's largest magnitude, from -1 to less than 1."""

    def stored(x: Tensor) -> Stored:
        rows, half = blocks(x, size), 2 ** (bits - 1)
        scale = rows.abs().amax(1, keepdim=True).clamp_min(1e-12)
        codes = (rows / scale * half).round().clamp(-half, half - 1)
        return whole(codes * (scale / half), x), bits + 32 / size

    return stored


def dynamic(bits: int, size: int = 256) -> State:
    """`DE` with zero for zeros only; other elements take the smallest value of their sign."""
    q = qmaps.quantizer(f"B{size}/DE@{bits}s")
    book = q.map.codebook()
    smallest = float(book[book > 0].min())

    def stored(x: Tensor) -> Stored:
        t = q.quantize(x)
        scale = blocks(x, size).abs().amax(1, keepdim=True).expand(-1, size)
        small = x.sign() * smallest * whole(scale, x)
        y = t.dequantize()
        return torch.where((y == 0) & (x != 0), small, y), t.bits_per_element

    return stored


def upper_half(size: int = 256) -> State:
    """Second moments under 16 signed levels, eight of them above zero: 1/15, 3/15, ..., 1."""

    def stored(x: Tensor) -> Stored:
        rows = blocks(x, size)
        scale = rows.amax(1, keepdim=True)
        codes = ((rows / scale + 1) * 7.5).nan_to_num(0).round().clamp(8, 15)
        return whole((codes / 7.5 - 1) * scale, x), 4 + 32 / size

    return stored


def means(size: int) -> State:
    """One mean for each block."""

    def stored(x: Tensor) -> Stored:
        rows = blocks(x, size)
        return whole(rows.mean(1, keepdim=True).expand_as(rows), x), 32 / size

    return stored


def logs(bits: int, size: int = 128, ends: torch.dtype = torch.float16) -> State:
    """Levels between the logarithms of a block's ends, rounded stochastically in the value."""

    def stored(x: Tensor) -> Stored:
        draw = torch.Generator().manual_seed(0)
        rows = blocks(x, size).clamp_min(1e-38)
        log = rows.log()
        low, high = log.amin(1, keepdim=True).to(ends), log.amax(1, keepdim=True).to(ends)
        if ends == torch.float16:  # outward
            infinity = torch.tensor(torch.inf, dtype=ends)
            low = torch.where(low.float() > log.amin(1, True), low.nextafter(-infinity), low)
            high = torch.where(high.float() < log.amax(1, True), high.nextafter(infinity), high)
        low, high, top = low.float(), high.float(), 2**bits - 1
        step = (high - low) / top
        under = ((log - low) / step.clamp_min(1e-10)).clamp(0, top).floor()
        floor, ceiling = ((low + n * step).exp() for n in (under, (under + 1).clamp_max(top)))
        share = ((rows - floor) / (ceiling - floor).clamp_min(1e-38)).clamp(0, 1)
        up = torch.rand(rows.shape, generator=draw) < share
        width = torch.finfo(ends).bits
        return whole(torch.where(up, ceiling, floor), x), bits + 2 * width / size

    return stored


def units(size: int = 64) -> Callable[[Tensor, Tensor], Stored]:
    """First moments by the update: a block's mean in bfloat16, and 4 levels for the rest."""

    def stored(m: Tensor, denominator: Tensor) -> Stored:
        draw = torch.Generator().manual_seed(1)
        u = m / denominator
        rows = blocks(u, size)
        mean = rows.mean(1, keepdim=True).bfloat16().float()
        residual = rows - mean
        step = 1.1 * residual.square().mean().sqrt()
        place = (residual / step + 1.5).clamp(0, 3)
        codes = place.floor() + (torch.rand(rows.shape, generator=draw) < place % 1)
        levels = (codes - 1.5) * step
        levels -= levels.mean(1, keepdim=True)
        return whole(mean + levels, m) * denominator, 2 + 16 / size

    return stored


def alone(state: State) -> Callable[[Tensor, Tensor], Stored]:
    return lambda m, _: state(m)


def exact(x: Tensor) -> Stored:
    return x, 32.0


def preset(name: str) -> Method:
    pair = pair_of(name)
    first, second = pair.first.spec, pair.second.spec  # type: ignore[union-attr]
    return Method(f"preset `{name}`", "qmaps", alone(by_spec(first)), by_spec(second), pair.spec)


def method(spec: str, name: str, source: str) -> Method:
    first, second = spec.split(" + ")
    return Method(name, source, alone(by_spec(first)), by_spec(second), spec)


ADAFACTOR, GEFEN, TURBO = "adafactor8bit 0.4.6", "gefen 1.2.3", "turboadam 0.2.0"
AL8 = "logB2048/log2@8u"
METHODS = (
    preset("8bit"),
    preset("4bit"),
    Method("uf8 + al8", ADAFACTOR, alone(twos_complement(8)), by_spec(AL8)),
    method(f"B256/linear0@8s + {AL8}", "uf8 + al8, both ends", "next to it in the algebra"),
    method(f"B256/DE-sym@8s + {AL8}", "first moment of `8bit` + al8", "for comparison"),
    method("B256/linear0@8s + B256/geometric@8u+qsr", "uf8 + second of `8bit`", "for comparison"),
    Method("d8 + al8", ADAFACTOR, alone(dynamic(8)), by_spec(AL8)),
    Method("uf4 + al8", ADAFACTOR, alone(twos_complement(4)), by_spec(AL8)),
    method(f"B256/linear0@4s + {AL8}", "uf4 + al8, both ends", "next to it in the algebra"),
    Method("d4 + al8", ADAFACTOR, alone(dynamic(4)), by_spec(AL8)),
    method(f"B256/DE@4s + {AL8}", "d4 + al8, with zero", "next to it in the algebra"),
    method("B32xf16/softsign@8s + B32xf16sq/sqrt@8u", "FlashAdamW", "flashoptim 0.1.4"),
    *(
        Method(f"blocks of {n}", GEFEN, alone(by_spec(f"B{n}/lloyd@8s")), means(n))
        for n in (64, 256, 1024)
    ),
    Method("block means of 64 alone", "for comparison", alone(exact), means(64)),
    Method("both moments", TURBO, units(), logs(4)),
    Method("first moment alone", TURBO, units(), exact),
    Method("second moment alone", TURBO, alone(exact), logs(4)),
    Method(
        *("second moment alone, blocks of 256 with ends in float32", "for comparison"),
        *(alone(exact), logs(4, 256, torch.float32)),
    ),
    Method(
        *("second moment of `4bit` alone", "for comparison", alone(exact)),
        by_spec("B64xbf16/geometric@4u+qsr"),
        "32-bit + B64xbf16/geometric@4u+qsr",
    ),
    Method(
        "AdamW4bit",
        "bitsandbytes-cpu-fork 0.50.2.dev9",
        alone(by_spec("B256/linear@4s")),
        upper_half(),
    ),
)


def record(task: str, states: Path) -> int:
    """Record 32-bit AdamW (seed 0) after half of a model's steps, and return their number."""
    half = TASKS[task].steps // 2

    def recorder(optimizer: torch.optim.Optimizer, _: torch.nn.Module) -> StateRecorder:
        return StateRecorder(optimizer, states, steps=[half])

    with tempfile.TemporaryDirectory() as folder:
        run, full = Path(folder) / "run", Contender(FULL, None)
        train(TASKS[task], full.optimizer, out=run, steps=half, hooks=[recorder])
    return half


def errors(folder: Path, t: int) -> pd.DataFrame:
    """Bits per element of each moment, and the mean error of the update, by method."""
    states = load(folder)
    rows = []
    for entry in METHODS:
        total, count, first_bits, second_bits = 0.0, 0, 0.0, 0.0
        for _, m, v, eps in states.adam_pairs():
            if m.numel() <= LARGE:
                continue
            second, bits = entry.second(v)
            # m is this times the update with its bias corrections.
            root = second.sqrt() / (1 - BETAS[1] ** t) ** 0.5 + eps
            first, m_bits = entry.first(m, (1 - BETAS[0] ** t) * root)
            total += float((adam_update(m, v, eps) - adam_update(first, second, eps)).abs().sum())
            count += m.numel()
            first_bits += m_bits * m.numel()
            second_bits += bits * m.numel()
        rows.append(
            {
                "method": entry.name,
                "source": entry.source,
                "spec": entry.spec,
                "first_bits": first_bits / count,
                "second_bits": second_bits / count,
                "error": total / count,
            }
        )
    return pd.DataFrame(rows)


def page(frame: pd.DataFrame, command: str) -> str:
    """The report."""
    lines = [
        "# One-step errors of the formats of 2026",
        "",
        f"`{command}`",
        "",
        f"torch {torch.__version__}, one thread. Both moments of 32-bit AdamW are stored once, "
        "after half of the judge's steps; the error is the mean absolute one of Adam's update, "
        "whose elements are mostly below 1. Bits are per state element, scales included, of a "
        "first and of a second moment. Rows without a spec are formats that the algebra does not "
        "have, written out in `benchmarks/one_step.py`. Gefen chooses the size of its blocks; a "
        "codebook of Lloyd-Max stands for its own, the best one for gradients. An error of one "
        "step says nothing of errors that add up ([trainings](formats.md), "
        "[falls](moving-average.md)).",
        "",
    ]
    for task, rows in frame.groupby("judge", sort=False):
        lines += [f"## {task}", ""]
        head = ("method", "of", "spec", "bits of m", "bits of v", "error")
        lines += markdown(
            head,
            [
                (
                    *(row.method, row.source, f"`{row.spec}`" if row.spec else ""),
                    *(number(row.first_bits), number(row.second_bits), f"{row.error:.4f}"),
                )
                for row in rows.itertuples()
            ],
        )
        lines += [""]
    return "\n".join(lines)


@one_line_errors
def main(argv: Sequence[str] | None = None) -> int:
    """Measure all methods, and write the report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.one_step", description=__doc__)
    parser.add_argument("task", nargs="*", default=list(DEFAULT), metavar="TASK",
                        help=f"any of {', '.join(TASKS)} (default: small LMs)")  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("reports"), help="the report's folder")
    options = parser.parse_args(argv)
    among(parser, "task", options.task, list(TASKS))
    out = output_folder(options.out)
    torch.set_num_threads(1)
    frames = []
    for task in options.task:
        with tempfile.TemporaryDirectory() as folder:
            captured = record(task, Path(folder) / "states")
            frames.append(errors(Path(folder) / "states", captured).assign(judge=task))
    frame = pd.concat(frames, ignore_index=True)
    write_text(out / "one-step.csv", frame.to_csv(index=False, lineterminator="\n"))
    write_report(out / "one-step.md", page(frame, command_line("benchmarks.one_step", argv)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
