"""Codebooks, normalizers and rounding for the states of one run, chosen by replays."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from qmaps.algebra.pair import Pair, spec_of
from qmaps.algebra.quantizer import Quantizer, quantizer
from qmaps.analyze._states import MIN_SIZE, States, as_states
from qmaps.analyze.design.candidates import (
    NAMES,
    Shapes,
    bits_of,
    designed,
    known,
    known_pairs,
    normalizers,
    within,
)
from qmaps.analyze.design.choice import NOTHING, preferred
from qmaps.analyze.design.halves import Halves, Progress
from qmaps.analyze.design.samples import looks
from qmaps.analyze.replay.run import check, chosen
from qmaps.analyze.replay.source import Source
from qmaps.analyze.replay.updates import two_sided_cost
from qmaps.analyze.update_error import update_error
from qmaps.capture import CapturedStates
from qmaps.capture.snapshot import Lazy
from qmaps.errors import BadTypeError, BadValueError, CaptureError, shown
from qmaps.maps.codebook import Codebook
from qmaps.normalize.base import Normalizer

MOMENTS = (0, 1)
BOTH = "both"
ORDER = ["moment", "chosen", "allowed", "selection_error"]
WIDTHS = range(2, 9)
"""Widths in bits of designed codebooks."""
STEPS = 300
"""Steps of a replay, about."""
SCALES = 0.25
"""Bits per element for scales if `bits_per_element` is left out: a float32 scale per 128."""
BEST = 3
"""Quantizers of each moment that are combined with those of the other."""
CRITERIA = {"step_cost": 0.05, "displacement_error": NOTHING, "update_error": NOTHING}
"""By what pairs can be chosen, and below which number all count as equal. Among pairs of lower
step costs no error ordered the losses on all models (docs/design.md)."""
UPDATE_ERROR = "mean_abs_error"
"""The measure of a single update that the criterion ``update_error`` compares."""
REPLAYED = ("step_cost", "displacement_error", "progress", "net_progress", "explosion_share")
SINGLE = ("median_rel_error", UPDATE_ERROR)
"""Measures of the frame: of a replay, and of a single update."""


@dataclass(frozen=True)
class Design:
    """The quantizers that a design chose, and what they were compared with.

    Attributes:
        pair: the quantizers chosen.
        frame: the candidates; see `run`.
        best: the quantizer of each moment with the best of the designed codebooks, alone.
        criterion: the error by which pairs were compared.
        gradients: ``recorded`` or ``simulated``.
        held_out: whether the frame's measures are of other gradients than those that chose.
        step: step of the states.
        steps: steps of each replay.
        elements: number of elements replayed.
    """

    pair: Pair
    frame: pd.DataFrame = field(repr=False)
    best: tuple[Quantizer, ...]
    criterion: str
    gradients: str
    held_out: bool
    step: int
    steps: int
    elements: int

    @property
    def codebooks(self) -> list[Codebook]:
        """The designed codebooks that `pair` uses: none, one or two."""
        maps = [q.map for q in (self.pair.first, self.pair.second) if q is not None]
        return [map_ for map_ in maps if isinstance(map_, Codebook)]

    @property
    def state_quantizers(self) -> dict[str, Quantizer | None]:
        """The argument of the same name of ``qmaps.optim.AdamW``."""
        return {"exp_avg": self.pair.first, "exp_avg_sq": self.pair.second}


def run(
    states: States,
    bits: int | tuple[int, int] = 4,
    *,
    bits_per_element: float | None = None,
    criterion: str = "step_cost",
    steps: int = STEPS,
    share: float | None = None,
    parameters: str | Iterable[str] | None = None,
    min_quantized_size: int = MIN_SIZE,
    seed: int = 0,
    progress: Progress | None = None,
) -> Design:
    """Find the quantizers of a width whose updates cost least in training.

    For each moment, codebooks are computed for its values under several normalizers, for rounding
    to nearest and stochastic rounding (`qmaps.analyze.design.codebook.best`). They and the papers'
    maps of the same width are replayed (`qmaps.replay.run`) with the other moment in 32 bits; then
    the best of both moments together, and the papers' pairs. The pair that is best by `criterion`
    is chosen among those within `bits_per_element`. Errors that differ by less than 5 %, or are
    negligible (step costs below 0.05, others below 0.0001), count as equal: of such pairs the
    one of fewest bits is taken, of these one with known maps, and then one that rounds to nearest.

    The gradients of a window of 10 or more steps are halved. Codebooks and the choice come from the
    first half, and the measures of the frame from the second. A half is replayed round after round,
    until about `steps` steps are done.

    Args:
        states: captured states, their path, or tensors by parameter and state name. If no gradients
            were recorded, they are simulated, as in `qmaps.replay.run`.
        bits: width of a code of both moments, or of each: 2 to 8.
        bits_per_element: most bits per element, scales included, as the mean of both moments. Each
            moment gets the same number of bits for scales, by default a quarter of a bit, as one
            float32 scale per 128 elements takes. A twentieth more is allowed, for small tensors.
        criterion: the error by which pairs are compared: ``"step_cost"``, which predicts the loss
            best (`qmaps.replay.two_sided_cost`), ``"displacement_error"``, how far from
            the exact parameters the updates lead, or ``"update_error"``, the mean absolute error
            of a single update, as in `qmaps.analyze.update_error`.
        steps: steps of each replay, about, at least 2. Errors of a moment take 1 / (1 - beta) steps
            to accumulate.
        share: share of each parameter to replay, in (0, 1]: whole rows, spread evenly. By default
            so many that about 65,536 elements are replayed.
        parameters: names of parameters, with wildcards; all if left out.
        min_quantized_size: parameters of at most this many elements are left out.
        seed: of stochastic rounding, of samples and of simulated gradients, 0 to 2**32 - 1.
        progress: called with the name of a stage, the number of its parts that are done, the number
            of all, and the name of the part that is next. The first call is after all arguments
            have been checked.

    Returns:
        The design. Its frame has one row per candidate, the chosen pair first:

        - `moment`: ``first``, ``second`` (with the other moment in 32 bits) or ``both``,
        - `quantizer`: the spec of the moment's quantizer, or of the pair; `first`, `second`: specs,
        - `designed`: whether a codebook is a new one; `stochastic`: whether a quantizer rounds
          stochastically,
        - `bits_per_element`: of the moment, or the mean of both; `allowed`: whether that is within
          the limit,
        - `selection_error`: the error by which candidates were compared,
        - `step_cost`, `displacement_error`, `progress`, `net_progress`, `explosion_share`: those
          of `qmaps.replay.summarize` on the gradients that are held out; updates that are too
          long cost as much as updates that are too short,
        - `median_rel_error`, `mean_abs_error`: of one update of the states there, as in
          `qmaps.analyze.update_error`,
        - `chosen`: whether it is the pair chosen, or one of its quantizers.

    Raises:
        BadValueError, BadTypeError: an argument is not allowed, `parameters` matches nothing, or
            `bits_per_element` leaves no room for scales.
        CaptureError: as in `qmaps.replay.run`, or all updates are 0.
    """
    widths = _widths(bits)
    limits = _limits(widths, bits_per_element)
    if criterion not in list(CRITERIA):  # which may be unhashable
        allowed = ", ".join(CRITERIA)
        raise BadValueError(f"criterion={shown(criterion)} must be one of {allowed}")
    check(steps, share=1.0 if share is None else share, seed=seed)
    captured = as_states(states)
    names = chosen(captured, parameters, min_quantized_size)
    halves = Halves(captured, names, steps, share, min_quantized_size, seed, progress)
    sources = halves.sources()
    shapes = [each.shape for each in sources]
    norms = [_normalizers(k, widths, shapes, limits, bits_per_element) for k in MOMENTS]
    report = progress or (lambda *_: None)
    report("compute codebooks", 0, len(MOMENTS), NAMES[0])
    found = looks(sources, seed=seed)
    own: list[list[Quantizer]] = []
    for k in MOMENTS:
        own.append(designed(k, widths[k], norms[k], found, _beta(sources, k)))
        report("compute codebooks", k + 1, len(MOMENTS), "")
    table = _Table(shapes, limits, criterion)
    for k in MOMENTS:
        table.add(_alone(q, k) for q in [*own[k], *map(quantizer, known(k, widths[k]))])
    table.compare(halves, "replay moments")
    table.add(_combined(table, known_pairs(widths)))
    table.compare(halves, "replay pairs")
    able = table.of(BOTH)
    if math.isinf(table.error(able[0])):
        raise CaptureError(
            f"all exact updates of {captured.source!r} are 0; there is nothing to compare with"
        )
    winner = preferred({pair: table.rows[pair] for pair in able}, CRITERIA[criterion])
    table.measure(halves)
    used = {Pair(winner.first, None), Pair(None, winner.second), winner}
    for pair, row in table.rows.items():
        row["chosen"] = pair in used
    frame = pd.DataFrame(list(table.rows.values()))
    return Design(
        pair=winner,
        frame=frame.sort_values(ORDER, ascending=[True, False, False, True], ignore_index=True),
        best=tuple(min(own[k], key=lambda q: table.error(_alone(q, k))) for k in MOMENTS),
        criterion=criterion,
        gradients=sources[0].kind,
        held_out=halves.held_out,
        step=captured.step,
        steps=halves.rounds * halves.half,
        elements=sum(each.m.numel() for each in sources),
    )


class _Table:
    """The candidates, each with its row of the frame.

    Args:
        shapes: shapes of the parameters.
        limits: most bits per element of each moment.
        criterion: the error by which candidates are compared.
    """

    def __init__(self, shapes: Shapes, limits: tuple[float, float], criterion: str) -> None:
        self._shapes, self._limits, self._criterion = shapes, limits, criterion
        self.rows: dict[Pair, dict[str, Any]] = {}

    def add(self, pairs: Iterable[Pair]) -> None:
        """Add candidates; one that is there already is left alone."""
        for pair in pairs:
            if pair not in self.rows:
                self.rows[pair] = self._row(pair)

    def of(self, moment: str) -> list[Pair]:
        """Candidates that may be chosen, the least error first."""
        able = [p for p, row in self.rows.items() if row["moment"] == moment and row["allowed"]]
        return sorted(able, key=self.error)

    def error(self, pair: Pair) -> float:
        """The error by which candidates are compared."""
        return float(self.rows[pair]["selection_error"])

    def compare(self, halves: Halves, stage: str) -> None:
        """Measure what has not been measured, on the half that chooses."""
        new = [pair for pair, row in self.rows.items() if "selection_error" not in row]
        if self._criterion == "update_error":
            measured, name = _single(halves, new, held_out=False), UPDATE_ERROR
        else:
            measured, name = _replayed(halves, new, stage, held_out=False), self._criterion
        errors = measured[name].to_dict()
        for pair in new:
            error = errors[pair.spec]
            self.rows[pair]["selection_error"] = math.inf if math.isnan(error) else error

    def measure(self, halves: Halves) -> None:
        """Add the measures of the half that is held out."""
        pairs = list(self.rows)
        replayed = _replayed(halves, pairs, "replay what is held out", held_out=True)
        single = _single(halves, pairs, held_out=True)
        for table, names in ((replayed, REPLAYED), (single, SINGLE)):
            for name in names:
                values = table[name].to_dict()
                for pair in pairs:
                    self.rows[pair][name] = values[pair.spec]

    def _row(self, pair: Pair) -> dict[str, Any]:
        members = [(q, most) for q, most in zip(_both(pair), self._limits, strict=True) if q]
        sizes = [bits_of(q, self._shapes) for q, _ in members]
        widths = [q.map.bits for q, _ in members]
        limits = [most for _, most in members]
        bits, most, codes = (sum(each) / len(members) for each in (sizes, limits, widths))
        alone = pair.second is None or pair.first is None
        return {
            "moment": BOTH if not alone else NAMES[pair.first is None],
            "quantizer": members[0][0].spec if alone else pair.spec,
            "first": spec_of(pair.first),
            "second": spec_of(pair.second),
            "designed": any(isinstance(q.map, Codebook) for q, _ in members),
            "stochastic": any(q.rounding.random for q, _ in members),
            "bits_per_element": bits,
            "allowed": within(bits, most, codes),
        }


def _replayed(halves: Halves, pairs: Sequence[Pair], stage: str, *, held_out: bool) -> pd.DataFrame:
    """Summary of a replay by the pairs' specs, its step costs two-sided."""
    found = halves.summary(pairs, stage, held_out=held_out)
    parts = found[["update_gain", "update_noise", "largest_update"]]
    return found.assign(step_cost=[two_sided_cost(*row) for row in parts.to_numpy(float)])


def _single(halves: Halves, pairs: Sequence[Pair], *, held_out: bool) -> pd.DataFrame:
    """Errors of one update of the states that a half begins with, by the pairs' specs."""
    states = _states(halves.sources(held_out=held_out))
    return update_error(states, pairs, min_quantized_size=0).set_index("quantizer")


def _both(pair: Pair) -> tuple[Quantizer | None, Quantizer | None]:
    return pair.first, pair.second


def _alone(q: Quantizer, moment: int) -> Pair:
    """A quantizer of one moment, the other in 32 bits."""
    return Pair(None, q) if moment else Pair(q, None)


def _combined(table: _Table, published: Iterable[str]) -> list[Pair]:
    """The best quantizers of each moment with those of the other, and the papers' pairs."""
    sides = []
    for k in MOMENTS:
        able = table.of(NAMES[k])
        old = [pair for pair in able if not table.rows[pair]["designed"]]
        sides.append([_both(pair)[k] for pair in dict.fromkeys([*able[:BEST], *old[:1]])])
    crossed = [Pair(first, second) for first in sides[0] for second in sides[1]]
    return [*crossed, *map(Pair.parse, published)]


def _states(sources: Sequence[Source]) -> CapturedStates:
    """The moments that replays begin with."""
    tensors = {
        each.parameter: {"exp_avg": Lazy.of(each.m), "exp_avg_sq": Lazy.of(each.v)}
        for each in sources
    }
    options = {each.parameter: {"eps": each.eps} for each in sources}
    return CapturedStates(tensors, step=sources[0].taken, hyperparameters=options)


def _beta(sources: Sequence[Source], moment: int) -> float:
    """The decay of a moment of most elements."""
    sizes: dict[float, int] = {}
    for each in sources:
        beta = each.betas[moment]
        sizes[beta] = sizes.get(beta, 0) + each.m.numel()
    return max(sizes, key=lambda beta: sizes[beta])


def _widths(bits: int | tuple[int, int]) -> tuple[int, int]:
    both = (bits, bits) if not isinstance(bits, (tuple, list)) else tuple(bits)
    if len(both) != 2 or any(isinstance(b, bool) or not isinstance(b, int) for b in both):
        raise BadTypeError(f"bits={shown(bits)} must be an int, or two for the two moments")
    if any(width not in WIDTHS for width in both):
        raise BadValueError(
            f"bits={shown(bits)} must be {WIDTHS[0]} to {WIDTHS[-1]}; no other widths are designed"
        )
    return both[0], both[1]


def _limits(widths: tuple[int, int], bits_per_element: float | None) -> tuple[float, float]:
    """Most bits per element of each moment."""
    if bits_per_element is None:
        return widths[0] + SCALES, widths[1] + SCALES
    if isinstance(bits_per_element, bool) or not isinstance(bits_per_element, (int, float)):
        raise BadTypeError(f"bits_per_element={shown(bits_per_element)} must be a number")
    scales = bits_per_element - sum(widths) / 2
    if not 0 < scales < math.inf:
        raise BadValueError(
            f"bits_per_element={shown(bits_per_element)} must be more than the {sum(widths) / 2:g} "
            "bits of the codes"
        )
    return widths[0] + scales, widths[1] + scales


def _normalizers(
    moment: int,
    widths: tuple[int, int],
    shapes: Shapes,
    limits: tuple[float, float],
    bits_per_element: float | None,
) -> list[Normalizer]:
    """The normalizers that fit, at least one."""
    found, least = normalizers(moment, widths[moment], shapes, limits[moment])
    if found:
        return found
    needed = math.ceil(100 * (least - widths[moment] + sum(widths) / 2)) / 100
    raise BadValueError(
        f"bits_per_element={shown(bits_per_element)} leaves too little for scales; these "
        f"parameters need at least {needed:.2f}"
    )
