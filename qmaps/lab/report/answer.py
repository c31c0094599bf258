"""The first screen of a run's page: recommendation, alternatives, warnings."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from qmaps.analyze.limits import BITS, FULL, LIMITS
from qmaps.analyze.recommend.snippets import CHOICE, brief, snippets
from qmaps.analyze.recommend.verdict import (
    CLEAN,
    HARMLESS,
    cost_of,
    dangerous,
    earned,
    experience,
    magnitude,
    meaning,
)
from qmaps.lab.report.templating import Cell, cell, judged
from qmaps.storage.files import exists, read_frame, read_record, records
from qmaps.storage.units import bits, of_states, size

OWN = "recommended"
"""The key of the run's own choice among its trainings."""
PAPERS = ("paper-8bit", "paper-4bit")
"""Presets that papers train with."""
HALF = 0.5
"""Share of outliers in few rows from which on a tensor is named."""
MANY_ROWS = 40
"""Rows, or columns, from which on 5 % of them are few."""
BETTER = 0.5
"""Share of a tensor's step cost that a pair which mends it keeps at most."""
WORSE = 0.005
"""Nats above 32 bits from which on the run's own training overrules a verdict."""


def answer(
    folder: Path, about: Mapping[str, Any], losses: pd.DataFrame | None
) -> dict[str, Any] | None:
    """Contents of the first screen, of ``folder/recommend``; None without a recommendation.

    Args:
        folder: the run folder.
        about: settings of the run: `naming` (source of the names of a checkpoint's parameters) and
            `trained` (labels in `losses` by preset, and of ``recommended``).
        losses: results of the run's own trainings, of `qmaps.lab.summarize_losses`.

    Raises:
        OutputError: a file is damaged.
    """
    recommended = folder / "recommend"
    if not exists(recommended / "choice.json") or not exists(recommended / "summary.json"):
        return None
    summary = read_record(recommended / "summary.json")
    pairs, tensors = (read_frame(recommended / f"{name}.parquet") for name in ("pairs", "tensors"))
    path = folder / "frames" / "profiles.parquet"
    profiles = read_frame(path) if exists(path) else None
    chosen = tensors[tensors["chosen"]]
    counts = chosen.groupby("quantizer")["numel"].agg(["sum", "size"]).sort_values("sum")
    trained = _trained(about["trained"], losses)
    keys = pairs["preset"].mask(pairs["quantizer"].eq(counts.index[-1]) & (len(counts) == 1), OWN)
    step_cost = math.nan if summary["step_cost"] is None else float(summary["step_cost"])
    # Runs of version 0.3 call clean pairs safe, those of 0.2 also pairs of larger step costs.
    recorded = summary["gradients"] == "recorded"
    summary["verdict"] = earned(summary["verdict"], proven=recorded and not step_cost > CLEAN)
    pairs["verdict"] = [
        earned(row["verdict"], proven=recorded and not row["step_cost"] > CLEAN)
        for row in records(pairs)
    ]
    pairs["by_replay"] = pairs["verdict"]
    pairs[["verdict", "reason"]] = [
        _judged(row, trained.get(key, 0)) for row, key in zip(records(pairs), keys, strict=True)
    ]
    verdict, reason = _judged(summary, trained.get(OWN, 0))
    widths = list(_widths(summary, pairs))
    return {
        **summary,
        "verdict": verdict,
        "reason": reason,
        "experience": experience(str(summary["verdict"]), step_cost, str(summary["gradients"])),
        "magnitude": magnitude(step_cost, str(summary["gradients"])),
        "meaning": _meaning(verdict, str(summary["verdict"]), step_cost, str(summary["gradients"])),
        "trained": trained.get(OWN),
        "pairs": pairs,
        "main": counts.index[-1],
        "mixed": len(counts),
        "size": size(summary["nbytes"]),
        "full_size": size(summary["full_nbytes"]),
        "saved": saved(summary["nbytes"], summary["full_nbytes"]),
        **_beside_8_bits(summary, pairs),
        "widths": widths,
        "snippets": _snippets(summary, recommended / CHOICE, widths),
        # Two states of each element.
        "width": of_states(summary["bits_per_element"] / 4, 8, 1),
        "papers": [row for row in records(pairs) if row["preset"] in PAPERS],
        "first_name": next((spec.split(" + ")[0] for spec in counts.index[::-1]), ""),
        "first": [*_of_names(about["naming"]), *summary.get("notes", ())],
        "costliest": _costliest(tensors, pairs),
        "warnings": [*_hardest(tensors, profiles), *_of_states(profiles)],
        "budget": _budget(summary["choice"]["provenance"].get("budget", {})),
        "candidates": [_candidate(row) for row in records(pairs.sort_values("nbytes"))],
        "step": int(tensors["step"].iloc[0]),
        "numel": int(chosen["numel"].sum()),
        "tensors": len(chosen),
        "steps": int(tensors["steps"].max()),
        "share": float(tensors["replayed"].sum() / tensors["numel"].sum()),
    }


def _trained(labels: Mapping[str, str], losses: pd.DataFrame | None) -> dict[str, float]:
    """Final losses minus those of 32 bits, by preset; NaN where training diverged."""
    if losses is None:
        return {}
    differences = dict(zip(losses["run"], losses["difference"], strict=True))
    return {key: float(differences[label]) for key, label in labels.items() if label in differences}


def _judged(row: Mapping[str, Any], difference: float) -> tuple[str, str]:
    """Verdict and reason, overruled by a worse loss of the run's own training."""
    verdict, reason = str(row["verdict"]), str(row["reason"])
    if difference <= WORSE:
        return verdict, reason
    worst = "caution" if verdict in HARMLESS else verdict
    if not math.isfinite(difference):
        worst = "unsafe"
    return worst, f"trained with it, this run ended {difference:+.4f} from 32 bits; {reason}"


def saved(nbytes: float, full: float) -> str:
    """The saving against `full`, in percent."""
    return f"{1 - nbytes / full:.0%}"


def _beside_8_bits(summary: Mapping[str, Any], pairs: pd.DataFrame) -> dict[str, str]:
    """Size of the states under the preset of 8 bits, and the saving; empty if there is none."""
    nbytes = float(pairs.loc[pairs["preset"] == "8bit", "nbytes"].max())  # NaN without the preset
    if not nbytes > summary["nbytes"]:
        return {"size8": "", "saved8": ""}
    return {"size8": size(nbytes), "saved8": saved(summary["nbytes"], nbytes)}


def _widths(summary: Mapping[str, Any], pairs: pd.DataFrame) -> Iterable[dict[str, Any]]:
    """The best single pair of each width, and the narrowest harmless one; by bytes."""
    rows = {row["quantizer"]: row for row in records(pairs)}
    codes = {
        spec: summary["singles"][limit]
        for limit in map(str, LIMITS)
        if (spec := summary["best"].get(limit)) is not None
    }
    simplest = ""
    if summary["simplest"]:
        harmless = pairs[pairs["by_replay"].isin(HARMLESS) & ~pairs["diagnostic"]]
        simplest = str(harmless.sort_values("nbytes")["quantizer"].iloc[0])
        codes[simplest] = summary["simplest"]
    for spec in sorted(codes, key=lambda option: rows[option]["nbytes"]):
        row = rows[spec]
        yield {
            "simplest": spec == simplest and row["verdict"] in HARMLESS,
            "spec": spec,
            "preset": row["preset"],
            "bits": bits(row["bits_per_element"]),
            "verdict": row["verdict"],
            "reason": row["reason"],
            "size": size(row["nbytes"]),
            "cost": f"{cost_of(row):.2g}",
            "saved": saved(row["nbytes"], summary["full_nbytes"]),
            "code": codes[spec],
        }


CANDIDATE = ("verdict", "step cost", "pair", "preset", "bits", "states", "why")
"""Heads of the candidates' table: what decides comes first, for narrow screens."""


def _snippets(
    summary: Mapping[str, Any], file: Path, widths: Iterable[Mapping[str, Any]]
) -> dict[str, str]:
    """Lines to paste, by the place where they go."""
    choice = summary["choice"]
    simplest = next((str(row["spec"]) for row in widths if row["simplest"]), None)
    return snippets(
        summary["code"],
        str(file),
        by_name=bool(choice.get("overrides")),
        single=None if choice.get("codebooks") else simplest,
    )


def _candidate(row: Mapping[str, Any]) -> list[Cell]:
    cost = cost_of(row)
    note = " (diagnostic)" * bool(row["diagnostic"])
    return [
        judged(row["verdict"]),
        Cell("-", "-") if math.isnan(cost) else cell(f"{cost:.2g}", cost),
        cell(row["quantizer"] + note),
        cell(row["preset"] or "-"),
        cell(bits(row["bits_per_element"])),
        cell(size(row["nbytes"]).replace(" ", "\N{NO-BREAK SPACE}"), row["nbytes"]),
        cell(row["reason"]),
    ]


def _of_names(naming: str) -> Iterable[str]:
    if naming.startswith("numbers"):
        yield (
            f"Parameters have {naming}. Overrides fit the model only under its own names, and "
            "code has no parameter groups without them: give them with --names."
        )


def _budget(budget: Mapping[str, Any]) -> str:
    """The budget in words."""
    if "nbytes" in budget:
        return f"at most {budget['nbytes']:,.0f} bytes"
    if "step_cost" in budget:
        return f"the fewest bytes with a step cost of at most {budget['step_cost']:g}"
    return f"the least error within {budget.get('bits', BITS):g} bits per state element"


def _meaning(verdict: str, by_replay: str, step_cost: float, gradients: str) -> str:
    """The verdict in words; a run's own training may have overruled that of the replay."""
    if verdict != by_replay:
        return "trained with it, this run ended worse than with 32 bits"
    return meaning(verdict, step_cost, gradients)


def _costliest(tensors: pd.DataFrame, pairs: pd.DataFrame) -> dict[str, Any] | None:
    """The tensor that costs most under the choice, and the smallest pair with half its cost."""
    chosen = tensors[tensors["chosen"] & (tensors["cost"] > 0)]
    if chosen["parameter"].nunique() < 2 or not chosen["error"].max() > 0:
        return None
    (row,) = records(chosen.loc[[chosen["error"].idxmax()]])
    cost = cost_of(row)
    told = {
        "name": row["parameter"],
        "share": f"{row['error'] / chosen['error'].sum():.0%}",
        "cost": f"{cost:.2g}",
        "pair": row["quantizer"],
    }
    allowed = {*pairs.loc[~pairs["diagnostic"], "quantizer"]}
    better = [
        other
        for other in records(tensors[tensors["parameter"] == row["parameter"]])
        if other["quantizer"] in allowed
        and not dangerous(other)
        and max(cost_of(other), 0.0) <= BETTER * cost
    ]
    if not better:
        return told | {"mend": None}
    mend = min(better, key=lambda other: (other["nbytes"], cost_of(other)))
    first, second = mend["quantizer"].split(" + ")
    more = mend["nbytes"] - row["nbytes"]
    return told | {
        "mend": mend["quantizer"],
        "times": f"{cost / max(cost_of(mend), 1e-9):.2g}",
        "more": f"{size(abs(more))} {'more' if more > 0 else 'less'}" if more else "as many bytes",
        "code": f"overrides={{{json.dumps(row['parameter'], ensure_ascii=False)}: "
        f'{{"exp_avg": "{first}", "exp_avg_sq": "{second}"}}}}',
    }


def _hardest(tensors: pd.DataFrame, profiles: pd.DataFrame | None) -> Iterable[str]:
    """The most expensive tensor of most candidates, and the look of its states."""
    measured = tensors[(tensors["cost"] > 0) & (tensors["quantizer"] != FULL)].copy()
    if measured["parameter"].nunique() < 2:
        return
    measured["order"] = [math.inf if dangerous(row) else cost_of(row) for row in records(measured)]
    worst = measured.loc[measured.groupby("quantizer")["order"].idxmax(), "parameter"]
    name, times = worst.value_counts().index[0], int(worst.value_counts().iloc[0])
    text = f"Hardest to quantize: {name}, which costs most under {times} of {len(worst)} pairs."
    if profiles is not None:
        moments = profiles[(profiles["parameter"] == name) & (profiles["state"] == "exp_avg_sq")]
        for row in records(moments):
            decades = len(row["counts"]) / 4  # bins are quarters
            text += f" Its second moments span {decades:.0f} decades"
            share, lines = max((row["in_rows"], "rows"), (row["in_cols"], "columns"))
            if share > HALF:
                text += f", and {share:.0%} of the largest 1 % lie in 5 % of the {lines}"
            text += "."
    yield text


def _of_states(profiles: pd.DataFrame | None) -> Iterable[str]:
    """Warnings about the states themselves."""
    if profiles is None:
        return
    second = profiles[profiles["state"] == "exp_avg_sq"]
    rows = second["shape"].map(lambda shape: math.prod(shape[:1]))
    cols = second["shape"].map(lambda shape: math.prod(shape[1:]))
    for lines, many, share in (("rows", rows, "in_rows"), ("columns", cols, "in_cols")):
        named = second.loc[(second[share] > HALF) & (many >= MANY_ROWS), "parameter"]
        if len(named):
            yield (
                f"Outlier {lines}: more than half of the largest 1 % of the second moments lie in "
                f"5 % of the {lines} of {brief(named)}. One scale for all would leave few codes "
                "for the others."
            )
    elements = second["counts"].map(sum) + second["zeros"]
    none = second["zeros"] / elements
    dead = second.loc[none > 0.01, "parameter"]
    if len(dead):
        yield (
            f"Second moments of 0, up to {none.max():.0%} of a tensor, in {brief(dead)}: no "
            "gradient reached these elements."
        )
