"""Tables and pictures of reports/blind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.blind import plan, tune
from benchmarks.blind.equivalence import WITHIN, in_steps, of_known_slope, percent
from benchmarks.blind.judges import SEEN
from benchmarks.blind.plan import CHOICES, FACTORS, MARGIN, PAIRS, SAFE_SHARE
from benchmarks.blind.workloads.validation import PARTS
from benchmarks.markdown import markdown
from benchmarks.paired import paired
from benchmarks.trials import FULL
from benchmarks.version_0_3 import PAIR_OF, PRESETS
from qmaps.algebra.pair import Pair
from qmaps.analyze.limits import BITS
from qmaps.analyze.replay.zero_points import holds_zero
from qmaps.errors import BadValueError
from qmaps.storage.files import records

WORDS = ("safe", "caution", "unsafe")
RATES = ("tuned rate", "a quarter", "a twentieth")
"""Words for `FACTORS`."""
MODES = {"gradients": "recorded gradients", "checkpoint": "a checkpoint alone"}

SIMPLEST = "fewest bits called safe"
"""The rule beside which mixes are judged."""


def judged(trials: pd.DataFrame, told: pd.DataFrame) -> pd.DataFrame:
    """`in_steps` of the trials, with the verdicts at the tuned rate.

    Args:
        trials: rows of trials.csv.
        told: rows of verdicts.csv.

    Returns:
        The columns of `in_steps`; `preset`; and at the tuned rate `verdict_gradients` and
        `verdict_checkpoint`, `step_cost_gradients` and `step_cost_checkpoint`; `one_step`,
        `bits_per_element` and `zero_point_share`.
    """
    finished = whole(trials)
    if finished.empty:
        raise BadValueError("no judge has all its trials yet; run python -m benchmarks.blind train")
    # p-values are adjusted among models of a kind
    parts = [unseen(finished), finished[finished["judge"].isin(SEEN)]]
    table = pd.concat([in_steps(part) for part in parts if len(part)], ignore_index=True)
    table["preset"] = table["quantizer"].map(PRESETS).fillna("")
    for mode in MODES:
        own = told[told["mode"] == mode].set_index(["judge", "quantizer"])
        keys = pd.MultiIndex.from_frame(table[["judge", "quantizer"]])
        tuned = table["factor"] == 1
        for column in ("verdict", "step_cost"):
            values = own[column].reindex(keys).to_numpy()
            table[f"{column}_{mode}"] = pd.Series(values, table.index).where(tuned)
        if mode == "gradients":
            for column in ("one_step", "bits_per_element", "zero_point_share"):
                table[column] = own[column].reindex(keys).to_numpy()
    return table


def unseen(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of judges on which no threshold was chosen."""
    return rows[~rows["judge"].isin(SEEN)]


def whole(trials: pd.DataFrame) -> pd.DataFrame:
    """The rows of judges that have all their trials."""
    counts = trials["judge"].value_counts()
    finished = [judge for judge, count in counts.items() if count == plan.size(str(judge))]
    return trials[trials["judge"].isin(finished)]


def confusion(steps: pd.DataFrame, mode: str) -> pd.DataFrame:
    """Number of pairs by verdict, and by their place beside the margin, where steps are known.

    Args:
        steps: rows of `judged`.
        mode: a key of `MODES`.

    Returns:
        `verdict`, `pairs`, `within` (equivalent or no worse, by the adjusted tests), `worse` (by
        them), `not_shown`, and `mean_beyond`, those whose mean is beyond the margin.
    """
    tuned = of_known_slope(steps[(steps["factor"] == 1) & steps["quantizer"].isin(PAIRS)])
    rows = []
    for level in WORDS:
        own = tuned[tuned[f"verdict_{mode}"] == level]
        rows.append(
            {
                "verdict": level,
                "pairs": len(own),
                "within": int(own["outcome"].isin(WITHIN).sum()),
                "worse": int((own["outcome"] == "worse").sum()),
                "not_shown": int((own["outcome"] == "not shown").sum()),
                "mean_beyond": int((own["steps"] > MARGIN).sum()),
            }
        )
    return pd.DataFrame(rows)


def calibration(steps: pd.DataFrame, mode: str) -> pd.DataFrame:
    """Slower steps per step cost, fitted to all judges but one, and its errors on that one.

    Args:
        steps: rows of `judged`.
        mode: a key of `MODES`.

    Returns:
        `judge`, `pairs`, `slope` (of the judge's own line through zero), `slope_of_others`, and
        `median_error`, of the prediction by the others' slope, in share of steps. Pairs called
        unsafe for zeros or very large updates, whose cost is unknown, are left out, as are step
        costs above 1.
    """
    tuned = steps[(steps["factor"] == 1) & (steps[f"step_cost_{mode}"] < 1)]
    tuned = tuned[np.isfinite(tuned["steps"]) & ~tuned["quantizer"].map(_zero)]
    fits = {}
    for judge, own in tuned.groupby("judge", sort=False):
        fits[judge] = _through_zero(own[f"step_cost_{mode}"], np.log1p(own["steps"]))
    rows = []
    for judge, own in tuned.groupby("judge", sort=False):
        others = tuned[tuned["judge"] != judge]
        slope = (
            _through_zero(others[f"step_cost_{mode}"], np.log1p(others["steps"]))
            if len(others)
            else np.nan
        )
        errors = np.log1p(own["steps"]) - slope * own[f"step_cost_{mode}"]
        rows.append(
            {
                "judge": judge,
                "pairs": len(own),
                "slope": fits[judge],
                "slope_of_others": slope,
                "median_error": float(np.median(np.abs(errors))),
            }
        )
    return pd.DataFrame(rows)


def _through_zero(x: pd.Series, y: pd.Series) -> float:
    return float((x * y).sum() / (x * x).sum())


def _zero(spec: str) -> bool:
    return spec in PAIRS and holds_zero(Pair.parse(spec).second)


def rules(steps: pd.DataFrame) -> pd.DataFrame:
    """Simple rules beside the verdicts, at the tuned rate.

    Returns:
        `judge`, `rule`, `quantizer` (the one that the rule takes), and its `steps`, `low`, `high`
        and `outcome`.
    """
    rows = []
    for judge, own in unseen(steps[steps["factor"] == 1]).groupby("judge", sort=False):
        by_name = own.set_index("quantizer")
        pairs = own[own["quantizer"].isin(PAIRS)]
        small = pairs[pairs["bits_per_element"] <= BITS]
        safe = pairs[pairs["verdict_gradients"] == "safe"]
        chosen = {
            "4bit for all": PAIR_OF["4bit"],
            "best one-step error of up to 4 bits": _least(small, "one_step"),
            "least step cost of up to 4 bits": _least(small, "step_cost_gradients"),
            SIMPLEST: _least(safe, "bits_per_element"),
            "fewest bits without zero points": _least(
                pairs[pairs["zero_point_share"] == 0], "bits_per_element"
            ),
            **{name: name for name in CHOICES},
        }
        for rule, quantizer in chosen.items():
            if quantizer in by_name.index:
                row = by_name.loc[quantizer]
                rows.append(
                    {"judge": judge, "rule": rule, "quantizer": quantizer}
                    | {name: row[name] for name in ("steps", "low", "high", "outcome")}
                )
    return pd.DataFrame(rows)


def beside_simplest(rows: pd.DataFrame, trials: pd.DataFrame) -> list[str]:
    """Differences from the `SIMPLEST` rule's pair at the tuned rate, in nats with intervals.

    Args:
        rows: rows of `rules`.
        trials: rows of trials.csv.
    """
    simplest = rows[rows["rule"] == SIMPLEST].set_index("judge")["quantizer"]
    losses = tuned_losses(trials)
    return [
        "" if quantizer == simplest[judge] else nats(losses, judge, quantizer, simplest[judge])
        for judge, quantizer in zip(rows["judge"], rows["quantizer"], strict=True)
    ]


def tuned_losses(trials: pd.DataFrame) -> pd.Series:
    """Losses at the tuned rates by judge, quantizer and seed."""
    tuned = trials[(trials["length"] == 1) & (trials["factor"] == 1)]
    return tuned.set_index(["judge", "quantizer", "seed"])["loss"].sort_index()


def nats(losses: pd.Series, judge: str, quantizer: str, other: str) -> str:
    """Difference of a quantizer from another in `tuned_losses`, with its 95 % interval."""
    difference = paired(losses[judge, quantizer], losses[judge, other])
    return "{difference:+.4f} ({low:+.4f} to {high:+.4f})".format(**difference)


def without_zero_points(steps: pd.DataFrame) -> str:
    """How the pairs without and with zero points ended, where steps are known."""
    tuned = of_known_slope(steps[(steps["factor"] == 1) & steps["quantizer"].isin(PAIRS)])
    without, having = (
        f"{int((own['steps'] <= MARGIN).sum())} of {len(own)} pairs"
        for own in (tuned[tuned["zero_point_share"] == 0], tuned[tuned["zero_point_share"] > 0])
    )
    return (
        f"By the rule of zero points alone: without them {without} have a mean within the margin "
        f"or better, with them {having}."
    )


def _least(rows: pd.DataFrame, column: str) -> str | None:
    known = rows.dropna(subset=column)
    return None if known.empty else str(known.loc[known[column].idxmin(), "quantizer"])


def validation_errors(trials: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """How far differences hang on the choice of the validation set.

    Args:
        trials: rows of trials.csv.
        steps: rows of `judged`.

    Returns:
        `judge`, `preset`, and for each of `RATES` the standard error, over the eighths of the
        validation set, of the preset's mean difference from 32 bits, in per cent of steps.
    """
    parts = [f"loss_{part + 1}" for part in range(PARTS)]
    slopes = (
        steps["slope"]
        .where(steps["outcome"] != "not tested")
        .groupby([steps["judge"], steps["factor"]])
        .agg(lambda own: own.min(skipna=False))
    )
    whole = trials[trials["length"] == 1].set_index(["judge", "factor", "quantizer", "seed"])[parts]
    whole = whole.sort_index()
    rows = []
    for judge in steps["judge"].unique():
        for preset in ("8bit", "4bit"):
            row = {"judge": judge, "preset": preset}
            for rate, factor in zip(RATES, FACTORS, strict=True):
                row[rate] = np.nan
                if (judge, factor) in slopes:
                    own = whole.loc[judge, factor]
                    apart = (own.loc[PAIR_OF[preset]] - own.loc[FULL]).mean()
                    row[rate] = 100 * apart.sem() / slopes[judge, factor]
            rows.append(row)
    return pd.DataFrame(rows)


def _too_large(errors: pd.DataFrame) -> Iterator[str]:
    """The rows of `validation_errors` above half the margin, by rate."""
    for row in records(errors):
        for rate in RATES:
            if row[rate] > 50 * MARGIN:
                yield f"`{row['preset']}` on `{row['judge']}` ({rate})"


def _percent(value: float) -> str:
    return "not known" if np.isnan(value) else f"{value:.2f}"


def presets_table(steps: pd.DataFrame) -> list[str]:
    """Presets by judge and rate, as a table in Markdown."""
    names = PRESETS | {CHOICES[0]: CHOICES[0]}
    rows = []
    for judge, own in steps.groupby("judge", sort=False):
        for spec, name in names.items():
            cells = []
            for factor in FACTORS:
                matching = records(own[(own["quantizer"] == spec) & (own["factor"] == factor)])
                cells.append(_cell(matching[0]) if matching else "")
            if any(cells):
                rows.append((str(judge), name, *cells))
    return markdown(("model", "preset", *RATES), rows)


def _cell(row: Mapping[str, Any]) -> str:
    """A difference in per cent of steps with its outcome, or in nats."""
    if row["outcome"] == "not tested":
        return f"{row['nats']:+.4f} nats"
    return f"{percent(row)} {row['outcome']}"


def pairs_table(steps: pd.DataFrame) -> list[str]:
    """All pairs at the tuned rate with their verdicts, as a table in Markdown."""
    tuned = steps[(steps["factor"] == 1) & steps["quantizer"].isin(PAIRS)]
    return markdown(
        ("model", "pair", "gradients", "checkpoint", "slower by, per cent of steps", "outcome"),
        [
            (
                row["judge"],
                row["preset"] or f"`{row['quantizer']}`",
                str(row["verdict_gradients"]),
                str(row["verdict_checkpoint"]),
                percent(row),
                row["outcome"],
            )
            for row in records(tuned)
        ],
    )


def page(steps: pd.DataFrame, trials: pd.DataFrame, tuned: pd.DataFrame, command: str) -> str:
    """The report.

    Args:
        steps: rows of `judged`.
        trials: rows of trials.csv.
        tuned: rows of tuning.csv.
        command: that made it.
    """
    judges, known = (
        ", ".join(f"`{name}`" for name in steps["judge"].unique() if (name in SEEN) is seen)
        for seen in (False, True)
    )
    simple, errors = rules(steps), validation_errors(trials, steps)
    lines = [
        "# Verdicts on models that no threshold has seen",
        "",
        *in_short(steps),
        "",
        f"`{command}` writes this page from the rows in this folder; torch {torch.__version__}, "
        "one thread for each run.",
        "",
        f"The models, margin and tests were fixed before the runs, in "
        f"[preregistration.md](preregistration.md). Finished so far: {judges}. A difference is the "
        "share of steps by which a quantizer makes training slower; below 0 it is faster. "
        f"Equivalent means within {MARGIN:.0%} either way, no worse means at most {MARGIN:.0%} "
        "slower, worse means more than that; all by t-tests over seeds at a false discovery rate "
        "of 5 % over the models of the page. The rest is not shown.",
        "",
        f"Thresholds were chosen on {known}, so only presets were trained there, with tests that "
        "are adjusted by themselves."
        if known
        else "No threshold was chosen on them.",
        "",
        "## Verdicts and outcomes",
        "",
        "Models whose loss does not tell steps at the tuned rate are left out.",
        "",
    ]
    for mode, words in MODES.items():
        table = confusion(steps, mode)
        lines += [f"From {words}:", ""]
        lines += markdown(
            (
                "verdict",
                "pairs",
                "equivalent or no worse",
                "worse",
                "not shown",
                "mean beyond margin",
            ),
            [tuple(map(str, row.values())) for row in records(table)],
        )
        lines += ["", earned(table), ""]
    lines += [
        f"The two agree on {agreement(steps)} pairs. {without_zero_points(steps)}",
        "",
        "## Presets at three learning rates",
        "",
        "In nats where the loss curve does not tell steps.",
        "",
        *presets_table(steps),
        "",
        "## Choices and simple rules at the tuned rate",
        "",
        *markdown(
            ("model", "rule", "takes", "slower by, per cent of steps", "outcome", "nats"),
            [
                (r["judge"], r["rule"], _name(r["quantizer"]), percent(r), r["outcome"], apart)
                for r, apart in zip(records(simple), beside_simplest(simple, trials), strict=True)
            ],
        ),
        "",
        f"In nats: the difference from the rule of the {SIMPLEST}, with a 95 % interval. Choices "
        "of `recommend` have at most 4.3 bits; they are one pair or a mix (files in choices).",
        "",
        "## Step cost and steps",
        "",
        "Slower steps (as a logarithm) per step cost, by lines through zero; fitted on the other "
        "models, the line predicts a model's pairs with the median error in the last column.",
        "",
    ]
    numbers = ("slope", "slope_of_others", "median_error")
    for mode, words in MODES.items():
        lines += [f"From {words}:", ""]
        lines += markdown(
            ("model", "pairs", "slope", "slope of the others", "median error"),
            [
                (row["judge"], str(row["pairs"]), *(f"{row[name]:.3g}" for name in numbers))
                for row in records(calibration(steps, mode))
            ],
        )
        lines += [""]
    lines += ["![Predicted and measured](calibration.png)", ""]
    lines += ["![Differences with intervals](intervals.png)", ""]
    lines += [
        "## Validation sets",
        "",
        "Standard errors of differences, in per cent of steps, that the choice of the validation "
        f"set leaves; half the margin is {50 * MARGIN:g}.",
        "",
        *markdown(
            ("model", "preset", *RATES),
            [
                (row["judge"], row["preset"], *(_percent(row[rate]) for rate in RATES))
                for row in records(errors)
            ],
        ),
        "",
        "Not known where the loss does not tell steps. Above half the margin: "
        + (", ".join(_too_large(errors)) or "none")
        + ".",
        "",
    ]
    lines += ["## All pairs", "", *pairs_table(steps), "", "## Tuning", ""]
    lines += markdown(
        ("model", "learning rate", "beta1", "weight decay"),
        [
            (judge, *(f"{options[name]:g}" for name in tune.OPTIONS))
            for judge, options in tune.options(tuned).items()
        ],
    )
    return "\n".join(lines) + "\n"


def in_short(steps: pd.DataFrame) -> list[str]:
    """A sentence for each unseen model on the pairs that kept up."""
    tuned = steps[(steps["factor"] == 1) & steps["quantizer"].isin(PAIRS)]
    lines = []
    for judge, own in unseen(tuned).groupby("judge", sort=False):
        if of_known_slope(own).empty:
            lines.append(
                f"On `{judge}`, at the best rate for 32 bits, the loss does not tell steps."
            )
            continue
        kept_up = own.loc[own["steps"] <= MARGIN, "quantizer"]
        names = ", ".join(_name(quantizer) for quantizer in kept_up) or "none"
        lines.append(
            f"On `{judge}`, at the best learning rate for 32 bits, {len(kept_up)} of {len(own)} "
            f"pairs trained at most {MARGIN:.0%} slower by their means (the tests show it of "
            f"{int(own['outcome'].isin(WITHIN).sum())}): {names}."
        )
    return lines


def earned(table: pd.DataFrame) -> str:
    """The sentence that says if "safe" may be said, by the preregistered rule.

    Args:
        table: of `confusion`.
    """
    row = records(table[table["verdict"] == "safe"])[0]
    within = row["pairs"] - row["mean_beyond"]
    enough = row["pairs"] and within >= SAFE_SHARE * row["pairs"]
    return (
        f"Of {row['pairs']} pairs called safe, {within} have a mean within the margin or better: "
        f'the word "safe" is {"" if enough else "not "}earned in this mode.'
    )


def agreement(steps: pd.DataFrame) -> str:
    """How many verdicts are the same in both modes, such as ``15 of 20``."""
    both = steps.dropna(subset=[f"verdict_{mode}" for mode in MODES])
    same = (both["verdict_gradients"] == both["verdict_checkpoint"]).sum()
    return f"{same} of {len(both)}"


def _name(quantizer: str) -> str:
    if quantizer in PRESETS:
        return f"`{PRESETS[quantizer]}`"
    return f"`{quantizer}`" if quantizer in PAIRS else ""


def draw_calibration(steps: pd.DataFrame, file: Path | IO[bytes]) -> None:
    """Steps against step costs below 1, one color a model and one panel a mode."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2, sharey=True)
    tuned = unseen(steps[(steps["factor"] == 1) & np.isfinite(steps["steps"])])
    for panel, (mode, words) in zip(panels, MODES.items(), strict=True):
        for judge, own in tuned[tuned[f"step_cost_{mode}"] < 1].groupby("judge", sort=False):
            panel.plot(own[f"step_cost_{mode}"], 100 * own["steps"], "o", label=judge, alpha=0.7)
        panel.set(xscale="log", xlabel="step cost", title=f"From {words}")
        _band(panel, vertical=True)
        panel.set_yscale("symlog", linthresh=5)
        panel.set_yticks(*_ticks(panel.get_ylim()))
    panels[0].set_ylabel("slower by, % of steps")
    panels[0].legend()
    figure.savefig(file, format="png", dpi=120)


def draw_intervals(steps: pd.DataFrame, file: Path | IO[bytes]) -> None:
    """Presets and choices with their intervals, one panel a model, one color a rate."""
    shown = PRESETS | {CHOICES[0]: CHOICES[0]}
    judges = list(steps.dropna(subset="steps")["judge"].unique())
    columns = min(3, len(judges))
    rows = -(-len(judges) // columns)
    figure = Figure(figsize=(2 + 3.5 * columns, 1 + 3 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False).flatten()
    for panel in panels[len(judges) :]:
        panel.set_axis_off()
    for panel, judge in zip(panels[: len(judges)], judges, strict=True):
        for number, factor in enumerate(FACTORS):
            own = steps[(steps["judge"] == judge) & (steps["factor"] == factor)]
            own = own[own["quantizer"].isin(list(shown)) & np.isfinite(own["steps"])]
            places = [list(shown).index(spec) + 0.2 * (number - 1) for spec in own["quantizer"]]
            middle, low, high = (100 * own[name] for name in ("steps", "low", "high"))
            panel.errorbar(
                middle,
                places,
                xerr=[middle - low, high - middle],
                fmt="o",
                label=f"rate x {factor:g}",
            )
        panel.set(title=judge, xlabel="slower by, % of steps", xscale="linear")
        panel.set_xscale("symlog", linthresh=5)
        panel.set_xticks(*_ticks(panel.get_xlim()))
        _band(panel, vertical=False)
    panels[0].set_yticks(range(len(shown)), list(shown.values()))
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.savefig(file, format="png", dpi=120)


def _ticks(limits: tuple[float, float]) -> tuple[list[int], list[str]]:
    """Places and labels of the ticks between two limits, in per cent."""
    places = [tick for tick in (-100, -10, 0, 10, 100, 1000) if limits[0] <= tick <= limits[1]]
    return places, [f"{tick:+d}" if tick else "0" for tick in places]


def _band(panel: Axes, *, vertical: bool) -> None:
    """Draw the margin."""
    span = panel.axhspan if vertical else panel.axvspan
    span(-100 * MARGIN, 100 * MARGIN, color="tab:green", alpha=0.15)


PICTURES: dict[str, Callable[[pd.DataFrame, Path], None]] = {
    "calibration.png": draw_calibration,
    "intervals.png": draw_intervals,
}
