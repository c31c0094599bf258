"""Measurements in README.md and its linked pages, generated from the committed results.

``python -m benchmarks.readme`` replaces the text between ``<!-- table: NAME -->`` and
``<!-- end of table -->``, and between ``<!-- words: NAME -->`` and ``<!-- end of words -->``, in
the files of `PAGES`, and draws docs/memory.svg; a test fails where a file is not up to date.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from statistics import median
from typing import Any

from benchmarks import long_prediction, long_run, safety, verdict_counts
from benchmarks.markdown import markdown
from docsite.page import ROOT
from qmaps.storage.files import write_text
from qmaps.storage.units import of_states

REPORTS = ROOT / "reports"
FUSED = "torch fused"
WORKLOAD = "gpt2-4-layers"
PICTURE = ROOT / "docs" / "memory.svg"
MODEL, BARS = "7B", ("32bit", "8bit", "4bit", "3bit")
CARDS = (48, 80)
"""Sizes of GPU memory, in GB, drawn as lines."""
PARTS = {"parameters": "#b0bec5", "gradients": "#78909c", "states": "#ef6c00"}
"""Parts of a bar, with their colours."""


def training(folder: str = "bench") -> tuple[dict[str, float], dict[str, float], dict[str, Any]]:
    """Seconds of the optimizer and of a training step by method, and their memory."""
    path = REPORTS / folder / "training.json"
    result = json.loads(path.read_text(encoding="utf-8"))["workloads"][WORKLOAD]
    optimizer, seconds = (
        {name: median(times) for name, times in result[part].items()}
        for part in ("optimizer", "seconds")
    )
    return optimizer, seconds, result["memory"]


def speed() -> list[str]:
    """One training step with each optimizer, relative to torch."""
    optimizer, seconds, memory = training()
    return markdown(
        ("AdamW", "optimizer step", "whole training step", "peak memory"),
        [
            (
                name,
                f"{optimizer[name] / optimizer[FUSED]:.1f}",
                f"{seconds[name] / seconds[FUSED]:.2f}",
                f"{memory[name]['peak']:.0f} MiB",
            )
            for name in sorted(seconds, key=seconds.__getitem__)
        ],
    )


def avx2() -> str:
    """The steps of 8 and 4 bits on a processor without AVX-512."""
    optimizer, seconds, _ = training("bench/avx2")
    ratios = [
        times[f"qmaps {bits} bits"] / times[FUSED]
        for times in (optimizer, seconds)
        for bits in (8, 4)
    ]
    return (
        "the 8-bit and the 4-bit step take {:.1f} and {:.1f} times as long as torch's, held to "
        "AVX2 too, and the training step {:.2f} and {:.2f} times"
    ).format(*ratios)


def steps() -> str:
    """Whole training steps in 8 and 4 bits, with AVX-512 and without."""
    ratios = []
    for folder in ("bench", "bench/avx2"):
        _, seconds, _ = training(folder)
        ratios += [seconds[f"qmaps {bits} bits"] / seconds[FUSED] for bits in (8, 4)]
    return (
        "with AVX-512 a training step takes {:.2f} (`8bit`) or {:.2f} times (`4bit`) as long as "
        "with torch's fused 32-bit AdamW, with AVX2 alone, in torch "
        "too, {:.2f} or {:.2f} times"
    ).format(*ratios)


def arm() -> str:
    """Instructions of the steps of 8 and 4 bits on Arm."""
    page = (REPORTS / "bench" / "arm.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| AdamW (\w+) \| (\w+) \| ([\d.]+) ", page, re.MULTILINE)
    count = {(name, isa): float(number) for name, isa, number in reversed(rows)}
    of = [count[name, isa] for isa in ("neon", "portable") for name in ("8bit", "4bit")]
    return (
        "a step takes {:.0f} (`8bit`) or {:.0f} (`4bit`) instructions per element with NEON, "
        "{:.0f} or {:.0f} in portable code, counted in emulation: no Arm processor was timed"
    ).format(*of)


def peers() -> str:
    """Whole training steps with the 8-bit optimizers of others."""
    _, seconds, _ = training()
    names = ("bitsandbytes", "torchao")
    ratios = [f"{seconds[f'{name} 8 bits'] / seconds[FUSED]:.1f}" for name in names]
    return " and ".join(ratios)


@lru_cache(1)
def memory() -> dict[str, dict[str, float]]:
    """GB of each part and bytes of states per parameter, by preset, as ``qmaps memory`` says."""
    command = [sys.executable, "-m", "qmaps", "memory", MODEL, "--json"]
    done = subprocess.run(command, capture_output=True, check=True, text=True, cwd=ROOT)
    rows = json.loads(done.stdout)["presets"]
    parts = (*PARTS, "total")
    return {
        row["preset"]: {name: row[name] / 1e9 for name in parts}
        | {"bytes": row["state_bytes_per_parameter"]}
        for row in rows
    }


def width(preset: str) -> str:
    """Bits per state element, and bytes of states per parameter beside those of 32 bits."""
    full = memory()["32bit"]["bytes"]
    return f"{of_states(memory()[preset]['bytes'], full, 1)}, not {full:g}"


def total(preset: str) -> str:
    """GB of parameters, gradients and states."""
    return f"{memory()[preset]['total']:.0f} GB"


def picture() -> str:
    """Bars of a model's memory by width of its states, in SVG."""
    left, top, height, scale = 56, 24, 18, 5.2  # pixels; the last of a GB
    bottom = top + len(BARS) * (height + 5)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 570 {bottom}" width="570" '
        f'height="{bottom}" font-family="Helvetica, Arial, sans-serif" font-size="13" '
        'fill="#212121">',
        f"<title>GB of a {MODEL} model by width of its AdamW states</title>",
        f'<rect width="570" height="{bottom}" fill="#ffffff"/>',
    ]
    for at, (part, colour) in zip((2, 100, 184), PARTS.items(), strict=True):
        lines += [
            f'<rect x="{at}" y="4" width="12" height="12" fill="{colour}"/>',
            f'<text x="{at + 17}" y="15">{part}</text>',
        ]
    for card in CARDS:
        x = left + scale * card
        lines += [
            f'<path d="M{x:.1f} 20V{bottom}" stroke="#212121" stroke-dasharray="4 3"/>',
            f'<text x="{x:.1f}" y="15" text-anchor="middle">{card} GB card</text>',
        ]
    for row, preset in enumerate(BARS):
        y, x = top + row * (height + 5), float(left)
        bits = preset.removesuffix("bit")
        lines.append(f'<text x="{left - 8}" y="{y + 14}" text-anchor="end">{bits} bits</text>')
        for part, colour in PARTS.items():
            width = scale * memory()[preset][part]
            lines.append(
                f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}" fill="{colour}"/>'
            )
            x += width
        lines += [  # white behind the number, which a line may cross
            f'<rect x="{x + 2:.1f}" y="{y}" width="54" height="{height}" fill="#ffffff"/>',
            f'<text x="{x + 6:.1f}" y="{y + 14}" font-weight="bold">'
            f"{memory()[preset]['total']:.1f} GB</text>",
        ]
    return "\n".join([*lines, "</svg>", ""])


PAGES: dict[str, dict[str, Callable[[], list[str] | str]]] = {
    "README.md": {
        "32 bits": lambda: total("32bit"),
        "8 bits": lambda: total("8bit"),
        "steps": steps,
        "arm": arm,
        "width of 8bit": lambda: width("8bit"),
        "width of 4bit": lambda: width("4bit"),
        "8bit": lambda: safety.summary("8bit"),
        "4bit": lambda: safety.summary("4bit"),
        "safety": safety.words,
        "peers": peers,
    },
    "docs/safety.md": {
        "now": safety.now,
        "former": safety.former,
        "medians": safety.medians,
        "quarter": safety.quarter,
        "long run": long_run.summary,
        "blind": verdict_counts.blind_safe,
        "trained pairs": verdict_counts.trained_pairs,
    },
    "docs/recommend.md": {
        "blind": verdict_counts.blind_safe,
        "trained pairs": verdict_counts.trained_pairs,
        "long trained pairs": verdict_counts.long_trained_pairs,
        "correlations": long_prediction.correlations,
        "left out": verdict_counts.left_out,
    },
    "reports/README.md": {"blind": verdict_counts.blind_safe},
    "docs/speed.md": {"speed": speed, "avx2": avx2, "arm": arm},
}
"""Generated parts of files: tables are lists of lines, words are text."""


def updated(name: str, text: str) -> str:
    """The `text` of the page `name` with each table and all words made anew."""
    for part, make in PAGES[name].items():
        text = replaced(name, text, part, make())
    return text


def replaced(name: str, text: str, part: str, made: Sequence[str] | str) -> str:
    """`text` with one table, or with words, between their marks."""
    words = isinstance(made, str)
    kind, new = ("words", made) if words else ("table", "\n" + "\n".join(made) + "\n")
    pattern = re.compile(f"(<!-- {kind}: {part} -->).*?(?=<!-- end of {kind} -->)", re.DOTALL)
    text, count = pattern.subn(lambda mark: mark[1] + str(new), text)
    if count != 1:
        raise ValueError(f"{name} must have one mark <!-- {kind}: {part} -->, got {count}")
    return text


def main(_: Sequence[str] | None = None) -> int:
    """Write the tables, the words and the picture."""
    for name in PAGES:
        path = ROOT / name
        write_text(path, updated(name, path.read_text(encoding="utf-8")))
    write_text(PICTURE, picture())
    return 0


if __name__ == "__main__":
    sys.exit(main())
