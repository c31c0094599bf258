"""The error of one update at 4.25 bits per state element: codebooks designed for it.

``python -m benchmarks.designed`` designs pairs on the first half of a window of `docstring-lm`'s
gradients, and measures the error of one update on the second half, and on states of models that the
design has not seen. It writes reports/designed.{csv,md}.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch
from torch import nn

from benchmarks.command import among, command_line, one_line_errors
from benchmarks.judges import PAPER
from benchmarks.markdown import markdown
from benchmarks.trials import FULL
from qmaps import capture
from qmaps.algebra.pair import Pair
from qmaps.analyze import design, update_error
from qmaps.capture import CapturedStates, StateRecorder
from qmaps.lab.compare import Contender
from qmaps.lab.judges import JUDGES
from qmaps.lab.workloads import train
from qmaps.storage.files import output_folder, replacing, write_text

DESIGNED_ON = "docstring-lm"
OTHERS = ("lm-tiny", "digits", "minilm")
"""Judges whose states no design has seen."""
WINDOW = 60
"""Gradients of the window that is halved."""
BITS = 4.25
WIDTHS = ((4, 4), (5, 3))
"""Widths of both moments."""
KNOWN = (PAPER, "B128/DE@4s + B128/DE-0@4u", "B128/nf4@4s + B128/power2@4u")
MEASURES = {"mean_abs_error": "mean", "median_rel_error": "median relative"}


def states_of(judge: str, folder: Path, *, gradients: bool = False) -> CapturedStates:
    """States of 32-bit AdamW, seed 0, after half of a judge's steps."""
    workload = JUDGES[judge]
    half = workload.steps // 2

    def record(optimizer: torch.optim.Optimizer, _: nn.Module) -> StateRecorder:
        return StateRecorder(
            optimizer, folder / "states", steps=[half], gradients=WINDOW if gradients else None
        )

    train(
        workload,
        Contender(FULL).optimizer,
        out=folder / "run",
        steps=half + (WINDOW + 1 if gradients else 1),
        hooks=[record],
    )
    return capture.load(folder / "states")


def designs(states: CapturedStates) -> tuple[list[Pair], pd.DataFrame]:
    """The designed pairs of each widths, and errors of these and of `KNOWN` on the second half."""
    pairs, frames = [], []
    for widths in WIDTHS:
        found = design.run(states, widths, bits_per_element=BITS, criterion="update_error")
        both = found.frame[found.frame["moment"] == "both"]
        pairs.append(found.pair)
        frames.append(both[both["chosen"] | both["quantizer"].isin(KNOWN)])
    return pairs, pd.concat(frames).drop_duplicates("quantizer")


def page(frame: pd.DataFrame, pairs: Sequence[Pair], command: str) -> str:
    """The report.

    Args:
        frame: `judge`, `quantizer`, `bits_per_element` and the columns of `MEASURES`.
        pairs: the designed pairs.
        command: what made it.
    """
    lines = [
        "# The error of one update at 4.25 bits per state element",
        "",
        f"`{command}`",
        "",
        "Designed pairs have the least mean error of one update of all candidates of "
        '`qmaps.design.run(states, bits, bits_per_element=4.25, criterion="update_error")` on '
        f"the first half of a window of {WINDOW} gradients of `{DESIGNED_ON}`. Errors are those of "
        "one update after half of the training: the mean of |u - u_quantized|, and the median of "
        "|u - u_quantized| / |u|. `x less` is the paper's error divided by the pair's. The "
        f"first table is of the second half of the window, which chose nothing, and the others are "
        "of models that no design has seen. Bits per element are of each model's matrices; those "
        "of the paper's pair are more than 4.25 where matrices are small.",
    ]
    for judge, rows in frame.groupby("judge", sort=False):
        paper = rows[rows["quantizer"] == PAPER].iloc[0]
        lines += ["", f"## {judge}", ""]
        head = ["pair", "bits"]
        for name in MEASURES.values():
            head += [name, "x less"]
        cells = []
        for row in rows.sort_values("mean_abs_error").to_dict("records"):
            own = [f"`{row['quantizer']}`", f"{row['bits_per_element']:.2f}"]
            for name in MEASURES:
                own += [f"{row[name]:.3g}", f"{paper[name] / row[name]:.2f}"]
            cells.append(own)
        lines += markdown(head, cells)
    lines += ["", "## Codebooks", ""]
    for pair in pairs:
        for q in (pair.first, pair.second):
            if q is not None:
                values = ", ".join(f"{value:.7g}" for value in q.map.codebook().tolist())
                lines += [f"- `{q.spec}`: {values}"]
    return "\n".join(lines) + "\n"


@one_line_errors
def main(given: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.designed", description=__doc__)
    parser.add_argument("judge", nargs="*", default=list(OTHERS), metavar="JUDGE",
                        help=f"models: any of {', '.join(OTHERS)} (default: all)")  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("reports"), help="folder of the results")
    options = parser.parse_args(given)
    among(parser, "judge", options.judge, list(OTHERS))
    out = output_folder(options.out)
    with tempfile.TemporaryDirectory() as folder:
        own = states_of(DESIGNED_ON, Path(folder) / DESIGNED_ON, gradients=True)
        pairs, held_out = designs(own)
        frames = [held_out.assign(judge=f"{DESIGNED_ON}, held-out half")]
        compared = [*pairs, *map(Pair.parse, KNOWN)]
        for judge in options.judge:
            states = states_of(judge, Path(folder) / judge)
            frames.append(update_error(states, compared).assign(judge=judge))
            print(f"measured {judge}", flush=True)
    frame = pd.concat(frames)[["judge", "quantizer", "bits_per_element", *MEASURES]]
    with replacing(out / "designed.csv") as temporary:
        frame.to_csv(temporary, index=False)
    write_text(out / "designed.md", page(frame, pairs, command_line("benchmarks.designed", given)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
