"""Converting a state_dict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qmaps.algebra.quantizer import QuantizedTensor, Quantizer
from qmaps.capture.conversion.families import family
from qmaps.capture.conversion.form import OptimizerState, State, restored_of
from qmaps.capture.conversion.formats import FORMATS, Format, fp8
from qmaps.capture.conversion.formats.base import Plan, Wanted
from qmaps.capture.conversion.formats.coded import same_codes
from qmaps.capture.conversion.report import Report, report
from qmaps.capture.conversion.zeros import POLICIES, Zeros, handle
from qmaps.errors import (
    DAMAGE,
    BadTypeError,
    BadValueError,
    CaptureError,
    NonFiniteError,
    QmapsError,
    nearest,
)


def convert_state_dict(
    state_dict: Mapping[str, Any],
    to: str,
    *,
    states: Wanted = None,
    zeros: str = "raise",
    source: str | None = None,
    optimizer: str | None = None,
) -> tuple[dict[str, Any], Report]:
    """Convert an optimizer's state_dict to the layout of another library.

    Args:
        state_dict: a state_dict of an optimizer of torch, bitsandbytes, torchao or qmaps; it is
            not changed.
        to: the target format: "torch", "bitsandbytes", "torchao" or "qmaps".
        states: how to keep states: "32bit", "8bit", "4bit" or "fp8" as far as the target has
            them; for qmaps also another preset, or a dict from state names to specs. None keeps
            codes where the target can hold them, and encodes a checkpoint in 32 bits in 8 bits,
            unless the target is torch or both sides are qmaps.
        zeros: treatment of elements where v decodes to 0 and m does not.
            "raise" gives them the smallest positive value that their codebook and scale have;
            "leave" keeps them. See `qmaps.capture.conversion.zeros`.
        source: the format of `state_dict`; found out if left out.
        optimizer: the family of the optimizer, such as "lion" or "sgd". It is needed for a
            bitsandbytes checkpoint with one state per parameter, which does not show it.

    Returns:
        The new state_dict, which may share tensors with the old one, and what became of each state.

    Raises:
        CaptureError: the state_dict is damaged or of an unknown optimizer.
        BadValueError, BadTypeError: an argument is not allowed, or the target has no place for
            something that the source has.

    >>> import torch
    >>> layer = torch.nn.Linear(128, 64)
    >>> adam = torch.optim.AdamW(layer.parameters())
    >>> layer(torch.randn(8, 128)).square().sum().backward()
    >>> adam.step()
    >>> converted, report = convert_state_dict(adam.state_dict(), "qmaps", states="4bit")
    >>> converted["state"][0]["exp_avg"]["spec"], report.states[0].how
    ('B128/DE@4s+sr', 'quantized')
    """
    if zeros not in POLICIES:
        raise BadValueError(f"zeros={zeros!r} must be one of {', '.join(POLICIES)}")
    target = _format(to, "to")
    if not isinstance(state_dict, Mapping) or not {"state", "param_groups"} <= state_dict.keys():
        raise BadTypeError(
            "state_dict must be the state_dict of an optimizer, with 'state' and 'param_groups'"
        )
    origin = recognized(state_dict) if source is None else _format(source, "source")
    hint = None if optimizer is None else family(optimizer)
    try:
        old = origin.read(state_dict, hint)
        if not target.keeps_resets:
            old = old.without_resets()
        planned, plan = target.plan(old, states)
        encoded = planned.with_states(_encoded(planned, plan))
        encoded, found = _handled(old, encoded, zeros)
        told = report(old, encoded, found, (origin.name, target.name), encoded.notes)
        return target.write(encoded), told
    except QmapsError:
        raise
    except DAMAGE as error:
        reason = f"{type(error).__name__}: {error}"
        raise CaptureError(
            f"the parts of the optimizer state_dict do not fit together ({reason})"
        ) from error


def _format(name: str, option: str) -> Format:
    if name not in FORMATS:
        raise BadValueError(
            f"{option}={name!r} is not a known format; allowed are "
            f"{', '.join(FORMATS)}{nearest(str(name), FORMATS)}"
        )
    return FORMATS[name]


def recognized(state_dict: Mapping[str, Any]) -> Format:
    """The format of a state_dict."""
    try:
        return next(known for known in FORMATS.values() if known.recognizes(state_dict))
    except DAMAGE:
        raise CaptureError("the parts of the optimizer state_dict do not fit together") from None


def _encoded(state: OptimizerState, plan: Plan) -> dict[str, dict[str, State]]:
    return {
        parameter.label: {
            name: _encode(value, plan[parameter.label][name], parameter.label, name)
            for name, value in parameter.states.items()
        }
        for parameter in state.parameters()
    }


def _encode(value: State, quantizer: Quantizer | None, label: str, name: str) -> State:
    if quantizer is None:
        return restored_of(value)
    if isinstance(value, QuantizedTensor):
        if value.quantizer == quantizer:
            return value
        if (carried := same_codes(value, quantizer)) is not None:
            return carried
    try:
        return fp8.encode(restored_of(value), quantizer)
    except (BadValueError, NonFiniteError) as error:
        raise CaptureError(f"state {name!r} of {label!r} cannot be quantized: {error}") from None


def _handled(
    old: OptimizerState, new: OptimizerState, policy: str
) -> tuple[OptimizerState, dict[str, Zeros]]:
    """Handle the zeros of the states; also return what was found, by label."""
    states = {p.label: dict(p.states) for p in new.parameters()}
    found: dict[str, Zeros] = {}
    if old.family.moments is None:
        return new, found
    first, second = old.family.moments
    for parameter in old.parameters():
        if own := states[parameter.label]:
            own[second], found[parameter.label] = handle(
                own[first], own[second], parameter.states[second], policy=policy
            )
    return new.with_states(states), found
