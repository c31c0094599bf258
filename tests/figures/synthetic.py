"""Frames with the columns of each figure, made without `qmaps.analyze`.

Adam-like moments, a plain nearest-value rounding, and counting: enough for pictures
similar to those of real states.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tests.figures.checks import Subject

PAIR = "tensor/DE@4s + tensor/linear@4u"
OTHER = "B128/linear@3s + B128/linear@3u"


def codebook(size: int, signed: bool) -> np.ndarray:
    """Cubed, so values crowd around 0."""
    return np.linspace(-1 if signed else 0, 1, size) ** 3


def nearest(values: np.ndarray, book: np.ndarray) -> np.ndarray:
    return np.abs(values[:, None] - book).argmin(1)


def moments() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    m = random.normal(size=3000) * np.exp(random.normal(size=3000))
    v = m**2 * np.exp(random.normal(size=3000))
    return m / np.abs(m).max(), v / v.max()


def cells(quantizer: str, size: int) -> pd.DataFrame:
    """One row per element: its codes, values and errors."""
    m, v = moments()
    first, second = codebook(size, True), codebook(size, False) + 1e-4
    codes = nearest(m, first), nearest(v, second)
    exact = m / (np.sqrt(v) + 1e-8)
    error = np.abs(exact - first[codes[0]] / (np.sqrt(second[codes[1]]) + 1e-8))
    return pd.DataFrame(
        {
            "quantizer": quantizer,
            "code_first": codes[0],
            "code_second": codes[1],
            "value_first": first[codes[0]],
            "value_second": second[codes[1]],
            "size_first": size,
            "size_second": size,
            "abs": error,
            "rel": error / np.abs(exact),
        }
    )


def averaged(rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    grouped = rows.groupby(keys, sort=False)
    frame = grouped.agg(
        count=("abs", "size"), mean_abs_error=("abs", "mean"), mean_rel_error=("rel", "mean")
    ).reset_index()
    return frame.assign(use=frame["count"] / len(rows))


def code_pairs() -> pd.DataFrame:
    keys = ["quantizer", "code_first", "code_second", "value_first", "value_second",
            "size_first", "size_second"]  # fmt: skip
    frame = pd.concat(
        [averaged(cells(PAIR, 16), keys), averaged(cells(OTHER, 8), keys)], ignore_index=True
    )
    frame.loc[3, "mean_rel_error"] = np.nan
    return frame


def first_code_error() -> pd.DataFrame:
    frames = []
    for name, size in ((PAIR, 16), (OTHER, 8)):
        keys = ["quantizer", "code_first", "value_first"]
        frame = averaged(cells(name, size), keys).sort_values("code_first")
        frame = frame.rename(columns={"code_first": "code", "value_first": "value"})
        frame["position"] = 2 * frame["code"] / (size - 1) - 1
        frames.append(frame)
    frame = pd.concat(frames, ignore_index=True)
    frame.loc[2, ["mean_abs_error", "mean_rel_error"]] = np.nan, 0.0
    return frame


def map_curves(maps: int = 3) -> pd.DataFrame:
    return pd.concat(
        pd.DataFrame(
            {
                "map": f"map{number}@{bits}s",
                "code": np.arange(2**bits),
                "position": np.linspace(0, 1, 2**bits),
                "value": np.sort(np.append(codebook(2**bits - 1, True), 0.5)) / (number + 1),
            }
        )
        for number, bits in zip(range(maps), [4, 8, 6] * maps, strict=False)
    ).reset_index(drop=True)


def binned(values: np.ndarray, edges: np.ndarray) -> dict[str, np.ndarray]:
    counts, _ = np.histogram(np.log10(values), edges)
    return {"bin_left": edges[:-1], "bin_right": edges[1:], "count": counts}


def histogram() -> pd.DataFrame:
    _, v = moments()
    frames = []
    for quantizer, zero in (("B128/DE@4u", 100), ("rank1/linear@4u", 0)):
        for shift, panel in enumerate(("original", "normalized", "quantized", "dequantized")):
            nonzero = v[v > np.quantile(v, 0.2)] * 10.0**shift
            bins = binned(nonzero, np.linspace(-9, 5, 41))
            zeros = zero if shift > 1 else 0
            frames.append(
                pd.DataFrame({"quantizer": quantizer, "panel": panel, **bins, "zeros": zeros})
            )
    return pd.concat(frames, ignore_index=True)


def inverse_sqrt() -> pd.DataFrame:
    _, v = moments()
    edges = np.linspace(-1, 6 + 1e-9, 51)
    frames = []
    for name, zeros in (("32-bit", 0), ("B128/DE@4u", 900), ("B128/DE-0@4u", 0)):
        values = np.r_[np.zeros(zeros), v[zeros:]]
        bins = binned(1 / (np.sqrt(values) + 1e-6), edges)
        share = bins["count"] / values.size
        frames.append(
            pd.DataFrame(
                {"quantizer": name, **bins, "share": share, "zero_share": zeros / values.size}
            )
        )
    return pd.concat(frames, ignore_index=True)


def outliers(tensors: int = 2) -> pd.DataFrame:
    random = np.random.default_rng(1)
    frames = []
    for number in range(tensors):
        magnitude = np.exp(2 * random.normal(size=(12, 20)))
        magnitude[:, number + 3] *= 100
        magnitude[0, 0] = 0.0
        row, col = np.indices(magnitude.shape)
        frames.append(
            pd.DataFrame(
                {
                    "tensor": f"layers.{number}.weight: exp_avg",
                    "row": 2 * row.ravel(),
                    "col": 3 * col.ravel(),
                    "rows": 24,
                    "cols": 59,
                    "magnitude": magnitude.ravel(),
                }
            )
        )
    # The order of rows is not the order of cells.
    return pd.concat(frames).sample(frac=1, random_state=0).sort_values("tensor", kind="stable")


def pareto() -> pd.DataFrame:
    rows = [
        {
            "quantizer": f"{normalizer}/{map_}@{bits}s",
            "normalizer": normalizer,
            "map": map_,
            "bits_per_element": bits + overhead,
            "error": factor * scale * 4.0**-bits,
            "error_name": "relative squared error",
            "on_frontier": map_ == "DE",
            "is_limit": map_ == "lloyd",
        }
        for normalizer, overhead, scale in (("tensor", 0.0, 4.0), ("B128", 0.25, 1.0))
        for map_, factor in (("DE", 1.0), ("linear", 3.0), ("tree", 1.4), ("lloyd", 0.7))
        for bits in (2, 3, 4, 5, 6, 8)
    ]
    return pd.DataFrame(rows)


def loss_curves() -> pd.DataFrame:
    step = np.arange(10, 210, 10)
    frame = pd.concat(
        pd.DataFrame(
            {"run": run, "seed": seed, "step": step[::stride], "split": split,
             "loss": 1 + shift + seed / 50 + (3 * np.exp(-step / 60))[::stride]}
        )
        for run, shift in (("32-bit AdamW", 0.0), ("8-bit AdamW", 0.02), ("4-bit AdamW", 0.1))
        for seed in (0, 1)
        for split, stride in (("train", 1), ("val", 5))
    )  # fmt: skip
    return frame.reset_index(drop=True)


def update_error() -> pd.DataFrame:
    base = pd.Series([1e-3, 3e-2, 5e2])
    names = {"median": 0.5, "mean": 1.0, "p99": 8.0, "max": 70.0}
    return pd.DataFrame(
        {
            "quantizer": [PAIR, OTHER, "32-bit + B128/DE@4u"],
            "mean_abs_error": base * 2,
            **{f"{name}_rel_error": base * factor for name, factor in names.items()},
        }
    )


def replay() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "quantizer": [PAIR, OTHER, "32-bit + B256/DE-0@8u"],
            "step_cost": [0.005, 12.0, -0.2],
            "update_gain": [0.91, -0.2, 1.2],
            "update_noise": [0.0, 400.0, np.nan],
            "largest_update": [6.5, np.inf, 3e5],
            "stalled_share_first": [0.25, 0.0, np.nan],
            "stalled_share_second": [1.0, np.nan, 0.5],
        }
    )


def monitor() -> pd.DataFrame:
    measures = ["sqnr_db", "stalled_share", "saturated_share", "zero_point_share", "stuck_share"]
    rows = [
        {
            "step": step,
            "parameter": f"layers.{number}.weight",
            "state": state,
            "quantizer": spec,
            **dict.fromkeys(measures, 0.1 * number + step / 100),
            "update_median_rel_error": np.nan if state == "exp_avg" else 0.2,
        }
        for step in (10, 20, 30)
        for number in range(3)
        for state, spec in (("exp_avg", "B128/DE@4s"), ("exp_avg_sq", "B128/DE-0@4u"))
    ]
    return pd.DataFrame(rows)


SUBJECTS = {
    "code_pairs": Subject(
        code_pairs(),
        "quantizer code_first code_second value_first value_second size_first size_second "
        "use mean_abs_error mean_rel_error",
        6 + 3,  # two quantizers, three quantities, a colour bar for each of those
    ),
    "first_code_error": Subject(
        first_code_error(),
        "quantizer position mean_abs_error mean_rel_error use",
        6,
    ),
    "histogram": Subject(
        histogram(),
        "quantizer panel bin_left bin_right count zeros",
        8,
    ),
    "inverse_sqrt": Subject(
        inverse_sqrt(),
        "quantizer bin_left bin_right share zero_share",
        3,
    ),
    "loss_curves": Subject(
        loss_curves(),
        "run seed step split loss",
        2,
    ),
    "map_curves": Subject(
        map_curves(),
        "map position value",
        2,
    ),
    "monitor": Subject(
        monitor(),
        "step parameter state quantizer sqnr_db stalled_share saturated_share zero_point_share "
        "update_median_rel_error stuck_share",
        6,
    ),
    "outliers": Subject(
        outliers(),
        "tensor row col rows cols magnitude",
        2 + 2,
    ),
    "pareto": Subject(
        pareto(),
        "quantizer normalizer map bits_per_element error error_name on_frontier is_limit",
        1,
    ),
    "replay": Subject(
        replay(),
        "quantizer step_cost update_gain update_noise largest_update stalled_share_first "
        "stalled_share_second",
        5,
    ),
    "update_error": Subject(
        update_error(),
        "quantizer mean_abs_error median_rel_error mean_rel_error p99_rel_error max_rel_error",
        2,
    ),
}
"""Subjects of the checks for every figure."""

FRAMES = {name: subject.frame for name, subject in SUBJECTS.items()}
