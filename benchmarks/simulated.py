"""Step costs from simulated gradients beside those from recorded ones, on the same states.

``python -m benchmarks.simulated`` trains each model in 32 bits with states and gradients recorded,
asks `qmaps.recommend` with the gradients and without them, and writes reports/simulated.md and its
rows as simulated.csv. Models that are named run alone; rows of the others stay as they are.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

import qmaps
from benchmarks import recorded
from benchmarks.blind import judges as blind
from benchmarks.blind.plan import PAIRS
from benchmarks.command import among, command_line, one_line_errors
from benchmarks.markdown import markdown
from qmaps import capture
from qmaps.analyze.recommend.verdict import LEVELS, dangerous
from qmaps.capture import Gradients
from qmaps.lab.workloads import Workload
from qmaps.storage.files import output_folder, records, replacing
from reproduction.judges import JUDGES
from reproduction.report_file import write_report

MODELS: dict[str, Workload] = {
    **{name: work for name, work in blind.JUDGES.items() if name not in blind.SEEN},
    **JUDGES,
}
"""Those of the blind test that no threshold had seen, and the judges."""
WINDOW, BYTES = 60, 2**28
"""Most gradients after a step, and most bytes of theirs; of larger models rows are sampled."""
MIDDLE = 0.9
"""Share of the pairs between the ends of the range that is told."""
MEASURES = ("verdict", "step_cost", "update_gain", "update_noise", "largest_update",
            "zero_point_share")  # fmt: skip


def steps_of(work: Workload) -> list[int]:
    """Steps whose states are recorded: one early, one in the second half."""
    return [work.steps // 4, work.steps * 3 // 4 - 12]


def compared(name: str, folder: Path) -> pd.DataFrame:
    """A row per step and pair: `MEASURES` from recorded gradients, then from simulated ones.

    Args:
        name: the model.
        folder: where its run is kept; a finished one is not repeated.
    """
    work = MODELS[name]
    states = recorded.record(work, folder, steps_of(work), Gradients(WINDOW, BYTES))
    alone = output_folder(folder / "alone")
    frames = []
    for step in capture.load(states).steps:
        (file,) = (f for f in states.glob("step-*") if int(f.stem.rpartition("-")[2]) == step)
        shutil.copy(file, alone)  # away from the gradients
        told = [
            qmaps.recommend(loaded, candidates=PAIRS, bits=8.3).pairs.set_index("quantizer")
            for loaded in (capture.load(states, step=step), capture.load(alone / file.name))
        ]
        frame = told[0][list(MEASURES)].join(told[1][list(MEASURES)].add_suffix("_simulated"))
        frames.append(frame.reset_index().assign(judge=name, step=step))
    return pd.concat(frames, ignore_index=True)


def ratios(rows: pd.DataFrame) -> pd.Series:
    """Step costs from simulated gradients, divided by those from recorded ones.

    Pairs that are dangerous under either are left out: their cost says no more than that.
    """
    calm = pd.Series(
        [
            not dangerous(row)
            and not dangerous({key: row[f"{key}_simulated"] for key in MEASURES[4:]})
            for row in records(rows)
        ],
        index=rows.index,
    )
    return (rows["step_cost_simulated"] / rows["step_cost"])[calm]


def middle(rows: pd.DataFrame) -> tuple[float, float]:
    """The ends of the range that holds `MIDDLE` of the ratios."""
    low, high = ratios(rows).quantile([(1 - MIDDLE) / 2, (1 + MIDDLE) / 2])
    return float(low), float(high)


def agreement(rows: pd.DataFrame) -> dict[str, dict[str, int]]:
    """For each verdict from simulated gradients, the counts of those from recorded ones."""
    counts = pd.crosstab(rows["verdict_simulated"], rows["verdict"])
    table = counts.reindex(index=LEVELS, columns=LEVELS, fill_value=0)
    return {row: dict(zip(LEVELS, map(int, table.loc[row]), strict=True)) for row in LEVELS[1:]}


def page(rows: pd.DataFrame, command: str) -> str:
    """The report."""
    low, high = middle(rows)
    models = rows["judge"].unique()
    cells = []
    for (name, step), own in rows.groupby(["judge", "step"], sort=False):
        shown = ratios(own)
        costs = own.loc[shown.index, ["step_cost", "step_cost_simulated"]]
        order = costs.corr("spearman").iloc[0, 1]
        quartiles = [f"{shown.quantile(q):.2g}" for q in (0, 0.25, 0.5, 0.75, 1)]
        cells.append((f"`{name}`", str(step), str(len(shown)), *quartiles, f"{order:.2f}"))
    heads = ("model", "step", "pairs", "least", "quartile", "median", "quartile", "largest",
             "rank correlation")  # fmt: skip
    told = [
        (row, *(str(counts[level]) for level in LEVELS)) for row, counts in agreement(rows).items()
    ]
    return "\n".join(
        [
            "# Simulated gradients beside recorded ones",
            "",
            f"`{command}`",
            "",
            f"The states of {len(models)} small models in training with 32-bit AdamW, at two steps "
            f"each, judged twice by `qmaps.recommend`: with the gradients of up to {WINDOW} steps "
            "after them, and alone, so that gradients are simulated from the moments. The "
            f"{len(PAIRS)} pairs are those of the [blind test](blind/README.md).",
            "",
            "## Step costs",
            "",
            "The step cost from simulated gradients, divided by that from recorded ones, over the "
            "pairs without zero points and without very large updates, and the rank correlation of "
            f"both. {MIDDLE:.0%} of all ratios are between {low:.2g} and {high:.2g}. They differ "
            "most from 1 where the step cost from recorded gradients is small. So a checkpoint "
            "alone tells the order of the pairs, and of a step cost no more than its magnitude.",
            "",
            *markdown(heads, cells),
            "",
            "## Verdicts",
            "",
            "Pairs by their verdict from simulated gradients (rows) and from recorded ones.",
            "",
            *markdown(("simulated", *LEVELS), told),
            "",
        ]
    )


@one_line_errors
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulated", description=__doc__)
    parser.add_argument("model", nargs="*", default=list(MODELS), metavar="MODEL",
                        help=f"any of {', '.join(MODELS)} (default: all)")  # fmt: skip
    parser.add_argument("--runs", type=Path, default=Path("runs/simulated"), help="recordings")
    parser.add_argument("--out", type=Path, default=Path("reports"))
    parser.add_argument("--page", action="store_true", help="write only the page, from its rows")
    options = parser.parse_args(argv)
    among(parser, "model", options.model, list(MODELS))
    file = output_folder(options.out) / "simulated.csv"
    frames = {}
    if file.exists():
        frames = {str(name): own for name, own in pd.read_csv(file).groupby("judge")}
    for name in () if options.page else options.model:
        frames[name] = compared(name, output_folder(options.runs / name))
        rows = pd.concat([frames[known] for known in MODELS if known in frames])
        with replacing(file) as temporary:
            rows.to_csv(temporary, index=False)
        print(f"{name}: {len(frames[name])} rows")
    text = page(pd.read_csv(file), command_line("benchmarks.simulated", []))
    write_report(options.out / "simulated.md", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
