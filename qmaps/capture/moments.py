"""Adam's moments in states that have other names: given by the caller, or known of a package."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from qmaps.capture.snapshot import Lazy
from qmaps.engines.step import MOMENTS
from qmaps.errors import BadTypeError, BadValueError, shown

Moments = Mapping[str, str]
"""Name of a state, or a pattern with wildcards, by the moment that it is: ``exp_avg`` or
``exp_avg_sq``."""

KNOWN = (
    ("exp_avg", "exp_avg_var"),  # AdaBelief, AdaNorm, Aida
    ("exp_avg", "exp_hessian_diag_sq"),  # AdaHessian
    ("grad_ma", "variance_ma"),  # Ranger21
    ("m", "v"),  # AdaMuon, AdamG
    ("m", "variance"),  # adafactor8bit
    ("m_avg", "v_avg"),  # Adalite, vectors
    ("momentum", "fim"),  # FAdam
    ("*_exp_avg_[0-9]*", "*_exp_avg_sq_[0-9]*"),  # heavyball: prefixed by the transform
    ("*_exp_avg_fast_[0-9]*", "*_exp_avg_sq_[0-9]*"),  # heavyball's AdEMAMix
)
"""Names of first and second moments in pytorch-optimizer, timm, heavyball and adafactor8bit.

``python -m benchmarks.recorders`` finds the states of their classes. Second moments are averages of
squares, whose root the update divides by; infinity norms and sums are none.
"""

REPLACED = "own."
"""Prefix of a state that has the name of a moment, where another state is this moment."""


def check(moments: Moments) -> dict[str, str]:
    """Return the names as a dict, or raise if they are not those of moments."""
    if not isinstance(moments, Mapping):
        raise BadTypeError(
            f"moments={shown(moments)} must be a dict from {' and '.join(MOMENTS)} to names"
        )
    for moment, name in moments.items():
        if moment not in MOMENTS:
            raise BadValueError(f"moments has {shown(moment)}; allowed are {', '.join(MOMENTS)}")
        if not isinstance(name, str) or not name:
            raise BadTypeError(f"moments[{moment!r}]={shown(name)} must be the name of a state")
    if len({*moments.values()}) < len(moments):
        raise BadValueError(f"moments={dict(moments)} must name two states, not one for both")
    return dict(moments)


def given(parameter: str, states: Iterable[str], moments: Moments) -> dict[str, str]:
    """The moments that a parameter has, by the names of its states.

    Raises:
        BadValueError: a pattern matches several states, or both match one.
    """
    found = {}
    for moment, pattern in moments.items():
        matches = _matches(states, pattern)
        if len(matches) > 1:
            raise BadValueError(
                f"moments[{moment!r}]={pattern!r} matches {', '.join(matches)} of parameter "
                f"{parameter!r}; it must match one"
            )
        for own in matches:
            if own in found:
                raise BadValueError(
                    f"moments={dict(moments)} matches {own} of parameter {parameter!r} twice"
                )
            found[own] = moment
    return found


def known(states: Mapping[str, Lazy]) -> dict[str, str]:
    """The moments of a parameter by the names in `KNOWN`; empty if there are not both."""
    if {*MOMENTS} <= states.keys():
        return {}
    for pair in KNOWN:
        places = [_matches(states, pattern) for pattern in pair]
        if [len(place) for place in places] != [1, 1]:
            continue
        own = [place[0] for place in places]
        lazies = [states[name] for name in own]
        fits = lazies[0].shape == lazies[1].shape != ()
        if fits and own[0] != own[1] and all(x.dtype.is_floating_point for x in lazies):
            return dict(zip(own, MOMENTS, strict=True))
    return {}


def renamed(
    tensors: Mapping[str, Mapping[str, Lazy]], wanted: Moments, source: str
) -> tuple[dict[str, dict[str, Lazy]], dict[str, list[str]]]:
    """The states of each parameter with Adam's names of moments, and their own names by these.

    Args:
        tensors: states by parameter and own name.
        wanted: a result of `check`; if it is empty, names are those of `KNOWN`.
        source: description of the states, for the error.

    Raises:
        BadValueError: as `given`, or a name is that of no state.
    """
    found = {
        parameter: given(parameter, states, wanted) if wanted else known(states)
        for parameter, states in tensors.items()
    }
    for moment, pattern in wanted.items():
        if not any(moment in names.values() for names in found.values()):
            others = sorted({name for states in tensors.values() for name in states})
            raise BadValueError(
                f"moments[{moment!r}]={pattern!r} matches no state in {source!r}; its states are "
                f"{', '.join(others)}"
            )
    aliases: dict[str, list[str]] = {}
    for own, moment in sorted({pair for names in found.values() for pair in names.items()}):
        if own != moment:
            aliases.setdefault(moment, []).append(own)
    named = {parameter: _named(states, found[parameter]) for parameter, states in tensors.items()}
    return named, aliases


def _named(states: Mapping[str, Lazy], moments: Mapping[str, str]) -> dict[str, Lazy]:
    """The states of a parameter, with the names of moments by their own names."""
    taken = {*moments.values()} - moments.keys()
    return {
        moments.get(name, REPLACED + name if name in taken else name): lazy
        for name, lazy in states.items()
    }


def _matches(states: Iterable[str], pattern: str) -> list[str]:
    names = list(states)
    return [pattern] if pattern in names else [n for n in names if fnmatchcase(n, pattern)]
