"""About two bits per state element: pairs compared by replay, then trained.

``python -m benchmarks.two_bits`` replays `CANDIDATES` on gradients of `CHOSEN_ON`, trains `TRAINED`
on each judge, goes on where it was stopped and with the rows of reports/two-bits.csv, and writes
reports/two-bits.{csv,md} and reports/two-bits-replay.csv. Losses of 32-bit AdamW and of `KNOWN` are
those of reports/judges.csv, which ``python -m benchmarks.judges`` writes: the same trials.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch

from benchmarks.command import among, command_line, one_line_errors, trial_options
from benchmarks.judges import JUDGED, PAPER, at_own_rate, minus_full, seeds
from benchmarks.markdown import markdown
from benchmarks.recorded import recorded
from benchmarks.trials import FULL, Trial, restore, run_all
from qmaps.algebra.pair import Pair
from qmaps.analyze import replay
from qmaps.storage.files import output_folder, replacing, write_text
from reproduction.judges import JUDGES

WINDOW = 30
"""Steps of a replay, from half of the judge's steps on."""
CHOSEN_ON = ("docstring-lm", "lm-tiny")
"""Judges whose gradients are replayed; the others are held out."""
DEFAULT = ("digits", "docstring-lm", "lm-tiny", "minilm")
COARSE = "B32x8/quantile-normal@2s+sr + B128/power3@2u"
"""The first preset ``2bit``."""
KNOWN = (PAPER, COARSE)
SOLO = "B128/DE@2s+sr + logB128q0.1/log2-0(in_log=true)@2u+sr"
FIRST = (
    "B16x8/linear0(full=true)@2s+sr",
    "B8x8/linear0(full=true)@2s+sr",
    "B16x8/linear0@2s+sr",
    "B32x8/quantile-normal@2s+sr",
    "B16x8/quantile-normal@2s+sr",
    "B8x8/quantile-normal@2s+sr",
    "B16x8/linear@2s+sr",
    "B8x8/linear@2s+sr",
    "B64x8/DE@3s+sr",
    "B64x8/linear@3s+sr",
    "B64x8/quantile-normal@3s+sr",
)
SECOND = ("B128/power3@2u", "B32x8/power3@2u", "B32x8/power2@2u")
CANDIDATES = (*(f"{first} + {second}" for first in FIRST for second in SECOND), SOLO, PAPER)
WITH_ZERO = "B16x8/linear0(full=true)@2s+sr + B32x8/power3@2u"
"""The preset ``2bit``: moments that are exactly zero stay so."""
FINE = "B16x8/quantile-normal@2s+sr + B32x8/power3@2u"
"""The preset before: it moves weights whose gradient is always zero."""
THREE_AND_TWO = "B64x8/quantile-normal@3s+sr + B32x8/power3@2u"
TRAINED = (
    (WITH_ZERO, 0.9),
    (FINE, 0.9),
    (THREE_AND_TWO, 0.9),
    (SOLO, 0.9),
    (FULL, 0.8),
    (FINE, 0.8),
    (SOLO, 0.8),
    (SOLO, 0.3),
)
"""Pairs with the beta of the first moment. SOLO's package recommends 0.8 where its first moment has
4 bits; its paper makes beta depend on the number of bits, so a much smaller one is trained too.
32 bits and our pair with 0.8 tell what the smaller beta does without SOLO's quantizers."""
LARGE = {
    "minilm": ((WITH_ZERO, 0.9), (FINE, 0.9)),
    "stdlib-lm": ((WITH_ZERO, 0.9), (FINE, 0.9)),
}
"""What is trained on judges whose runs take minutes, instead of `TRAINED`."""


def bits(pair: str) -> float:
    """Bits per state element, scales included, of a matrix of 1024 by 1024."""
    if pair == FULL:
        return 32.0
    both = Pair.parse(pair)
    each = [
        32.0 if q is None else 8 * q.nbytes((1024, 1024)) / 2**20 for q in (both.first, both.second)
    ]
    return sum(each) / len(each)


def trials(judge: str) -> list[Trial]:
    """What is trained on a judge."""
    workload = JUDGES[judge]
    return [
        Trial(judge, replace(workload, betas=(beta, workload.betas[1])), pair, seed)
        for pair, beta in LARGE.get(judge, TRAINED)
        for seed in range(seeds(judge, pair))
    ]


def replayed(judge: str) -> pd.DataFrame:
    """Summary of a replay of `CANDIDATES` on a judge's gradients, 32-bit AdamW's, seed 0."""
    with tempfile.TemporaryDirectory() as folder:
        states = recorded(judge, Path(folder), WINDOW)
        found = replay.summarize(replay.run(states, list(CANDIDATES)))
    kept = ["quantizer", "step_cost", "update_gain", "update_noise", "largest_update"]
    return found[kept].assign(judge=judge, bits=[bits(pair) for pair in found["quantizer"]])


def differences(frame: pd.DataFrame, judged: pd.DataFrame) -> pd.DataFrame:
    """Final losses minus that of 32 bits with the same seed.

    Args:
        frame: rows of `run_all` of `trials`, with the column `beta`.
        judged: rows of reports/judges.csv.

    Returns:
        `judge`, `quantizer`, `beta`, `bits`, `seeds`, `difference` (mean; infinite where a run
        diverged), `low` and `high` (95 % confidence interval).
    """
    own = at_own_rate(judged)
    known = own["quantizer"].isin(KNOWN) & own["judge"].isin(frame["judge"])
    compared = pd.concat([frame, own[known].assign(beta=0.9)])
    found = minus_full(compared, judged, ("quantizer", "beta"))
    found.insert(3, "bits", found["quantizer"].map(bits))
    return found


def page(found: pd.DataFrame, windows: pd.DataFrame, command: str) -> str:
    """The report on rows of `differences` and of `replayed`."""
    lines = [
        "# About two bits per state element",
        "",
        f"`{command}`",
        "",
        f"torch {torch.__version__}, one thread for each run. AdamW at the learning rate that is "
        "best for 32 bits ([judges.md](judges.md)). Bits are per state element, scales included.",
        "",
        "## Replay",
        "",
        f"The [step cost](../docs/replay.md) of each pair over {WINDOW} steps of 32-bit AdamW's "
        "gradients, with an update gain above 1 counted like one below 1: steps that are too long "
        "cost as much as steps that are too short. Ordered by the mean of the workloads.",
        "",
        *markdown(
            ("pair", "bits", *windows["judge"].unique(), "update gain", "update noise"),
            [
                (
                    f"`{pair}`",
                    f"{rows['bits'].iloc[0]:.2f}",
                    *(f"{cost:.3f}" for cost in _two_sided(rows)),
                    " ".join(f"{gain:.2f}" for gain in rows["update_gain"]),
                    " ".join(f"{noise:.2f}" for noise in rows["update_noise"]),
                )
                for pair, rows in sorted(
                    windows.groupby("quantizer"), key=lambda one: _two_sided(one[1]).mean()
                )
            ],
        ),
        "",
        "## Training",
        "",
        "Differences of the final validation loss to 32 bits are taken seed by seed; 95 % is the "
        "confidence interval of a t-test. Beta is that of the first moment.",
        "",
    ]
    for judge, rows in found.groupby("judge", sort=False):
        lines += [f"### {judge}", ""]
        lines += markdown(
            ("pair", "bits", "beta", "seeds", "minus 32 bits", "95 %"),
            [
                (
                    f"`{row.quantizer}`",
                    f"{row.bits:.2f}",
                    f"{row.beta:g}",
                    f"{row.seeds}",
                    f"{row.difference:+.4f}",
                    f"{row.low:+.4f} to {row.high:+.4f}",
                )
                for row in rows.sort_values("difference").itertuples()
            ],
        )
        lines += [""]
    return "\n".join(lines)


def _two_sided(rows: pd.DataFrame) -> pd.Series:
    """Step costs in which a gain of 1.1 costs as much as one of 1 / 1.1."""
    gains = rows["update_gain"]
    short = gains.where(gains <= 0, gains.clip(upper=1 / gains))
    measures = zip(short, rows["update_noise"], rows["largest_update"], strict=True)
    return pd.Series([replay.step_cost(*row) for row in measures])


@one_line_errors
def main(given: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.two_bits", description=__doc__)
    known = ", ".join(JUDGES)
    parser.add_argument("judge", nargs="*", default=list(DEFAULT), metavar="JUDGE",
                        help=f"any of {known} (default: {', '.join(DEFAULT)})")  # fmt: skip
    trial_options(parser)
    options = parser.parse_args(given)
    among(parser, "judge", options.judge, list(JUDGES))
    out = output_folder(options.out)
    due = [trial for judge in options.judge for trial in trials(judge)]
    restore(out / "two-bits.csv", options.runs / "trials")
    frame = run_all(due, options.runs / "trials", workers=options.workers or 0)
    betas = [trial.workload.betas[0] for trial in due]
    frame = frame.assign(beta=betas, key=[trial.key for trial in due])
    windows = pd.concat([replayed(judge) for judge in CHOSEN_ON], ignore_index=True)
    found = differences(frame, pd.read_csv(JUDGED))
    with replacing(out / "two-bits.csv") as temporary:
        frame.to_csv(temporary, index=False)
    with replacing(out / "two-bits-replay.csv") as temporary:
        windows.to_csv(temporary, index=False)
    text = page(found, windows, command_line("benchmarks.two_bits", given))
    write_text(out / "two-bits.md", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
