"""Figure 2: train and test error over training, with messages in 8 and in 32 bits."""

from __future__ import annotations

import pandas as pd
from scipy import stats

from qmaps.lab.report.claim import Claim, Verdict, published
from reproduction import figures
from reproduction.context import Context
from reproduction.exhibit import Exhibit, Finding, Frames, Needs
from reproduction.numbers import percent
from reproduction.verdict import beside

COMMAND = "python -m benchmarks.parallel_training"
FULL, DYNAMIC = "32-bit", "dynamic tree"
LEVEL = 0.05
"""Below this a difference is called significant."""
CLOSE = 0.005
"""Mean distance of two curves of training errors, as a fraction of the images, that is none."""
SAME = 0.02
"""Of each other: by how much the paper's test errors on CIFAR10 differ at most."""
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
    unsure = []
    tests = len(frames["errors"].groupby(["net", "parallel"]))
    curves = dict(list(frames["curves"].groupby(["net", "parallel"], sort=False)))
    for (net, parallel), part in frames["errors"].groupby(["net", "parallel"], sort=False):
        where = f"{net}, {parallel} parallel"
        errors = part.pivot(index="seed", columns="type", values="error")
        ours[where, QUANTITY] = ratio, error = _ratio(errors)
        if abs(ratio - claimed) < stats.t.ppf(1 - LEVEL / 2, len(errors) - 1) * error:
            unsure.append(where)
        statements += [
            _train(where, curves[net, parallel]),
            _test(where, errors, tests),
            _all_types(where, errors),
        ]
        if net == CONVOLUTIONAL:
            statements.append(_close(where, errors))
    theirs = pd.DataFrame(
        {
            "what": [where for where, _ in ours],
            "quantity": QUANTITY,
            "unit": "",
            "paper": claimed,
            "paper_spread": float("nan"),
        }
    )
    numbers = beside(theirs, ours)
    blurred = numbers["what"].isin(unsure) & (numbers["verdict"] != Verdict.REPRODUCED)
    numbers.loc[blurred, "verdict"] = Verdict.NOT_COMPARED.value
    return Finding(
        numbers=numbers,
        statements=statements,
        why=f"The paper trains AlexNet on ImageNet and ends at {printed[DYNAMIC]} and "
        f"{printed[FULL]} % (top 5). Ours are two nets on handwritten digits, whose errors are not "
        "of the top 5, so the ratio is compared: of the last test errors, ± the standard error "
        "over seeds; where it is off but its 95 % interval holds the paper's, it is not compared. "
        "No "
        f"increase of the training error: at most {percent(CLOSE)} of the images more, in the mean "
        "over training. The tests of the last errors are t (paired by seed, one-sided) and F, at "
        f"{percent(LEVEL)}; the t tests ask one thing {tests} times, so that each is made at "
        f"{percent(LEVEL)} / {tests}. CIFAR10 cannot be had here; the convolutional net on digits "
        f"stands for its net. It errs so seldom that {percent(SAME)} is compared only where it is "
        "more than twice the standard error. The learning rate of the first net is the paper's, "
        "that of the second was not tuned. The curves are means over the same seeds"
        + (", with a band of one standard deviation." if "train_std" in frames["curves"] else "."),
        tables={"curves": frames["curves"]},
    )


def _ratio(errors: pd.DataFrame) -> tuple[float, float]:
    """Of the last errors, and the standard error over seeds of the difference."""
    apart = (errors[DYNAMIC] - errors[FULL]).to_numpy(float)
    full = float(errors[FULL].to_numpy(float).mean())
    return 1 + float(apart.mean()) / full, float(stats.sem(apart)) / full


def _close(where: str, errors: pd.DataFrame) -> Claim:
    """That test errors of all types differ by so little that seeds could show it."""
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
    last = wide.iloc[-1]
    return Claim(
        f"The dynamic tree does not increase the training error ({where}).",
        more <= CLOSE,
        f"Over training {100 * more:+.2f} points in the mean; at the end {percent(last[DYNAMIC])} "
        f"against {percent(last[FULL])}.",
    )


def _test(where: str, errors: pd.DataFrame, tests: int) -> Claim:
    apart = errors[DYNAMIC] - errors[FULL]
    # Where all seeds differ by the same, any increase is one.
    p = float(stats.ttest_1samp(apart, 0, alternative="greater").pvalue) if apart.std() > 0 else 0.0
    return Claim(
        f"The dynamic tree does not increase the test error ({where}).",
        bool(apart.mean() <= 0 or p >= LEVEL / tests),
        f"{percent(errors[DYNAMIC].mean())} against {percent(errors[FULL].mean())}, "
        f"{len(errors)} seeds, p = {p:.2f}.",
    )


def _all_types(where: str, errors: pd.DataFrame) -> Claim:
    f_test = stats.f_oneway(*(errors[kind] for kind in errors.columns))
    return Claim(
        f"No significant difference between 32 bits and the four types ({where}).",
        bool(f_test.pvalue >= LEVEL),
        f"F = {f_test.statistic:.2f}, p = {f_test.pvalue:.2f}.",
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
