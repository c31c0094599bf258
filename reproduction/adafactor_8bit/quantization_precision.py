"""Quantization precision: errors of second moments, decade by decade."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
from torch import Tensor

from qmaps.analyze.states import adam_pairs
from qmaps.optim.reductions import column_means, row_means
from reproduction import analyses, figures
from reproduction.adafactor_8bit._maps import DYNAMIC, LINEAR, LOG, NAMES, OTHERS
from reproduction.claim import Claim
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.numbers import percent

QUANTIZERS = (LOG, LINEAR, DYNAMIC, *OTHERS)
PRECISE = 0.05
"""A mean relative error up to this counts as precise."""
SMALL = 2
"""Decades from this on hold small second moments: less than a hundredth of the largest."""
FEW = 10
"""Decades with fewer elements are drawn, but decide nothing."""
SPECS = "In the legend: " + ", ".join(f"{name} is {spec}" for spec, name in NAMES.items()) + "."
WHOLE, SIDES = "second moments", "means of rows and columns"


def build(context: Context) -> Frames:
    """Errors of full and of factored second moments."""
    moments = {name: v for name, _, v, _ in adam_pairs(context.states)}
    frames = {"moments": analyses.error_per_decade(moments, QUANTIZERS)}
    frame = sides(moments)
    if frame:
        frames["sides"] = analyses.error_per_decade(frame, QUANTIZERS)
    return frames


def sides(moments: dict[str, Tensor]) -> dict[str, Tensor]:
    """Means over each row and each column of every matrix."""
    means: dict[str, Callable[[Tensor], Tensor]] = {"rows": row_means, "columns": column_means}
    return {
        f"{name}, {side}": mean(v).flatten()
        for name, v in moments.items()
        if v.dim() > 1
        for side, mean in means.items()
    }


def find(frames: Frames) -> Finding:
    """Compare quantizers on small second moments."""
    statements = _of(frames["moments"], WHOLE)
    if "sides" in frames:
        statements += _of(frames["sides"], SIDES)
    return Finding(
        statements=statements,
        why="Each element is counted in the decade that it lies in below the largest of its block "
        f"of 256; decades with fewer than {FEW} elements decide nothing. Precise: a mean relative "
        f"error of at most {percent(PRECISE)}. Small: less than {percent(10.0**-SMALL)} of the "
        "largest. Log space spreads its 255 codes over the range that a block has, so a wide block "
        "is coarser, but evenly so. Linear quantization without a zero truncates nothing: it makes "
        "the small ones as large as its smallest code. Adafactor8bit quantizes means of rows and "
        "columns only where there are more than 4096 of them; here all are.",
        tables=dict(frames),
    )


def _of(frame: pd.DataFrame, what: str) -> list[Claim]:
    """The page's claims, on one kind of tensors."""
    counted = frame[frame["elements"] >= FEW]
    errors = counted.pivot(index="decade", columns="quantizer", values="mean_rel_error")
    zeroed = frame.assign(count=frame["zeros"] * frame["elements"]).groupby("quantizer")["count"]
    zeros = zeroed.sum() / (frame["elements"].sum() / frame["quantizer"].nunique())
    deepest = int(errors.index.max())
    small = errors.loc[SMALL:]
    return [
        Claim(
            f"Log space preserves relative precision for small variances ({what}).",
            bool(errors[LOG].max() <= PRECISE),
            f"Mean relative errors from {percent(errors[LOG].min())} to "
            f"{percent(errors[LOG].max())} over {deepest + 1} decades.",
        ),
        Claim(
            f"Linear space does not ({what}).",
            bool(errors[LINEAR].max() > PRECISE),
            f"{percent(errors[LINEAR].iloc[0])} among the largest, "
            f"{percent(errors[LINEAR].loc[deepest])} in decade {deepest}; {percent(zeros[LINEAR])} "
            f"of all become 0.",
        ),
        Claim(
            f"Log space truncates none of them to zero ({what}).",
            bool(zeros[LOG] == 0),
            f"{percent(zeros[LOG])}; with dynamic quantization in the same blocks "
            f"{percent(zeros[DYNAMIC])}.",
        ),
        Claim(
            f"Log space keeps small variances better than standard 8-bit quantization ({what}).",
            bool((small[LOG] < small[DYNAMIC]).all()) and not small.empty,
            f"In decade {deepest} dynamic quantization errs by "
            f"{percent(errors[DYNAMIC].loc[deepest])}, log space by "
            f"{percent(errors[LOG].loc[deepest])}; among the largest by "
            f"{percent(errors[DYNAMIC].iloc[0])} and {percent(errors[LOG].iloc[0])}.",
        ),
    ]


EXHIBIT = Exhibit(
    name="quantization-precision",
    covers=("Quantization Precision",),
    title="Errors of second moments, decade by decade",
    needs=Needs.STATES,
    source="states of {headline}",
    build=build,
    find=find,
    draw=lambda frames: {
        f"quantization-precision-{name}": figures.error_per_decade(
            frame.replace({"quantizer": NAMES})
        )
        for name, frame in frames.items()
    },
    captions={
        "quantization-precision-moments": f"Whole second moments. {SPECS}",
        "quantization-precision-sides": "What Adafactor keeps: means over rows and over columns. "
        "The "
        "same quantizers.",
    },
    place=1,
)
