"""The verdict on a pair of quantizers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import pandas as pd

from qmaps.analyze.replay.step_cost import step_cost
from qmaps.storage.files import records

CLEAN, UNPROVEN, UNSAFE = 0.0005, 0.03, 0.1
"""Step costs up to which a pair is clean and unproven, and above which it is unsafe."""
EXPLODING = 1e4
"""Learning rates of the largest update from which on a pair is unsafe. Exact Adam makes at most
7.27 at betas of 0.9 and 0.999."""
FOLLOWS = (0.5, 2.0)
"""Range of `fall_ratio_second` of second moments that follow their gradients."""
WEIGHTY = 0.01
"""Share of the cost of all updates from which on a parameter that is unsafe by itself makes a pair
``caution``."""

LEVELS = ("clean", "unproven", "caution", "unsafe")
HARMLESS = LEVELS[:2]
"""Verdicts without a measure against the pair."""
EARLY = 0.1
"""Share of the averaged gradients, 1 / (1 - beta2), before which a step is early."""
MODELS = 6
ENDED = {"clean": (27, 27), "unproven": (74, 97), "caution": (21, 42), "unsafe": (20, 164)}
"""Of how many trained pairs of a verdict, from replays of whole runs of `MODELS` small models, how
many ended at most 2 % slower than 32 bits (benchmarks/verdict_counts.py counts them,
reports/prediction/steps.md)."""
LEFT_OUT = (35, 44)
"""The same of the pairs of each model up to the bound that the others give for clean."""
STEPS = "120 to 300 steps"
"""Lengths of those trainings."""
LONG_TASKS = 4
LONG_ENDED = {"clean": (1, 4), "unproven": (18, 31), "caution": (6, 8), "unsafe": (3, 3)}
"""Of how many pairs trained for 8,000 steps on `LONG_TASKS` small tasks, how many ended at most 5 %
slower than 32 bits (reports/long/prediction.md)."""
REPLAYED = 9
FROM_RECORDED = {
    "unproven": {"clean": 6, "unproven": 74, "caution": 4, "unsafe": 0},
    "caution": {"clean": 0, "unproven": 49, "caution": 87, "unsafe": 6},
    "unsafe": {"clean": 1, "unproven": 1, "caution": 38, "unsafe": 94},
}
"""For a verdict from simulated gradients, the numbers of pairs with each from recorded ones, after
the same states of `REPLAYED` small models (benchmarks/verdict_counts.py counts them,
reports/simulated.md)."""
RATIOS = (0.79, 10.0)
"""Step costs from simulated gradients by those from recorded ones: the range of 90 % of them."""
UNMEASURED = "not measured"
"""The verdict on a parameter without updates in the replayed rows."""


MEANINGS = {
    "clean": f"step cost up to {CLEAN:g}, and second moments follow their gradients",
    "unproven": "no problem was found, but not all such pairs kept up with 32 bits, gradients were "
    "simulated, or the step is early",
    "caution": f"a step cost above {UNPROVEN:g}, or a tensor that is unsafe by itself",
    "unsafe": f"a step cost above {UNSAFE:g}, an update of {EXPLODING:,.0f} learning rates or "
    "more, or second moments that decode to 0 where first moments do not",
}
"""Verdicts in a few words."""


def meaning(level: str, cost: float, gradients: str) -> str:
    """What a verdict says of a pair with this step cost; of ``unproven`` the reasons that apply.

    >>> meaning("unproven", 0.0001, "simulated")
    'no problem was found, but gradients were simulated'
    """
    if level != "unproven":
        return MEANINGS[level]
    kept_up, pairs = ENDED[level]
    reasons = []
    if cost > CLEAN:
        reasons.append(
            f"of {pairs} trained pairs with a step cost of {CLEAN:g} to {UNPROVEN:g}, {kept_up} "
            f"kept up with 32 bits over {STEPS}"
        )
    if gradients != "recorded":
        reasons.append("gradients were simulated")
    return f"no problem was found, but {' and '.join(reasons) or 'the step is early'}"


class Verdict(NamedTuple):
    """The verdict on a pair.

    Attributes:
        level: ``clean``, ``unproven``, ``caution`` or ``unsafe``.
        reason: the decisive measure.
    """

    level: str
    reason: str


def early(step: int, beta2: float) -> bool:
    """True if second moments have seen few of the gradients that they average."""
    return step < EARLY / (1 - beta2)


def earned(level: str, proven: bool) -> str:
    """A level, where ``clean`` (``safe`` in 0.3) needs recorded gradients and many steps."""
    if level in ("clean", "safe"):
        return "clean" if proven else "unproven"
    return level


def magnitude(cost: float, gradients: str) -> str:
    """A step cost as text; from simulated gradients with the range that recorded ones would give.

    Args:
        cost: the step cost.
        gradients: ``recorded``, ``simulated`` or ``mixed``.
    """
    if gradients == "recorded" or not math.isfinite(cost):
        return f"{cost:.2g}"
    low, high = RATIOS
    return f"{cost:.2g}, with recorded gradients about {cost / high:.1g} to {cost / low:.1g}"


def experience(level: str, cost: float, gradients: str = "recorded") -> str:
    """Experience with pairs of a verdict.

    Args:
        level: the verdict.
        cost: the step cost of the pair.
        gradients: ``recorded``, ``simulated`` or ``mixed``.

    Returns:
        Of recorded gradients, the end of trainings of such pairs; few were of early steps. Of
        simulated ones, the verdicts that recorded gradients gave.
    """
    if gradients != "recorded":
        counts = FROM_RECORDED[level]
        recorded = ", ".join(f"{count} {other}" for other, count in counts.items() if count)
        return (
            f"of {sum(counts.values())} pairs that simulated gradients of {REPLAYED} small models "
            f"call {level}, recorded ones call {recorded}"
        )
    if level == "unproven" and cost <= CLEAN:
        return "no trainings of pairs with this verdict and step cost were counted"
    kept_up, pairs = ENDED[level]
    text = (
        f"of {pairs} pairs that replays of whole runs of {MODELS} small models call {level}, "
        f"{kept_up} trained at most 2 % slower than 32 bits over {STEPS}"
    )
    if level == "clean":
        text += "; with each model left out of the choice of the bound, {} of {}".format(*LEFT_OUT)
    kept_up, pairs = LONG_ENDED[level]
    return (
        f"{text}; over 8,000 steps on {LONG_TASKS} other small tasks, {kept_up} of {pairs} at most "
        "5 % slower"
    )


def cost_of(row: Mapping[str, Any]) -> float:
    """The step cost of a row, with longer updates than the exact ones as if of equal length.

    A gain above 1 would make up for noise, as it does where the learning rate is too small.
    """
    gain = row["update_gain"]
    return step_cost(
        gain if math.isnan(gain) else min(gain, 1.0), row["update_noise"], row["largest_update"]
    )


def dangerous(row: Mapping[str, Any]) -> bool:
    """True if single updates of a row of `qmaps.replay.run` can ruin a training."""
    return row["zero_point_share"] > 0 or not row["largest_update"] < EXPLODING


def follows(row: Mapping[str, Any]) -> bool:
    """False if second moments of a row do not follow gradients that fall beside others."""
    ratio = row.get("fall_ratio_second", math.nan)
    return math.isnan(ratio) or FOLLOWS[0] <= ratio <= FOLLOWS[1]


def level(row: Mapping[str, Any]) -> str:
    """The level of a row of `qmaps.replay.run` or `qmaps.replay.summarize` by itself."""
    if dangerous(row):
        return "unsafe"
    cost = cost_of(row)
    if not row["cost"] > 0:  # without updates nothing can be lost
        return "clean"
    if cost <= CLEAN and follows(row):
        return "clean"
    if cost <= UNPROVEN:
        return "unproven"
    return "caution" if cost <= UNSAFE else "unsafe"


def verdict(measures: Mapping[str, Any], parts: pd.DataFrame) -> Verdict:
    """Judge a pair by its row of `qmaps.replay.summarize` and its rows of `qmaps.replay.run`."""
    if measures["zero_point_share"] > 0:
        return Verdict(
            "unsafe",
            f"second moments become 0 under first moments that do not "
            f"({measures['zero_point_share']:.2g} of the elements, most in "
            f"{_worst(parts, 'zero_point_share')})",
        )
    if dangerous(measures):
        return Verdict(
            "unsafe",
            f"updates of up to {_number(measures['largest_update'])} learning rates (most in "
            f"{_worst(parts, 'largest_update')})",
        )
    judged, reason = level(measures), _reason(measures)
    unsafe = [row for row in records(parts) if level(row) == "unsafe"]
    if judged == "unsafe" or not unsafe:
        return Verdict(judged, reason)
    heavy = [row for row in unsafe if row["cost"] >= WEIGHTY * parts["cost"].sum()]
    worst = max(heavy or unsafe, key=cost_of)
    whose = f" and {len(unsafe) - 1} more are" if len(unsafe) > 1 else " is"
    named = f"{worst['parameter']}{whose} unsafe: {_reason(worst)}"
    if judged in HARMLESS and heavy:
        return Verdict("caution", named)
    return Verdict(judged, f"{reason}; {named}")


def _reason(row: Mapping[str, Any]) -> str:
    """The largest term of the step cost in words."""
    if math.isnan(cost_of(row)):
        return "updates are not finite" if row["cost"] > 0 else "there are no updates"
    if cost_of(row) <= CLEAN and not follows(row):
        ratio = row["fall_ratio_second"]
        return f"second moments end at {ratio:.2g} times the exact ones where gradients fall"
    gain, noise, largest = row["update_gain"], row["update_noise"], row["largest_update"]
    terms = {
        f"updates keep {gain:.2f} of their length": step_cost(gain, 0, 0),
        f"noise {noise:.2g} times the update": step_cost(1, noise, 0),
        f"updates of up to {_number(largest)} learning rates": step_cost(1, 0, largest),
    }
    return max(terms, key=lambda text: terms[text])


def _number(value: float) -> str:
    """A number in few digits, such as 3e5 for 312,345."""
    if value < 1000:
        return f"{value:.3g}"
    return f"{value:.0e}".replace("e+0", "e").replace("e+", "e")


def _worst(parts: pd.DataFrame, measure: str) -> str:
    return str(max(records(parts), key=lambda row: row[measure])["parameter"])
