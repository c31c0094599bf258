"""Figure 4: convergence with deterministic and with stochastic rounding."""

from __future__ import annotations

import itertools
import math

import pandas as pd
from matplotlib.figure import Figure

from qmaps import figures
from qmaps.lab.report.claim import Claim
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.lpmm._ablation import NEAREST, STOCHASTIC
from reproduction.lpmm.figure_2 import COMMAND

APART = 0.05
"""Losses that differ by a larger share are called apart."""


def build(context: Context) -> Frames:
    """The committed curves of one micro-batch a step."""
    curves = context.table("lpmm/convergence.csv", COMMAND)
    return {"curves": curves[curves["setting"].isin([NEAREST, STOCHASTIC])]}


def ends(curves: pd.DataFrame) -> pd.DataFrame:
    """What becomes of each width.

    Returns:
        `width`; `nearest` and `stochastic`, the last validation losses; `apart_after`, the first
        step from which on the smoothed training loss of rounding to nearest stays behind by more
        than `APART` of the other's, infinite if it does not end so.
    """
    rows = []
    for width, part in curves.groupby("width", sort=False):
        val, train = (part[part["split"] == split] for split in ("val", "train"))
        last = val.pivot_table(index="step", columns="setting", values="loss").iloc[-1]
        smooth = train.pivot_table(index="step", columns="setting", values="smoothed")
        behind = smooth[NEAREST] > (1 + APART) * smooth[STOCHASTIC]
        together = behind.index[~behind]
        after = behind.index[behind & (behind.index > (together.max() if len(together) else -1))]
        rows.append(
            {
                "width": width,
                NEAREST: float(last[NEAREST]),
                STOCHASTIC: float(last[STOCHASTIC]),
                "apart_after": float(after.min()) if len(after) else math.inf,
            }
        )
    return pd.DataFrame(rows)


def find(frames: Frames) -> Finding:
    """Where the curves end, and where they part."""
    table = ends(frames["curves"])
    after = table["apart_after"].tolist()
    parts = ", ".join(
        f"{width} " + (f"step {step:.0f}" if math.isfinite(step) else "not at all")
        for width, step in zip(table["width"], after, strict=True)
    )
    statements = [
        Claim(
            f"Rounded to nearest a run ends behind stochastic rounding ({row['width']}).",
            bool(row[NEAREST] > (1 + APART) * row[STOCHASTIC]),
            f"Final validation loss {row[NEAREST]:.4f} against {row[STOCHASTIC]:.4f}.",
        )
        for row in table.to_dict("records")
    ]
    statements += [
        Claim(
            "With 12 bits the curves lie on each other in the early stage.",
            after[0] > frames["curves"]["step"].max() / 5,
            f"They part for good: {parts}.",
        ),
        Claim(
            "With fewer bits they part earlier.",
            all(few <= many for many, few in itertools.pairwise(after))
            and math.isfinite(after[-1]),
            f"They part for good: {parts}.",
        ),
    ]
    return Finding(
        statements=statements,
        why="One seed of digits, all runs on the same batches. Behind, and apart: by more than "
        f"{APART:.0%}. The training loss is smoothed. How spreads over seeds compare with what "
        "rounding costs: table 2.",
        tables={"ends": table},
    )


def pictures(frames: Frames) -> dict[str, Figure]:
    """One for each width, with the difference to stochastic rounding."""
    drawn = {}
    for width, part in frames["curves"].groupby("width", sort=False):
        rows = part.sort_values("setting", ascending=False, kind="stable")  # stochastic is first
        first = rows[rows["setting"] == STOCHASTIC].set_index(["split", "step"])["loss"]
        rows = rows.join(first.rename("first"), on=["split", "step"])
        rows = rows.assign(difference=rows["loss"] - rows["first"])
        drawn[f"figure-4-{str(width).replace(' ', '-')}"] = figures.loss_curves(rows)
    return drawn


EXHIBIT = Exhibit(
    name="figure-4",
    covers=("Figure 4",),
    title="Convergence with rounding to nearest and with stochastic rounding",
    needs=Needs.REPORTS,
    build=build,
    find=find,
    draw=pictures,
    captions={f"figure-4-{bits}-bits": f"{bits}-bit parameters." for bits in (12, 10, 8)},
    command=COMMAND,
)
