"""Verdicts on quantizers for the states of a run, and a choice among them."""

from __future__ import annotations

import glob
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

import pandas as pd

from qmaps.algebra.pair import Pair, distinct
from qmaps.algebra.quantizer import Quantizer
from qmaps.analyze import replay
from qmaps.analyze.limits import BITS, LIMITS, up_to
from qmaps.analyze.recommend import verdict as verdicts
from qmaps.analyze.recommend.candidates import (
    CANDIDATES,
    FULL,
    PRESETS,
    diagnostic,
    moves,
)
from qmaps.analyze.recommend.picks import Sizes, best_of, check_budget, least, within
from qmaps.analyze.recommend.result import Recommendation
from qmaps.analyze.recommend.verdict import UNMEASURED, cost_of, dangerous, level
from qmaps.analyze.replay.run import PairSpec, check, chosen
from qmaps.analyze.replay.source import betas_of, share_of
from qmaps.analyze.replay.summary import SUMMED
from qmaps.analyze.replay.zero_points import count_all, holds_zero
from qmaps.analyze.states import MIN_SIZE, States, to_replay
from qmaps.capture import CapturedStates
from qmaps.capture.moments import Moments
from qmaps.engines.step import MOMENTS
from qmaps.engines.threads import one_thread
from qmaps.errors import BadValueError, CaptureError
from qmaps.maps.codebook import Codebook
from qmaps.optim import Choice
from qmaps.optim.groups import grouped
from qmaps.optim.presets import pair_of
from qmaps.storage.files import records

STEPS = 60
"""Steps of the replay, about."""
ENOUGH = 10
"""Number of recorded gradients with which a step of a folder counts as a recorded one."""
ELEMENTS = 2**18
"""Elements that are replayed if the share is left out, about."""
DANGER = 1e3
"""Added to the error of an option with zero points or very large updates: it comes last."""


@one_thread()
def run(
    states: States,
    *,
    bits: float | None = None,
    nbytes: int | None = None,
    step_cost: float | None = None,
    candidates: Iterable[PairSpec] = CANDIDATES,
    codebooks: Iterable[Codebook] = (),
    steps: int = STEPS,
    share: float | None = None,
    parameters: str | Iterable[str] | None = None,
    min_quantized_size: int = MIN_SIZE,
    seed: int = 0,
    progress: Callable[[int, int, str], None] | None = None,
    executor: Executor | None = None,
    workers: int | None = None,
    moments: Moments | None = None,
) -> Recommendation:
    """Judge pairs of quantizers on the states of a run, and choose one within a budget.

    Each candidate is replayed (`qmaps.replay.run`), and its `step_cost` decides; updates longer
    than the exact ones count as if they were of equal length. A pair is

    - ``unsafe`` if a second moment decodes to 0 where the first does not, if an update is as large
      as 10,000 learning rates, or if the step cost is above 0.1,
    - ``caution`` if the step cost is above 0.03, or if a parameter with at least 1 % of the cost of
      all updates is unsafe by itself; the reason names others too,
    - ``unproven`` if the step cost is above 0.0005, if second moments do not follow a fall of
      gradients within a factor of 2 (`fall_ratio_second`), if gradients were simulated, or if the
      states are of a step before a tenth of 1 / (1 - beta2),
    - ``clean`` otherwise.

    The pair of least step cost that is clean or unproven and within the budget is chosen for all
    parameters. Where there is none, each kind of parameter (names that differ only in numbers, such
    as ``layers.3.up`` and ``layers.7.up``) gets a pair or 32 bits, by the fall of errors
    per byte. The error of a parameter is its share of the cost of all updates multiplied by its
    own step cost; without replayed updates it is that of all parameters together.

    Args:
        states: captured states, their path, or tensors by parameter and state name. Of a folder
            with several steps, the last with gradients of 10 steps is used, or the one with most.
            Recorded gradients are replayed, round after round; without any, gradients are simulated
            from the moments. Parameters without recorded gradients beside others with some stay in
            32 bits.
        bits: most bits per state element, scales included, as the mean over both moments of all
            parameters to quantize. 4.3 if `nbytes` and `step_cost` are left out too.
        nbytes: most bytes of all states together, also of those in 32 bits.
        step_cost: largest step cost of the choice, instead of a budget: the pair of fewest bytes
            that keeps to it is chosen. 0.02 stands for updates that go 2 % less far.
        candidates: pairs of quantizers, or names of presets. Those with a moment in 32 bits, or
            with a map fitted to the data, are diagnostic: they are judged, but not chosen. So is a
            default candidate with a zero in the map of its second moment (``paper-8bit``).
        codebooks: codebooks named by candidates.
        steps: steps of the replay, about, at least 2.
        share: share of each parameter to replay, in (0, 1]: whole rows, spread evenly. By default
            about 262,144 elements.
        parameters: names of parameters to quantize, with wildcards; all if left out. The
            others stay in 32 bits.
        min_quantized_size: parameters of at most this many elements stay in 32 bits. Other values
            than 4096 become part of the choice.
        seed: of stochastic rounding and of simulated gradients, 0 to 2**32 - 1.
        progress: as in `qmaps.replay.run`.
        executor: as in `qmaps.replay.run`.
        workers: as in `qmaps.replay.run`.
        moments: as in `qmaps.replay.run`.

    Returns:
        The recommendation. Its frame `pairs` has one row per candidate, the narrowest first, of
        these the safest: `quantizer`, `preset` (its name, or empty), `diagnostic`, `keeps_zero`
        (False if weights whose gradient is always 0 would move), `up_to` (the first of 2.3, 3.3,
        4.3, 6.3 and 8.3 bits per state element not below it, or infinity),
        `verdict`, `reason`, `nbytes` (of all states), then the columns of `qmaps.replay.summarize`,
        with gains above 1 as 1 in `step_cost`. `tensors` has one row per parameter and candidate,
        and for 32 bits: the columns of `qmaps.replay.run`, with sums and `numel` as of the whole
        parameter instead of the `replayed` elements, then `nbytes` (of both moments), `error`,
        `verdict` (``not measured`` where the replayed rows have no updates) and `chosen`.

    Raises:
        SpecError: a candidate does not parse.
        BadValueError, BadTypeError: an argument is not allowed, `parameters` matches nothing, or no
            choice meets the budget or the step cost; the message has the smallest possible one.
        CaptureError: as in `qmaps.replay.run`, or all updates are 0.
    """
    check_budget(bits=bits, nbytes=nbytes, step_cost=step_cost)
    books = tuple(codebooks)
    pairs = distinct(pair_of(spec, books) for spec in candidates)
    choosable = [pair for pair in pairs if not diagnostic(pair)]
    if candidates is CANDIDATES:  # nobody asked for zeros
        choosable = [pair for pair in choosable if not holds_zero(pair.second)]
    if not choosable:
        raise BadValueError("candidates must hold at least one pair that quantizes both moments")
    check(steps, share=1.0 if share is None else share, seed=seed)
    captured = to_replay(states, ENOUGH, moments)
    names = chosen(captured, parameters, min_quantized_size)
    # Parameters with recorded gradients; all if there are none.
    names = [name for name in names if len(captured.window(name)) > 1] or names
    sizes = Sizes(captured, names)
    budget = math.inf if step_cost is not None else sizes.budget(bits, nbytes, [*choosable, FULL])
    window = len(captured.window())
    frame = replay.run(
        captured,
        dict.fromkeys([*pairs, FULL]),
        steps=min(steps, window) if window else steps,
        rounds=max(1, round(steps / window)) if window else 1,
        share=share_of(captured, names, ELEMENTS) if share is None else share,
        parameters=[glob.escape(name) for name in names],
        min_quantized_size=min_quantized_size,
        codebooks=books,
        seed=seed,
        progress=progress,
        executor=executor,
        workers=workers,
    )
    frame = count_all(frame, captured, [*pairs, FULL], seed)
    tensors = _tensors(frame, [*pairs, FULL], sizes)
    if not tensors["cost"].sum() > 0:
        raise CaptureError(
            f"all exact updates of {captured.source!r} are 0; there is nothing to compare with"
        )
    table = _table(tensors, pairs, choosable, sizes)
    tensors = _unmeasured(tensors, table)
    if step_cost is None:
        picks = within(budget, tensors, table, choosable, sizes)
    else:
        picks = least(step_cost, table, choosable, sizes)
    tensors["chosen"] = _rows_of(tensors, picks)
    chosen_rows = tensors[tensors["chosen"]]
    measures = _measures(tensors, picks)
    judged = verdicts.verdict(measures, chosen_rows)
    beta2 = max(betas_of(captured, name)[1] for name in picks)
    proven = measures["gradients"] == "recorded" and not verdicts.early(captured.step, beta2)
    table["verdict"] = [verdicts.earned(told, proven) for told in table["verdict"]]
    quantized = tensors["quantizer"] != FULL.spec
    tensors.loc[quantized, "verdict"] = [
        verdicts.earned(told, proven) for told in tensors.loc[quantized, "verdict"]
    ]
    used = sum(sizes.of(name, pair) for name, pair in picks.items())
    budgets = {"bits": bits, "nbytes": nbytes, "step_cost": step_cost}
    provenance = {
        "source": captured.source,
        "step": captured.step,
        "parameters": len(picks),
        "gradients": measures["gradients"],
        "budget": {k: value for k, value in budgets.items() if value is not None} or {"bits": BITS},
    }
    best = {limit: best_of(table, choosable, limit) for limit in LIMITS}
    levels = dict(zip(table["quantizer"], table["verdict"], strict=True))
    harmless = [pair for pair in choosable if levels[pair.spec] in verdicts.HARMLESS]
    simplest = min(harmless, key=sizes.total, default=None)
    numbered = captured.naming.startswith("numbers")  # names that the model does not have

    def choice(picks: Mapping[str, Pair]) -> Choice:
        return _choice(captured, picks, sizes, min_quantized_size, provenance)

    return Recommendation(
        choice=choice(picks),
        verdict=verdicts.earned(judged.level, proven),
        reason=judged.reason,
        step_cost=cost_of(measures),
        nbytes=sizes.rest + used,
        full_nbytes=sizes.rest + sizes.total(FULL),
        bits_per_element=4 * used / sum(sizes.numel.values()),
        best=best,
        singles={limit: choice(dict.fromkeys(picks, p)) for limit, p in best.items() if p},
        simplest=None if simplest is None else choice(dict.fromkeys(picks, simplest)),
        gradients=measures["gradients"],
        min_quantized_size=min_quantized_size,
        beta2=beta2,
        options={} if numbered else {n: captured.hyperparameters(n) for n in captured.parameters()},
        pairs=table,
        tensors=tensors,
    )


def _tensors(frame: pd.DataFrame, pairs: Iterable[Pair], sizes: Sizes) -> pd.DataFrame:
    """The replay's frame with sums as of whole parameters, bytes, errors and verdicts."""
    by_spec = {pair.spec: pair for pair in pairs}
    numel = frame["parameter"].map(sizes.numel)
    sums = {name: frame[name] * (numel / frame["numel"]) for name in SUMMED}
    tensors = frame.assign(replayed=frame["numel"], numel=numel, **sums)
    full = tensors.loc[tensors["quantizer"] == FULL.spec, "cost"]
    total = float(full[full > 0].sum())
    rows = records(tensors)
    return tensors.assign(
        nbytes=[sizes.of(row["parameter"], by_spec[row["quantizer"]]) for row in rows],
        error=[_lost(row, total) for row in rows],
        verdict=[level(row) if row["cost"] > 0 or dangerous(row) else UNMEASURED for row in rows],
        step_cost=[cost_of(row) for row in rows],
    )


def _lost(row: Mapping[str, Any], total: float) -> float:
    """The error of one option of one parameter; errors of parameters add up."""
    error = DANGER if dangerous(row) else 0.0
    if row["cost"] > 0:
        cost = cost_of(row)
        error += row["cost"] / total * (DANGER if math.isnan(cost) else cost)
    return float(error)


def _unmeasured(tensors: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """The tensors' frame, with errors of parameters without replayed updates.

    Other elements of theirs may have updates, so they count as if they behaved as all parameters
    together.
    """
    costs = {row["quantizer"]: DANGER if dangerous(row) else cost_of(row) for row in records(table)}
    total = tensors.drop_duplicates("parameter")["numel"].sum()
    like_all = tensors["quantizer"].map(costs).fillna(0) * tensors["numel"] / total
    return tensors.assign(error=tensors["error"] + like_all.where(~(tensors["cost"] > 0), 0))


def _table(
    tensors: pd.DataFrame, pairs: Sequence[Pair], choosable: Sequence[Pair], sizes: Sizes
) -> pd.DataFrame:
    """A row per candidate, the narrowest first; those not in `choosable` are diagnostic."""
    by_spec = {pair.spec: pair for pair in pairs}
    measured = replay.summarize(_replay_only(tensors[tensors["quantizer"].isin(list(by_spec))]))
    numel = sum(sizes.numel.values())
    rows = []
    for row in records(measured):
        pair = by_spec[row["quantizer"]]
        judged, reason = verdicts.verdict(row, tensors[tensors["quantizer"] == pair.spec])
        bits = 4 * sizes.total(pair) / numel
        columns = {
            "quantizer": pair.spec,
            "preset": PRESETS.get(pair.spec, ""),
            "diagnostic": diagnostic(pair) or pair not in choosable,
            "keeps_zero": not moves(pair),
            "up_to": up_to(bits),
            "verdict": judged,
            "reason": reason,
            "nbytes": sizes.rest + sizes.total(pair),
        }
        rows.append({**columns, **row, "bits_per_element": bits, "step_cost": cost_of(row)})
    rows.sort(key=lambda r: (r["up_to"], verdicts.LEVELS.index(r["verdict"]), r["step_cost"]))
    return pd.DataFrame(rows)


def _rows_of(tensors: pd.DataFrame, picks: Mapping[str, Pair]) -> pd.Series:
    """Mask of the rows of a choice."""
    specs = {name: pair.spec for name, pair in picks.items()}
    return tensors["quantizer"] == tensors["parameter"].map(specs)


def _measures(tensors: pd.DataFrame, picks: Mapping[str, Pair]) -> dict[str, Any]:
    """The row of `qmaps.replay.summarize` for a choice."""
    rows = tensors[_rows_of(tensors, picks)].assign(quantizer="choice")
    (measures,) = records(replay.summarize(_replay_only(rows)))
    return measures


def _replay_only(tensors: pd.DataFrame) -> pd.DataFrame:
    """The columns of `qmaps.replay.run`."""
    added = ["replayed", "nbytes", "error", "verdict", "chosen"]
    return tensors.drop(columns=added, errors="ignore")


def _choice(
    states: CapturedStates,
    picks: Mapping[str, Pair],
    sizes: Sizes,
    min_quantized_size: int,
    provenance: Mapping[str, Any],
) -> Choice:
    """The pair of most elements for all parameters, and overrides for the others.

    Overrides are patterns for exactly these parameters of the states.
    """
    total: dict[Pair, int] = {}
    for name, pair in picks.items():
        total[pair] = total.get(pair, 0) + sizes.numel[name]
    main = max(total, key=lambda pair: total[pair])
    # What an optimizer would quantize though it is not to be.
    unquantized = {
        name: FULL
        for name in states.parameters()
        if name not in picks and MOMENTS[0] in states.values(name)
        and math.prod(states.shape(name, MOMENTS[0])) > min_quantized_size
    }  # fmt: skip
    exceptions = {name: pair for name, pair in {**picks, **unquantized}.items() if pair != main}
    return Choice(
        _quantizers(main),
        {
            pattern: _quantizers(pair)
            for pattern, pair in grouped(exceptions, states.parameters()).items()
        },
        provenance,
        min_quantized_size=None if min_quantized_size == MIN_SIZE else min_quantized_size,
    )


def _quantizers(pair: Pair) -> dict[str, str | Quantizer | None] | None:
    if pair == FULL:
        return None
    return dict(zip(MOMENTS, (pair.first, pair.second), strict=True))
