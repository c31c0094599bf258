"""Decoding of quantized states stored as several tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from qmaps.capture.snapshot import Lazy


def decoded(state: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Join the parts of each state that bitsandbytes or a sharded qmaps stores.

    Bitsandbytes has `state1`, `absmax1`, `qmap1` and so on. Its states take torch's names; a single
    one keeps the name `state1`, for the checkpoint does not say what it is.

    Args:
        state: one parameter's state; tensors may be `Lazy`.

    Returns:
        A copy with a float32 `Lazy` in place of the parts; it is decoded when it is read.
    """
    joined = {name: _of_rows(value) if _in_rows(value) else value for name, value in state.items()}
    if "state1" in joined or any(str(name).startswith("__bnb") for name in joined):
        return _of_bitsandbytes(joined)
    return joined


def in_memory(value: Any) -> Any:
    """Read every `Lazy` of a state_dict; quantized states of qmaps are not decoded."""
    if isinstance(value, Lazy):
        return value.read()
    if isinstance(value, Mapping):
        members = {key: in_memory(member) for key, member in value.items()}
        return _joined(members) if _in_rows(members) else members
    if isinstance(value, (list, tuple)):
        return type(value)(in_memory(member) for member in value)
    return value


def _in_rows(value: Any) -> bool:
    """Return True for a quantized state as `qmaps.distributed.rows` writes it."""
    return isinstance(value, Mapping) and {"codes", "rows", "spec"} <= value.keys()


def _of_rows(value: Mapping[str, Any]) -> Lazy:
    from qmaps.distributed import rows

    def read() -> Tensor:
        return rows.read({name: _read(part) for name, part in value.items()}, None).decoded()

    return Lazy(tuple(value["rows"]), torch.float32, read, quantized=True)


def _joined(value: Mapping[str, Any]) -> Any:
    """Return the quantized tensor in its plain form; decoded if shards had separate blocks."""
    from qmaps.algebra.saved import to_plain
    from qmaps.distributed import rows

    shards = rows.read(value, None)
    return to_plain(shards.joined()) if shards.aligned else shards.restored()


def _of_bitsandbytes(state: Mapping[Any, Any]) -> Mapping[Any, Any]:
    # Imported here because reading other states needs no quantizer.
    from qmaps.capture.conversion.form import values_of
    from qmaps.capture.conversion.formats.bitsandbytes_ import SLOTS, WRAPPED, slot_state

    flat = {**state, **state.get(WRAPPED, {})}
    if "state1" not in flat:
        return state

    def half(index: int, part: int | None) -> Lazy:
        """State `index`, or one of the two that are stacked in it."""

        def read() -> Tensor:
            values = {
                name: _read(flat.get(f"{name}{index}")) for name in ("state", "absmax", "qmap")
            }
            value, absmax = values["state"], values["absmax"]
            if part is not None:
                value, absmax = value[part], None if absmax is None else absmax[part]
            present = {
                f"{name}{index}": tensor for name, tensor in values.items() if tensor is not None
            }
            return values_of(slot_state(present, index, value, absmax))

        shape = tuple(flat[f"state{index}"].shape)
        shape = shape if part is None else shape[1:]
        return Lazy(shape, torch.float32, read, quantized=flat.get(f"qmap{index}") is not None)

    plain = {
        name: value
        for name, value in flat.items()
        if name != WRAPPED and str(name).rstrip("12") not in ("state", "absmax", "qmap")
    }
    if "state2" not in flat:
        return {**plain, "state1": half(1, None)}
    if len(flat["state1"].shape) == len(flat["state2"].shape):
        parts = [half(1, None), half(2, None)]
    else:
        parts = [half(1, 0), half(1, 1), half(2, None)]
    family = "adam" if len(parts) == 2 else "ademamix"
    names = [name for slot in SLOTS[family].slots for name in slot]
    return {**plain, **dict(zip(names, parts, strict=True))}


def _read(value: Any) -> Any:
    return value.read() if isinstance(value, Lazy) else value
