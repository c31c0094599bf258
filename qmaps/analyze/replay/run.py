"""One row per parameter and pair of quantizers: effects of repeated quantization on training."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from functools import partial
from itertools import chain
from typing import Any

import pandas as pd

from qmaps.algebra.pair import Pair, distinct, listed, spec_of
from qmaps.algebra.philox import RoundingKey
from qmaps.algebra.quantizer import Quantizer
from qmaps.analyze import executors
from qmaps.analyze.replay import averages
from qmaps.analyze.replay.recursion import UNMOVED, Recursion, Updates
from qmaps.analyze.replay.source import Source, mean_and_variance, source
from qmaps.analyze.states import MIN_SIZE, States, none_is_large, to_replay
from qmaps.analyze.update_error import bits_of
from qmaps.capture import CapturedStates
from qmaps.capture.moments import Moments
from qmaps.capture.parameters import predicate
from qmaps.engines.threads import one_thread
from qmaps.errors import BadValueError, CaptureError, check_int, check_number, shown
from qmaps.maps.codebook import Codebook
from qmaps.optim.presets import pair_of

CHECKS = 5
"""Steps at which codes are looked at; the last is one of them."""


def rows(
    step: int, data: Source, pairs: list[Pair], seed: int, *, simulate: bool
) -> list[dict[str, Any]]:
    """The rows of one parameter; with `simulate` also what few steps do not show."""
    moments = [
        list(dict.fromkeys(q for q in quantizers if q is not None))
        for quantizers in zip(*((pair.first, pair.second) for pair in pairs), strict=True)
    ]
    first, second = (
        Recursion(start, quantizers, beta, RoundingKey(seed=seed, tensor=data.number, state=state))
        for state, (start, quantizers, beta) in enumerate(
            zip((data.m, data.v), moments, data.betas, strict=True)
        )
    )
    places: list[dict[Quantizer | None, int]] = [
        {None: 0, **{q: row for row, q in enumerate(quantizers, start=1)}} for quantizers in moments
    ]
    updates = Updates(
        [(places[0][pair.first], places[1][pair.second]) for pair in pairs],
        data.betas,
        data.eps,
        data.m.numel(),
    )
    _replay(data, first, second, updates)
    measured: list[dict[Quantizer | None, dict[str, float]]] = [
        {None: UNMOVED, **dict(zip(quantizers, recursion.measures(), strict=True))}
        for quantizers, recursion in zip(moments, (first, second), strict=True)
    ]
    added = _simulated(data, moments, seed) if simulate else [{}, {}]
    return [
        {
            "step": step,
            "parameter": data.parameter,
            "shape": "x".join(map(str, data.shape)),
            "numel": data.m.numel(),
            "steps": data.steps,
            "gradients": data.kind,
            "quantizer": pair.spec,
            "first": spec_of(pair.first),
            "second": spec_of(pair.second),
            "bits_per_element": bits_of(pair, data.shape),
            **of_updates,
            **{f"{name}_first": value for name, value in measured[0][pair.first].items()},
            **{f"{name}_second": value for name, value in measured[1][pair.second].items()},
            "accumulated_noise_first": added[0].get(pair.first, math.nan),
            "fall_ratio_second": added[1].get(pair.second, math.nan),
        }
        for pair, of_updates in zip(pairs, updates.measures(), strict=True)
    ]


def _simulated(
    data: Source, moments: list[list[Quantizer]], seed: int
) -> list[dict[Quantizer | None, float]]:
    """Accumulated noise of the first moments, and fall ratios of the second ones."""
    m, v = averages.sample(data.m), averages.sample(data.v)
    _, variance = mean_and_variance(m, v, data.betas, data.taken)
    keys = [RoundingKey(seed=seed, tensor=data.number, state=state) for state in (0, 1)]
    deviations = variance.sqrt().float()
    noise = averages.accumulated_noise(deviations, moments[0], data.betas[0], keys[0])
    ratios = averages.fall_ratios(v, moments[1], data.betas[1], keys[1])
    return [dict(zip(q, x, strict=True)) for q, x in zip(moments, (noise, ratios), strict=True)]


def _replay(data: Source, first: Recursion, second: Recursion, updates: Updates) -> None:
    """Take every step; its update is measured if there is a next gradient."""
    looked = {-(-number * data.steps // CHECKS) for number in range(1, CHECKS + 1)}
    flat = (gradient.reshape(-1) for gradient in data.gradients())
    gradient = next(flat)
    for number, following in enumerate(chain(flat, [None]), start=1):
        step, check = data.taken + number, number in looked
        first.advance(gradient, step, check=check)
        second.advance(gradient * gradient, step, check=check)
        if check:
            updates.check(first.after, second.after)
        if following is not None:
            updates.add(first.before, second.before, following, step)
            gradient = following


def _measured(
    number: int,
    parameter: str,
    pairs: list[Pair],
    steps: int | None,
    rounds: int,
    share: float,
    seed: int,
    simulate: bool,
    states: CapturedStates,
) -> pd.DataFrame:
    """Replay a parameter in this process; no rows if only others have 2 gradients.

    Its `number` in the states is for random numbers.
    """
    data = source(states, parameter, number, steps=steps, share=share, seed=seed, rounds=rounds)
    if data is None:
        return pd.DataFrame()
    return pd.DataFrame(rows(states.step, data, pairs, seed, simulate=simulate))


MOMENTS = ("exp_avg", "exp_avg_sq")
PairSpec = Pair | str | tuple[str | Quantizer | None, str | Quantizer | None]


@one_thread()
def run(
    states: States,
    specs: PairSpec | Iterable[PairSpec],
    *,
    steps: int | None = None,
    rounds: int = 1,
    share: float = 1.0,
    parameters: str | Iterable[str] | None = None,
    min_quantized_size: int = MIN_SIZE,
    codebooks: Iterable[Codebook] = (),
    seed: int = 0,
    progress: Callable[[int, int, str], None] | None = None,
    executor: Executor | None = None,
    workers: int | None = None,
    moments: Moments | None = None,
) -> pd.DataFrame:
    r"""Replay Adam's moments under pairs of quantizers, on the gradients of one run.

    Each moment x = beta * x + (1 - beta) * z, with z = g for the first and z = g^2 for the second,
    runs exactly and under each quantizer, from the recorded state on. The same gradients enter all,
    so this measures a quantizer before it acts back on the training. The update is Adam's,
    u = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps), of the moments before they are
    encoded. Below, t counts the T steps, and sums without an index are over all elements.

    Args:
        states: captured states, their path, or tensors by parameter and state name. Of a folder
            with several steps, the last with gradients is used. If gradients
            were recorded after the states (``StateRecorder(..., gradients=...)``), these are
            replayed.
            If not, gradients are drawn at random with the mean and variance that the moments tell
            (`qmaps.analyze.replay.source`), and the column `gradients` says so.
        specs: pairs of quantizers, such as ``"B128/DE@4s + rank1/linear@4u"`` or the name of a
            preset, or one.
        steps: most gradients to replay, at least 2. If left out, all recorded ones, or 100
            simulated ones.
        rounds: how many times to replay the gradients, one round after another, which shows what
            errors become in more steps than were recorded. More than 1 keeps a parameter's
            gradients in memory.
        share: share of each parameter to replay, in (0, 1]: whole rows, spread evenly.
        parameters: names of parameters, with wildcards; all if left out.
        min_quantized_size: parameters of at most this many elements are left out.
        codebooks: codebooks named by the specs.
        seed: of stochastic rounding and of simulated gradients, 0 to 2**32 - 1.
        progress: called before each parameter with the number of parameters done, the number of
            all, and the parameter's name; with workers after each; at the end with an empty name.
        executor: where parameters are replayed, each by one thread, as for `qmaps.sweep.run`.
        workers: number of processes to start, in place of an executor, as for `qmaps.sweep.run`.
            Each process uses one thread, so the rows have the same bits for any number of workers.
        moments: own names of Adam's moments, as for `qmaps.sweep.run`. The rule is Adam's also for
            states of other optimizers.

    Returns:
        One row per parameter and pair: `step` (of the states), `parameter`, `shape`, `numel`
        (elements replayed), `steps` (T, in all rounds), `gradients` (``recorded`` or
        ``simulated``), `quantizer`, `first`, `second`, `bits_per_element` (the mean of both
        moments), and of the updates

        - `descent`: sum over t < T of <g(t+1), u(t)>, the first-order descent of the exact updates
          at a learning rate of 1, on the next gradient; `kept_descent` is that of the quantized
          ones,
        - `progress`: kept_descent / descent; NaN where the exact updates do not descend,
        - `cost`: sum over t < T of <sqrt(v(t) / (1 - beta2^t)), u(t)^2>, to which the second-order
          cost of the exact updates is proportional if the curvature is to what Adam divides by;
          `spent_cost` is that of the quantized updates w under the same curvature, and
          `shared_cost` the sum of <sqrt(v / (1 - beta2^t)), u w>,
        - `update_gain`: shared_cost / cost: the part of the exact updates in the quantized ones.
          Below 1 quantized updates are too short, as with a smaller learning rate,
        - `update_noise`: the root of spent_cost / cost - update_gain^2: how large the rest is that
          has nothing in common with the exact updates,
        - `displacement`: the squared length of sum over t < T of u(t), in which an element counts
          as much as the root of its second moment at the end; `displacement_gap`: the same of the
          difference of the quantized and the exact sums,
        - `displacement_error`: displacement_gap / displacement: how far from the exact parameters
          the quantized updates lead, at a constant learning rate. Errors that repeat in every step
          add up in it, while independent ones average out. It needs no next gradient, so it varies
          less between windows of a run than `progress`,
        - `explosion_share`: share of the quantized updates that are larger than any exact Adam can
          make at this step (`largest_possible`; 7.27 at betas of 0.9 and 0.999),
        - `largest_update`: the largest magnitude of a quantized update,
        - `step_cost`: -log(update_gain) + update_noise^2 / 50 + 0.03 log10(largest_update / 10),
          one number that predicts what a pair costs in training
          (`qmaps.analyze.replay.step_cost`),
        - `zero_point_share`: share of elements with v > 0 whose second moment decodes to 0 where
          the first does not; the next update may be m / eps,

        and of each moment, with ``_first`` or ``_second`` at the end of the name,

        - `moved_share`: share of elements whose exact state has moved, from start to end, by more
          than the distance to the next code; `stalled_share`: the share of these whose code never
          moved,
        - `accumulated_noise_first`: noise that quantizing adds to the moving average of noise, as a
          mean square relative to that of the average, at the deviations of the gradients that both
          moments tell (`qmaps.analyze.replay.averages.accumulated_noise`),
        - `fall_ratio_second`: second moments by the exact ones, 3 / (1 - beta2) steps after the
          gradients of every other element, but not of the largest, have fallen tenfold: the
          geometric mean over these elements (`qmaps.analyze.replay.averages.fall_ratios`). 1 is
          right; of codes that stay where they are it is 17, and steps are too short by its root.

        The last two are simulated on about 4,096 elements of the largest parameter, and NaN for
        others. Codes are looked at in five steps, spread evenly, the last included. Measures of a
        moment in 32 bits are NaN.

    Raises:
        SpecError: a pair does not parse, or its map does not have the width.
        BadValueError, BadTypeError: an argument is not allowed, `parameters` matches nothing, or
            states without a path are given to workers.
        CommunicationError: a worker was killed.
        CaptureError: no parameter is large enough or has both moments; fewer than two gradients
            were recorded; gradients are of another run than the states, or lack coupled weight
            decay; or a state or a gradient holds NaN or infinity.
    """
    books = tuple(codebooks)
    pairs = distinct(pair_of(spec, books) for spec in listed(specs))
    if not pairs:
        raise BadValueError("specs must hold at least one pair of quantizers")
    for q in (q for pair in pairs for q in (pair.first, pair.second) if q is not None):
        if q.low_rank is not None:
            raise BadValueError(
                f"{q.spec} has a low-rank part, whose codes alone tell nothing of a move; a replay "
                "supports quantizers without one"
            )
    check(steps, rounds, share, seed)
    captured = to_replay(states, moments=moments)
    names = chosen(captured, parameters, min_quantized_size)
    positions = {name: position for position, name in enumerate(captured.parameters())}
    numel = {name: math.prod(captured.shape(name, MOMENTS[0])) for name in names}
    replayed = [name for name in names if len(captured.window(name)) > 1] or names
    largest = max(replayed, key=lambda name: numel[name])
    options = (pairs, steps, rounds, share, seed)
    jobs = [
        executors.Job(
            number,
            name,
            numel[name] * len(pairs),
            partial(_measured, positions[name], name, *options, name == largest),
        )
        for number, name in enumerate(names)
    ]
    executors.check(captured, executor, workers)
    window = captured.window()
    if len(window) == 1:
        raise CaptureError(
            f"{captured.source!r} has the gradients of 1 step after it; a replay needs at least 2"
        )
    for name in names:  # before work that would be lost
        for state in MOMENTS:
            captured.tensor(name, state)
    frames = executors.measured(jobs, captured, executor, workers, progress=progress)
    filled = [frame for frame in frames if len(frame)]
    if not filled:
        raise CaptureError(
            f"the gradients beside {captured.source!r} are of none of the chosen parameters, or of "
            "fewer than 2 steps"
        )
    joined: pd.DataFrame = pd.concat(filled, ignore_index=True)
    return joined


def check(steps: int | None, rounds: int = 1, share: float = 1.0, seed: int = 0) -> None:
    """Raise a BadTypeError or BadValueError if one of these arguments of `run` is not allowed."""
    counts = [] if steps is None else [("steps", steps, 2)]
    for name, value, minimum in (*counts, ("rounds", rounds, 1), ("seed", seed, 0)):
        check_int(name, value)
        if value < minimum or value >= 2**32:
            raise BadValueError(f"{name}={shown(value)} must be {minimum} to 2**32 - 1")
    check_number("share", share)
    if not 0 < share <= 1:
        raise BadValueError(f"share={shown(share)} must be above 0 and at most 1")


def chosen(
    states: CapturedStates, parameters: str | Iterable[str] | None, min_quantized_size: int
) -> list[str]:
    """The large enough parameters with both moments among names with wildcards; None is all.

    Raises:
        BadValueError: `parameters` matches nothing.
        CaptureError: none has both moments, or none is large enough.
    """
    every = states.parameters()
    names = list(filter(predicate("parameters", parameters), every))
    if not names:
        raise BadValueError(
            f"parameters={shown(parameters)} matches no parameter of {states.source!r}; the names "
            f"are {', '.join(every[:5])}{', ...' if len(every) > 5 else ''}"
        )
    adam = states.with_moments(names)
    large = [n for n in adam if math.prod(states.shape(n, MOMENTS[0])) > min_quantized_size]
    return large or none_is_large("parameter", min_quantized_size, states)
