"""Options of all optimizers, options of torch, and unknown options."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypedDict

from qmaps.algebra.philox import RoundingKey
from qmaps.engines.masters import FORMS
from qmaps.errors import BadTypeError, BadValueError, nearest, shown
from qmaps.optim.choice import StateQuantizers
from qmaps.optim.nonfinite import POLICIES
from qmaps.optim.other_libraries import IN_GROUPS, NEUTRAL, instead_of
from qmaps.optim.resets import check_reset_every
from qmaps.optim.rule import check_bool, check_int, check_one_of


class Shared(TypedDict, total=False):
    """Options of all optimizers; `QuantizedOptimizer` has their defaults.

    `amsgrad` and `decoupled_weight_decay` are accepted only by rules with a value for them.
    """

    maximize: bool
    state_quantizers: StateQuantizers
    overrides: Mapping[str, StateQuantizers] | None
    min_quantized_size: int | None
    refit_every: int
    reset_every: int | None
    nonfinite: str
    seed: int
    stochastic_rounding: bool
    master_weights: bool | str
    foreach: bool | None
    fused: bool | None
    capturable: bool
    differentiable: bool
    amsgrad: bool
    decoupled_weight_decay: bool


def check_shared(group: dict[str, Any]) -> None:
    """Raise if one of these options of a parameter group has a value that is not allowed."""
    check_int("min_quantized_size", group["min_quantized_size"], 0)
    check_int("refit_every", group["refit_every"], 1)
    check_reset_every(group)
    check_one_of("nonfinite", group["nonfinite"], POLICIES)
    RoundingKey(seed=group["seed"])  # raises on a bad seed
    check_bool(group, "maximize", "quantize", "stochastic_rounding")
    form = group["master_weights"]
    if not isinstance(form, (bool, str)) or form not in FORMS:
        kind = BadValueError if isinstance(form, str) else BadTypeError
        *allowed, last = map(repr, FORMS)
        raise kind(f"master_weights={shown(form)} must be {', '.join(allowed)} or {last}")
    if group["stochastic_rounding"] and form:
        raise BadValueError(
            f"stochastic_rounding=True cannot be combined with master_weights={form!r}: master "
            "weights already keep small updates"
        )


HARMLESS = ("capturable", "foreach", "fused")
"""The options that choose one of torch's implementations of the same rule."""

TORCH_OPTIONS = frozenset({*HARMLESS, "amsgrad", "decoupled_weight_decay", "differentiable"})
"""All of these options; torch's checkpoints hold them."""

REASONS = {
    "amsgrad": "qmaps does not keep the largest second moment",
    "decoupled_weight_decay": "AdamW decouples weight decay, and Adam does either",
    "differentiable": "autograd does not record steps",
}


def without_neutral_options(
    owner: str,
    options: Mapping[str, Any],
    stands_for: Mapping[str, object],
    known: Collection[str] = (),
) -> dict[str, Any]:
    """`options` without those of torch, and without neutral ones of other libraries."""
    neutral = {**NEUTRAL, "differentiable": False, **stands_for}
    remaining = {}
    for name, value in options.items():
        if name in known or (name not in neutral and name not in TORCH_OPTIONS):
            remaining[name] = value
        elif name not in TORCH_OPTIONS:
            if not _same(value, neutral[name]):
                remaining[name] = value
        elif value is not None and not isinstance(value, bool):
            raise BadTypeError(f"{name}={shown(value)} must be True, False or None")
        elif name not in HARMLESS:
            if name not in neutral:
                raise BadTypeError(f"{name}={shown(value)} is not an option of {owner}")
            if value != neutral[name]:
                raise BadValueError(f"{name}={value} is not supported: {REASONS[name]}")
    return remaining


def _same(value: object, neutral: object) -> bool:
    """Return True if a value is the neutral one; 1 is not True, but 0.0 is 0."""
    plain = value is None or isinstance(value, (int, float))
    return plain and isinstance(value, bool) == isinstance(neutral, bool) and value == neutral


OF_CLASSES = ("block_size", "blocksize")
"""Options that only constructors of classes of one width have."""
WIDTHS = ("bits", "nbits", "num_bits")
"""Names that others give to the width of states."""
SHORTEST = 4
"""Letters of the shortest word in an option whose misspellings are looked for: too much is near to
`lr`, and ``T_max`` of a scheduler to `d_max`."""
LONG = 12
"""Letters from which on two wrong letters still tell which option was meant."""


def refuse_option(owner: str, name: str, value: object, options: Iterable[str]) -> None:
    """Raise for an unknown argument of an optimizer's constructor."""
    why = instead_of(name) or meant(name, options)
    if name in OF_CLASSES:
        why = "; classes of one width have it, such as AdamW8bit, and specs, such as B256/DE@8s"
    elif name in WIDTHS:
        why = "; the width is that of a class, such as AdamW8bit, or of state_quantizers='8bit'"
    raise BadTypeError(f"{name}={shown(value)} is not an option of {owner}{why}")


def check_keys(owner: str, group: Mapping[str, Any], options: Iterable[str]) -> None:
    """Raise if a key of a parameter group looks like an option, but is none."""
    allowed = list(options)
    for name, value in group.items():
        if name in allowed or name in ("params", "param_names") or not isinstance(name, str):
            continue
        why = instead_of(name, IN_GROUPS)
        if name in OF_CLASSES:
            why = "; a spec in the group's state_quantizers has the block size, such as B128/DE@4s"
        if why or (why := meant(name, allowed)):
            raise BadTypeError(
                f"{name}={shown(value)} is not an option of a parameter group of {owner}{why}"
            )


def meant(name: str, options: Iterable[str]) -> str:
    """A hint for a misspelt option, or ``""`` if it is near to none.

    >>> meant("state_quantizer", ["lr", "state_quantizers"])
    '; nearest match: state_quantizers'
    >>> meant("max_momentum", ["lr", "momentum"])
    ''
    """
    candidates = list(options)
    folded = name.lower().replace("-", "_")
    if "quantizer" in folded:  # nothing but qmaps has such a key
        return nearest(folded, [option for option in candidates if "quantizer" in option])
    for option in candidates:
        short = max(map(len, option.split("_"))) < SHORTEST
        typos = 0 if short else 1 if len(option) < LONG else 2
        if distance(folded, option) <= typos:
            return f"; nearest match: {option}"
    return ""


def distance(one: str, other: str) -> int:
    """Number of insertions, deletions, replacements and swaps between two words.

    >>> distance("nonfinite", "nonfiniet"), distance("seeds", "seed")
    (1, 1)
    """
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, start=1):
        row_before, before, row = before, row, [i]
        for j, b in enumerate(other, start=1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and one[i - 2] == b:
                cost = min(cost, row_before[j - 2] + 1)
            row.append(cost)
    return row[-1]
