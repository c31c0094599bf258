"""Figure 2: train and test error over training, with messages in 8 and in 32 bits."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from scipy import stats

from reproduction import figures
from reproduction.claim import Claim, published
from reproduction.context import Context
from reproduction.differences import Difference
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.numbers import interval, percent
from reproduction.report_file import closed
from reproduction.verdict import beside

COMMAND = closed("python -m benchmarks.parallel_training")
FULL, DYNAMIC = "32-bit", "dynamic tree"
LEVEL = 0.05
"""Below this a difference is called significant."""
SAME = 0.02
"""Largest difference between the paper's test errors on CIFAR10."""
CONVOLUTIONAL = "convolutional"
QUANTITY = "test error of dynamic tree over that of 32 bits"


def build(context: Context) -> Frames:
    """The committed tables: means over training, and every seed's last test error."""
    return {
        "curves": context.table("parallel-training-curves.csv", COMMAND),
        "errors": context.table("parallel-training.csv", COMMAND),
    }


def find(frames: Frames) -> Finding:
    """The dynamic tree beside 32 bits, and a test of no difference between all types."""
    statements: list[Claim] = []
    ours: dict[tuple[str, str], tuple[float, float]] = {}
    printed = published("8-bit-parallelism-2015", EXHIBIT.name).set_index("what")["paper"]
    claimed = float(printed[DYNAMIC]) / float(printed[FULL])
    of: dict[str, pd.DataFrame] = {}
    curves = dict(list(frames["curves"].groupby(["net", "parallel"], sort=False)))
    for (net, parallel), part in frames["errors"].groupby(["net", "parallel"], sort=False):
        where = f"{net}, {parallel} parallel"
        errors = of[where] = part.pivot(index="seed", columns="type", values="error")
        ours[where, QUANTITY] = _ratio(errors)
        statements.append(_train(where, curves[net, parallel]))
        if net == CONVOLUTIONAL:
            statements.append(_close(where, errors))
    theirs = pd.DataFrame(
        {
            "what": [where for where, _ in ours],
            "quantity": QUANTITY,
            "unit": "",
            "paper": claimed,
            "paper_spread": float("nan"),
            "undecided": [abs(ratio - claimed) < half for ratio, half in ours.values()],
        }
    )
    return Finding(
        numbers=beside(theirs, ours),
        statements=[*statements, _increase(of), _all_types(of)],
        differences=[
            Difference(
                "Test errors rise most with model parallel messages. No control shows that another "
                "model or another data set would not have it.",
                elsewhere=False,
                of="increase the test error",
            )
        ],
        why=f"The paper trains AlexNet on ImageNet and ends at {printed[DYNAMIC]} and "
        f"{printed[FULL]} % (top 5). Ours are two nets on handwritten digits, whose errors are not "
        "of the top 5, so the ratio is compared: of the last test errors, ± half of its 95 % "
        "interval over seeds. No "
        f"increase of the training error: at most {percent(SAME)} of it more, in the mean over "
        "training. The tests of the last errors are t (paired by seed, one-sided) and F, at "
        f"{percent(LEVEL)}, taken together by Stouffer's method. CIFAR10 cannot be had here; "
        f"the convolutional net on digits "
        f"stands for its net. It errs so seldom that {percent(SAME)} is compared only where it is "
        "more than twice the standard error. The learning rate of the first net is the paper's, "
        "that of the second was not tuned. The curves are means over the same seeds"
        + (", with a band of one standard deviation." if "train_std" in frames["curves"] else "."),
        tables={"curves": frames["curves"]},
    )


def _ratio(errors: pd.DataFrame) -> tuple[float, float]:
    """Of the last errors, and half of its 95 % interval over seeds."""
    apart = (errors[DYNAMIC] - errors[FULL]).to_numpy(float)
    full = float(errors[FULL].to_numpy(float).mean())
    apart_of = interval(apart)
    return 1 + apart_of.mean / full, (apart_of.high - apart_of.mean) / full


def _close(where: str, errors: pd.DataFrame) -> Claim:
    """The cause: test errors of all types are too close for the number of seeds."""
    means, noise = errors.mean(), float((errors.sem() / errors.mean()).max())
    apart = float(means.max() / means.min() - 1)
    return Claim(
        f"Test errors of all types differ by at most {percent(SAME)}, as on CIFAR10 ({where}).",
        apart <= SAME if 2 * noise < SAME else (),
        f"By {percent(apart)}; the standard error over seeds is up to {percent(noise)}.",
    )


def _train(where: str, curve: pd.DataFrame) -> Claim:
    wide = curve.pivot(index="step", columns="type", values="train")
    more = float((wide[DYNAMIC] - wide[FULL]).mean())
    share = more / float(wide[FULL].mean())
    last = wide.iloc[-1]
    return Claim(
        f"The dynamic tree does not increase the training error ({where}).",
        share <= SAME,
        f"Over training {100 * more:+.2f} points in the mean, {percent(share)} of the error; at "
        f"the end {percent(last[DYNAMIC])} "
        f"against {percent(last[FULL])}.",
    )


def _increase(of: Mapping[str, pd.DataFrame]) -> Claim:
    """One test of all runs, as they test one claim; a few seeds without an effect cannot tell."""
    values = {where: _p_value(errors[DYNAMIC] - errors[FULL]) for where, errors in of.items()}
    p = float(stats.combine_pvalues(list(values.values()), "stouffer").pvalue)
    said = "; ".join(
        f"{where}: {percent(errors[DYNAMIC].mean())} against {percent(errors[FULL].mean())}, p = "
        f"{values[where]:.2f}"
        for where, errors in of.items()
    )
    return Claim(
        f"The dynamic tree does not increase the test error ({len(of)} runs together).",
        False if p < LEVEL else (),
        f"p = {p:.2f} together. {said}.",
    )


def _p_value(apart: pd.Series[float]) -> float:
    """Of a one-sided t-test; where all seeds differ by the same, any increase is one."""
    if apart.std() > 0:
        return float(stats.ttest_1samp(apart, 0, alternative="greater").pvalue)
    return 1e-9 if apart.mean() > 0 else 1.0 - 1e-9


def _all_types(of: Mapping[str, pd.DataFrame]) -> Claim:
    values = [float(stats.f_oneway(*(e[k] for k in e.columns)).pvalue) for e in of.values()]
    p = float(stats.combine_pvalues(values, "stouffer").pvalue)
    return Claim(
        f"No significant difference between 32 bits and the four types ({len(of)} runs together).",
        False if p < LEVEL else (),
        f"p = {p:.2f} together; {', '.join(f'{value:.2f}' for value in values)} one by one.",
    )


def drawn(curves: pd.DataFrame) -> pd.DataFrame:
    """Curves of 32 bits and of the dynamic tree, for `reproduction.figures.error_curves`."""
    # In 32 bits data and model parallel are the same run.
    full = curves[(curves["type"] == FULL) & (curves["parallel"] == "data")].assign(run=FULL)
    narrow = curves[curves["type"] == DYNAMIC]
    narrow = narrow.assign(run=f"{DYNAMIC}, " + narrow["parallel"] + " parallel")
    return pd.concat([full, narrow]).rename(columns={"net": "panel"})


EXHIBIT = Exhibit(
    name="figure-2",
    covers=("Figure 2",),
    title="Train and test error with the dynamic tree and with 32 bits",
    needs=Needs.REPORTS,
    build=build,
    find=find,
    draw=lambda frames: {"figure-2": figures.error_curves(drawn(frames["curves"]))},
    captions={"figure-2": "Two nets on handwritten digits; means over seeds."},
    command=COMMAND,
)
