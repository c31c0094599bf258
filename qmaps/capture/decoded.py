"""Quantized states that are kept in several tensors, as the states that they decode to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from qmaps.capture.snapshot import Lazy


def decoded(state: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Put torch's names in place of bitsandbytes' `state1`, `absmax1`, `qmap1` and so on.

    A single state keeps the name `state1`, for the checkpoint does not say what it is.

    Args:
        state: one parameter's state; tensors may be `Lazy`.

    Returns:
        `state` itself if it has no `state1`; otherwise a copy in which each state is a float32
        `Lazy`, decoded when it is read.
    """
    if "state1" not in state and not any(str(name).startswith("__bnb") for name in state):
        return state
    # Imported here because reading other states needs no quantizer.
    from qmaps.capture.conversion.form import values_of
    from qmaps.capture.conversion.formats.bitsandbytes_ import SLOTS, WRAPPED, slot_state

    flat = {**state, **state.get(WRAPPED, {})}
    if "state1" not in flat:
        return state

    def half(index: int, part: int | None) -> Lazy:
        """State `index`, or one of the two that are stacked in it."""

        def read() -> Tensor:
            own = {name: _read(flat.get(f"{name}{index}")) for name in ("state", "absmax", "qmap")}
            value, absmax = own["state"], own["absmax"]
            if part is not None:
                value, absmax = value[part], None if absmax is None else absmax[part]
            known = {f"{name}{index}": found for name, found in own.items() if found is not None}
            return values_of(slot_state(known, index, value, absmax))

        shape = tuple(flat[f"state{index}"].shape)
        return Lazy(shape if part is None else shape[1:], torch.float32, read)

    rest = {
        name: value
        for name, value in flat.items()
        if name != WRAPPED and str(name).rstrip("12") not in ("state", "absmax", "qmap")
    }
    if "state2" not in flat:
        return {**rest, "state1": half(1, None)}
    if len(flat["state1"].shape) == len(flat["state2"].shape):
        parts = [half(1, None), half(2, None)]
    else:
        parts = [half(1, 0), half(1, 1), half(2, None)]
    family = "adam" if len(parts) == 2 else "ademamix"
    names = [name for slot in SLOTS[family].slots for name in slot]
    return {**rest, **dict(zip(names, parts, strict=True))}


def _read(value: Any) -> Any:
    return value.read() if isinstance(value, Lazy) else value
