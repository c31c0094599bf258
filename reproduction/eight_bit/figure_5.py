"""Figure 5: the Adam error of each code of the first moment."""

from __future__ import annotations

import pandas as pd

from qmaps import analyze, figures
from reproduction.claim import Claim
from reproduction.context import Context
from reproduction.eight_bit._maps import NAMES, first_only
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.numbers import number

BANDS = {"small": (0.0, 0.25), "intermediate": (0.25, 0.9), "large": (0.9, 1.0)}
"""Bands of a code's distance from the middle of the map, 0 to 1."""


def build(context: Context) -> Frames:
    """Errors of every code."""
    return {"codes": analyze.first_code_error(context.states, [first_only(name) for name in NAMES])}


def bands(codes: pd.DataFrame) -> pd.DataFrame:
    """Mean over codes in use of each code's mean absolute Adam error, in three bands.

    Returns:
        `map` and the bands.
    """
    rows = []
    for name in NAMES:
        part = codes[codes["quantizer"] == first_only(name)]
        away = part["position"].abs()
        errors = {
            band: float(part.loc[(away >= low) & (away <= high), "mean_abs_error"].median())
            for band, (low, high) in BANDS.items()
        }
        rows.append({"map": name, **errors})
    return pd.DataFrame(rows)


def find(frames: Frames) -> Finding:
    """Test the regions where each map errs."""
    table = bands(frames["codes"])
    rows = table.set_index("map")
    dynamic, quantile = rows.T["dynamic"], rows.T["quantile"]
    return Finding(
        statements=[
            Claim(
                "Quantile quantization has large errors for large values.",
                bool(quantile["large"] > quantile[["small", "intermediate"]].max()),
                _detail(quantile),
            ),
            Claim(
                "Dynamic quantization errs less at small and at large values than between.",
                bool(dynamic["intermediate"] > dynamic[["small", "large"]].max()),
                _detail(dynamic),
            ),
        ],
        why="Medians over codes of a code's mean |Δu|. Codes are positions from -1 to 1. Second "
        "moments are exact: quantized too, one near zero makes a large error under any code of the "
        "first moment.",
        tables={"bands": table},
    )


def _detail(row: pd.Series[float]) -> str:
    return ", ".join(f"{band} {number(row[band])}" for band in BANDS) + "."


def named(codes: pd.DataFrame) -> pd.DataFrame:
    """With the paper's names of the maps."""
    return codes.replace({"quantizer": {first_only(name): name for name in NAMES}})


EXHIBIT = Exhibit(
    name="figure-5",
    covers=("Figure 5",),
    title="Adam error among the 256 values of the first state",
    needs=Needs.STATES,
    source="states of {headline}",
    build=build,
    find=find,
    draw=lambda frames: {"figure-5": figures.first_code_error(named(frames["codes"]))},
    captions={
        "figure-5": "Codes scaled to [-1, 1]; a line breaks where a code is not used. "
        + "; ".join(f"{name}: {first_only(name)}" for name in NAMES)
        + "."
    },
)
