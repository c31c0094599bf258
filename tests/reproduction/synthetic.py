"""Frames with the columns of each figure of the papers."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tests.figures.checks import Subject


def speedup() -> pd.DataFrame:
    rows = []
    for number, label in enumerate(("32-bit", "B2048/tree@8s", "B2048/tree@4s")):
        rows += [
            ("GPUs", label, gpus, 128 * gpus, gpus * (0.5 + 0.1 * number)) for gpus in (1, 2, 4, 8)
        ]
        for sub_batch in (128, 256, 512, 1024):
            value = 4 + number - abs(sub_batch - 256) / 256
            rows.append(("sub-batch", label, 8, sub_batch, value))
    return pd.DataFrame(rows, columns=["panel", "quantizer", "gpus", "sub_batch", "speedup"])


def bin_changes() -> pd.DataFrame:
    step = np.arange(1, 102, 5)
    return pd.concat(
        pd.DataFrame(
            {"parameter": parameter, "width": f"{bits} bits", "setting": setting, "step": step,
             "bin_change": size * 2.0 ** (bits - 12) * np.exp(-step / 40) * (step < end)}
        )
        for parameter, size in (("0.weight", 3.0), ("3.bias", 0.4))
        for bits in (12, 10, 8)
        for setting, end in (("nearest", 60), ("stochastic", 200))
    ).reset_index(drop=True)  # fmt: skip


def bit_fields() -> pd.DataFrame:
    """Two types; one has a moving field."""
    layouts = {
        ("moving", 0.5): ["sign", "flag", "tree", "tree"],
        ("moving", 0.01): ["sign", "zeros", "flag", "tree"],
        ("fixed", 0.5): ["sign", "exponent", "exponent", "tree"],
        ("fixed", 0.01): ["sign", "exponent", "exponent", "tree"],
    }
    rows = [
        {"map": name, "value": value, "decoded": 1.1 * value, "bit": bit,
         "set": (number + bit) % 2, "field": field}
        for number, ((name, value), fields) in enumerate(layouts.items())
        for bit, field in enumerate(fields)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def convergence_bound() -> pd.DataFrame:
    step = np.arange(1, 101)
    return pd.concat(
        pd.DataFrame(
            {"setting": f"{bits} bits", "seed": seed, "step": step,
             "gap": 9 / step + 2.0**-bits + seed / 100, "bound": 90 / step + 2.0 ** (4 - bits)}
        )
        for bits in (12, 10, 8)
        for seed in (0, 1)
    ).reset_index(drop=True)  # fmt: skip


def error_curves() -> pd.DataFrame:
    step = np.arange(50, 1050, 50)
    frame = pd.concat(
        pd.DataFrame(
            {"panel": panel, "run": run, "step": step,
             "train": size * np.exp(-step / 200) + shift,
             "test": size * np.exp(-step / 300) + 0.02 + shift}
        )
        for panel, size in (("large", 0.3), ("small", 0.6))
        for run, shift in (("32-bit", 0.0), ("8-bit", 0.001))
    )  # fmt: skip
    return frame.sample(frac=1, random_state=0).sort_values(["panel", "run"], kind="stable")


def error_per_decade() -> pd.DataFrame:
    decade = np.arange(6)
    share = np.array([0.3, 0.3, 0.2, 0.1, 0.1, 0.0])
    frame = pd.concat(
        pd.DataFrame(
            {"quantizer": name, "decade": decade, "elements": 1000 * share, "share": share,
             "mean_rel_error": error, "mean_update_error": error / 2, "zeros": zeros}
        )
        for name, error, zeros in (
            ("logB256/log2@8u", np.full(6, 0.01), np.zeros(6)),
            ("B256/linear0@8u", np.minimum(1e-3 * 10.0**decade, 1), decade > 2),
        )
    ).reset_index(drop=True)  # fmt: skip
    # No element is that small; one decade is exact.
    frame.loc[frame["decade"] == 5, ["mean_rel_error", "mean_update_error", "zeros"]] = np.nan
    frame.loc[0, "mean_rel_error"] = 0.0
    return frame


def sensitivity() -> pd.DataFrame:
    """Two runs over two hyperparameters, one over decades, with two seeds."""
    values = {"lr": (1e-3, 2e-3, 4e-3), "eps": (1e-8, 1e-7, 1e-6)}
    rows = [
        {
            "parameter": parameter,
            "value": value,
            "run": run,
            "seed": seed,
            "loss": 2 + 0.1 * place + 0.01 * seed + shift,
        }
        for parameter, points in values.items()
        for run, shift in (("32-bit", 0.0), ("8-bit", 0.02))
        for place, value in enumerate(points)
        for seed in (0, 1)
    ]
    return pd.DataFrame(rows)


def update_histogram() -> pd.DataFrame:
    random = np.random.default_rng(2)
    edges = np.r_[0.0, 2.0 ** np.arange(-8, 5), np.inf]
    frames = []
    for parameter, zeros in (("0.weight", 0), ("3.bias", 300)):
        for setting, middle in (("N = 1", -2), ("N = 8", 1)):
            size = 2.0 ** random.normal(middle, 2, size=2000)
            size[:zeros] = 0
            share = np.histogram(size, edges)[0] / size.size
            frames.append(
                pd.DataFrame(
                    {"parameter": parameter, "setting": setting, "bin_left": edges[:-1],
                     "bin_right": edges[1:], "share": share, "cumulative": share.cumsum()}
                )
            )  # fmt: skip
    return pd.concat(frames, ignore_index=True)


SUBJECTS = {
    "bin_changes": Subject(
        bin_changes(),
        "parameter width setting step bin_change",
        6,
    ),
    "bit_fields": Subject(
        bit_fields(),
        "map value decoded bit set field",
        2,
    ),
    "convergence_bound": Subject(
        convergence_bound(),
        "setting seed step gap bound",
        3,
    ),
    "error_curves": Subject(
        error_curves(),
        "panel run step train test",
        4,
    ),
    "error_per_decade": Subject(
        error_per_decade(),
        "quantizer decade share mean_rel_error mean_update_error zeros",
        3,
    ),
    "sensitivity": Subject(
        sensitivity(),
        "parameter value run seed loss",
        2,
    ),
    "update_histogram": Subject(
        update_histogram(),
        "parameter setting bin_left bin_right share cumulative",
        4,
    ),
    "speedup": Subject(
        speedup(),
        "panel quantizer gpus sub_batch speedup",
        2,
    ),
}
"""Subjects of the checks for every figure."""

FRAMES = {name: subject.frame for name, subject in SUBJECTS.items()}
