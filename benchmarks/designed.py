"""Designed codebooks: the error of one update at 4.25 bits, and the loss of training.

``python -m benchmarks.designed`` designs pairs on the first half of a window of `docstring-lm`'s
gradients, and measures the error of one update on the second half, and on states of models that the
design has not seen. Designs by the step cost are trained. It goes on where it was stopped, and with
the rows of reports/designed-trials.csv, and writes that, reports/designed.csv and .md. Losses of 32
bits and of the presets are those of reports/judges.csv.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from benchmarks.command import command_line, one_line_errors, trial_options
from benchmarks.judges import JUDGED, PAPER, at_own_rate, minus_full
from benchmarks.markdown import markdown
from benchmarks.recorded import recorded
from benchmarks.trials import FULL, Trial, restore, run_all
from qmaps import capture
from qmaps.algebra.pair import Pair
from qmaps.analyze import design, update_error
from qmaps.capture import CapturedStates
from qmaps.lab.judges import JUDGES
from qmaps.optim import Choice
from qmaps.storage.files import output_folder, replacing, write_text

DESIGNED_ON = "docstring-lm"
OTHERS = ("lm-tiny", "digits", "minilm")
"""Models whose states no design has seen."""
WINDOW = 60
"""Gradients of the window that is halved."""
BITS = 4.25
WIDTHS = ((4, 4), (5, 3))
"""Widths of both moments."""
KNOWN = (PAPER, "B128/DE@4s + B128/DE-0@4u", "B128/nf4@4s + B128/power2@4u")
TRAINED = (4, 3)
"""Widths of the designs by step cost that are trained."""
TRAINED_ON = ("docstring-lm", "lm-tiny")
SEEDS = 8
MEASURES = {"mean_abs_error": "mean", "median_rel_error": "median relative"}


def designs(states: CapturedStates) -> tuple[list[Pair], pd.DataFrame]:
    """The designed pair for each of `WIDTHS`; errors of these and `KNOWN` on the second half."""
    pairs, frames = [], []
    for widths in WIDTHS:
        found = design.run(states, widths, bits_per_element=BITS, criterion="update_error")
        both = found.frame[found.frame["moment"] == "both"]
        pairs.append(found.pair)
        frames.append(both[both["chosen"] | both["quantizer"].isin(KNOWN)])
    return pairs, pd.concat(frames).drop_duplicates("quantizer")


def trials(states: CapturedStates, folder: Path) -> list[Trial]:
    """Training with designs by the step cost; their choices are written to `folder`."""
    due = []
    for bits in TRAINED:
        pair = design.run(states, bits).pair
        path = folder / f"{bits}-bits.json"
        Choice({"exp_avg": pair.first, "exp_avg_sq": pair.second}).save(path)
        due += [
            Trial(judge, JUDGES[judge], pair.spec, seed, choice=str(path))
            for judge in TRAINED_ON
            for seed in range(SEEDS)
        ]
    return due


def differences(trained: pd.DataFrame, judged: pd.DataFrame) -> pd.DataFrame:
    """Final losses minus that of 32 bits with the same seed.

    Args:
        trained: rows of `run_all` of `trials`.
        judged: rows of reports/judges.csv.

    Returns:
        `judge`, `quantizer`, `seeds`, `difference` (mean), `low` and `high` (95 % confidence
        interval).
    """
    own = at_own_rate(judged)
    others = own[(own["quantizer"] != FULL) & own["judge"].isin(trained["judge"])]
    return minus_full(pd.concat([trained, others]), judged, ("quantizer",))


def page(frame: pd.DataFrame, losses: pd.DataFrame, pairs: Sequence[Pair], command: str) -> str:
    """The report.

    Args:
        frame: `judge`, `quantizer`, `bits_per_element` and the columns of `MEASURES`.
        losses: rows of `differences`.
        pairs: the designed pairs.
        command: what made it.
    """
    lines = [
        "# Designed codebooks",
        "",
        f"`{command}`",
        "",
        "## The error of one update at 4.25 bits per state element",
        "",
        "Designed pairs have the least mean error of one update of all candidates of "
        '`qmaps.design.run(states, bits, bits_per_element=4.25, criterion="update_error")` on '
        f"the first half of a window of {WINDOW} gradients of `{DESIGNED_ON}`. Errors are those of "
        "one update after half of the training: the mean of |u - u_quantized|, and the median of "
        "|u - u_quantized| / |u|. `x less` is the paper's error divided by the pair's. The "
        "first table is of the second half of the window, which chose nothing, and the others are "
        "of models that no design has seen. Bits per element are of each model's matrices; those "
        "of the paper's pair are more than 4.25 where matrices are small.",
    ]
    for judge, rows in frame.groupby("judge", sort=False):
        paper = rows[rows["quantizer"] == PAPER].iloc[0]
        lines += ["", f"### {judge}", ""]
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
    lines += [
        "",
        "## Training",
        "",
        f"Designs by the step cost (`qmaps.design.run(states, bits)`) on `{DESIGNED_ON}`, beside "
        "the pairs of [judges.md](judges.md). Differences of the final validation loss to 32 bits "
        "are taken seed by seed; 95 % is the confidence interval of a t-test.",
        "",
        *markdown(
            ("model", "pair", "seeds", "minus 32 bits", "95 %"),
            [
                (
                    row.judge,
                    f"`{row.quantizer}`",
                    f"{row.seeds}",
                    f"{row.difference:+.4f}",
                    f"{row.low:+.4f} to {row.high:+.4f}",
                )
                for row in losses.sort_values(["judge", "difference"]).itertuples()
            ],
        ),
        "",
        "## Codebooks",
        "",
    ]
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
    trial_options(parser)
    options = parser.parse_args(given)
    out, kept = output_folder(options.out), options.runs / "trials"
    restore(out / "designed-trials.csv", kept)
    with tempfile.TemporaryDirectory() as folder:
        own = capture.load(recorded(DESIGNED_ON, Path(folder) / DESIGNED_ON, WINDOW))
        due = trials(own, Path(folder))
        trained = run_all(due, kept, workers=options.workers or 0)
        trained = trained.assign(key=[trial.key for trial in due])
        pairs, held_out = designs(own)
        frames = [held_out.assign(judge=f"{DESIGNED_ON}, held-out half")]
        compared = [*pairs, *map(Pair.parse, KNOWN)]
        for judge in OTHERS:
            states = recorded(judge, Path(folder) / judge)
            frames.append(update_error(states, compared).assign(judge=judge))
            print(f"measured {judge}", flush=True)
    frame = pd.concat(frames)[["judge", "quantizer", "bits_per_element", *MEASURES]]
    for name, table in (("designed", frame), ("designed-trials", trained)):
        with replacing(out / f"{name}.csv") as temporary:
            table.to_csv(temporary, index=False)
    losses = differences(trained, pd.read_csv(JUDGED))
    command = command_line("benchmarks.designed", given)
    write_text(out / "designed.md", page(frame, losses, pairs, command))
    return 0


if __name__ == "__main__":
    sys.exit(main())
