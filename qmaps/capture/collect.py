"""Tensors and numbers of an optimizer's state, for recording."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qmaps.algebra.dense import unsupported_reason
from qmaps.capture.snapshot import DTYPES, Lazy
from qmaps.engines.masters import REMAINDER
from qmaps.engines.step import COUNTS

if TYPE_CHECKING:
    from qmaps.algebra.quantizer import QuantizedTensor


def decoded(state: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Return a parameter's state with a float32 `Lazy` in place of the parts of a quantized one.

    Bitsandbytes has `state1`, `absmax1`, `qmap1` and so on, and a sharded qmaps codes by rows.
    States of bitsandbytes take torch's names; a single one keeps the name `state1`, as checkpoints
    do not name the optimizer.
    """
    joined = {name: _of_rows(value) if in_rows(value) else value for name, value in state.items()}
    if "state1" in joined or any(str(name).startswith("__bnb") for name in joined):
        return _of_bitsandbytes(joined)
    return joined


def in_memory(value: Any) -> Any:
    """Read every `Lazy` of a state_dict; quantized states of qmaps are not decoded."""
    if isinstance(value, Lazy):
        return value.read()
    if isinstance(value, Mapping):
        members = {key: in_memory(member) for key, member in value.items()}
        return _joined(members) if in_rows(members) else members
    if isinstance(value, (list, tuple)):
        return type(value)(in_memory(member) for member in value)
    return value


def in_rows(value: Any) -> bool:
    """Return True for a quantized state as `qmaps.distributed.rows` writes it."""
    return isinstance(value, Mapping) and {"codes", "rows", "spec"} <= value.keys()


def _of_rows(value: Mapping[str, Any]) -> Lazy:
    from qmaps.distributed import rows

    def shards() -> Any:
        return rows.read({name: in_memory(part) for name, part in value.items()}, None)

    def codes() -> QuantizedTensor | None:
        read = shards()
        return read.joined() if read.aligned else None

    shape = shape_of(value)
    return Lazy(shape, torch.float32, lambda: shards().decoded(), quantized=True, codes=codes)


def shape_of(plain: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape of a quantized state, in a tensor or, in older files, in a list."""
    sizes = _read(plain["rows" if in_rows(plain) else "shape"])
    return tuple(sizes.tolist() if isinstance(sizes, Tensor) else sizes)


def _joined(value: Mapping[str, Any]) -> Any:
    """Return the quantized tensor in its plain form; decoded if shards had separate blocks."""
    from qmaps.algebra.saved import to_plain
    from qmaps.distributed import rows

    shards = rows.read(value, None)
    return to_plain(shards.joined()) if shards.aligned else shards.decoded()


def _of_bitsandbytes(state: Mapping[Any, Any]) -> Mapping[Any, Any]:
    # Imported here because reading other states needs no quantizer.
    from qmaps.algebra.quantizer import values_of
    from qmaps.capture.conversion.formats.bitsandbytes_ import SLOTS, WRAPPED, halves, slot_state

    flat = {**state, **state.get(WRAPPED, {})}
    if "state1" not in flat:
        return state

    def lazy(index: int, half: int | None) -> Lazy:
        def state() -> Any:
            parts = {f"{part}{index}" for part in ("state", "absmax", "qmap")}
            present = {n: _read(x) for n, x in flat.items() if n in parts and x is not None}
            return slot_state(present, index, half)

        shape = tuple(flat[f"state{index}"].shape)
        shape = shape if half is None else shape[1:]
        quantized = flat.get(f"qmap{index}") is not None
        codes = state if quantized else None
        return Lazy(
            shape, torch.float32, lambda: values_of(state()), quantized=quantized, codes=codes
        )

    plain = {
        name: value
        for name, value in flat.items()
        if name != WRAPPED and str(name).rstrip("12") not in ("state", "absmax", "qmap")
    }
    parts = [lazy(index, half) for index, half in halves(flat)]
    names = ["state1"]
    if len(parts) > 1:
        slots = SLOTS["adam" if len(parts) == 2 else "ademamix"].slots
        names = [name for slot in slots for name in slot]
    return {**plain, **dict(zip(names, parts, strict=True))}


def _read(value: Any) -> Any:
    return value.read() if isinstance(value, Lazy) else value


@dataclass
class Collected:
    """Tensors and numbers of one parameter by name, and the types of other states."""

    tensors: dict[str, Lazy] = field(default_factory=dict)
    scalars: dict[str, float] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def skips(self, label: str) -> list[str]:
        """Return ``parameter: state (type)`` of the states that cannot be recorded."""
        return [f"{label}: {name} ({kind})" for name, kind in self.skipped.items()]


def collect(state: Mapping[Any, Any]) -> Collected:
    """Sort one parameter's state; members of lists and dicts are named ``name.0``, ``name.key``.

    >>> collected = collect({"step": torch.tensor(3.0), "old": [torch.zeros(2)], "buffer": None})
    >>> list(collected.tensors), collected.scalars, collected.skipped
    (['old.0'], {'step': 3.0}, {'buffer': 'NoneType'})
    """
    collected = Collected()
    for top, content in state.items():
        for name, value in _leaves(str(top), content):
            if name == REMAINDER:  # bits of the parameter
                collected.skipped[name] = _kind(value)
                continue
            number = _number(name, value)
            lazy = _lazy(value) if number is None else None
            if name in collected.tensors or name in collected.scalars:
                collected.skipped[name] = "second state of this name"
            elif number is not None:
                collected.scalars[name] = number
            elif lazy is not None:
                collected.tensors[name] = lazy
            else:
                # Recorded under the list's name: LBFGS has a list of a hundred None.
                collected.skipped.setdefault(str(top), _kind(value))
    return collected


def skips_of_no_parameter(entries: Iterable[tuple[Any, Any]]) -> list[str]:
    """Return ``key (type), of no parameter`` of entries that an optimizer keeps beside states."""
    return [f"{key} ({_kind(value)}), of no parameter" for key, value in entries]


def plain_options(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a parameter group for JSON; tensors of one element become numbers."""
    plain = {n: _plain(value) for n, value in group.items() if n not in ("params", "param_names")}
    return {name: value for name, value in plain.items() if value is not _UNFIT}


_UNFIT = object()


def _plain(value: Any) -> Any:
    """Return `value` as a JSON value, or ``_UNFIT`` if it has no such form."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    # Tensors and NumPy scalars with one element count as numbers.
    if hasattr(value, "item") and getattr(value, "size", None) is not None:
        if isinstance(value, Tensor) and unsupported_reason(value):
            return _UNFIT
        count = value.numel() if isinstance(value, Tensor) else value.size
        return _plain(value.item()) if count == 1 else _UNFIT
    if isinstance(value, (list, tuple)):
        members = [_plain(member) for member in value]
        return _UNFIT if any(member is _UNFIT for member in members) else members
    return _UNFIT


def is_packed(value: Any) -> bool:
    """Return True for a quantized state in the form of a state_dict of qmaps."""
    return isinstance(value, Mapping) and {"packed", "spec"} <= value.keys()


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and not is_packed(value):
        members = [(str(key), member) for key, member in value.items()]
    elif isinstance(value, (list, tuple)):
        members = [(str(number), member) for number, member in enumerate(value)]
    else:
        yield name, value
        return
    for key, member in members:
        yield from _leaves(f"{name}.{key}", member)


def _number(name: str, value: Any) -> float | None:
    if isinstance(value, (bool, int, float)):
        return value
    if name in COUNTS and isinstance(value, Lazy) and math.prod(value.shape) == 1:
        value = value.read()
    readable = isinstance(value, Tensor) and not unsupported_reason(value)
    if name in COUNTS and readable and value.numel() == 1:
        number: float = value.item()
        return number
    return None


def _lazy(value: Any) -> Lazy | None:
    """Return a lazy form of `value`, or None if a snapshot cannot hold it."""
    if isinstance(value, Lazy):
        return value if value.dtype in DTYPES else None
    if is_packed(value):
        # Imported here because reading plain captures needs no quantizer.
        from qmaps.algebra.saved import from_plain

        if isinstance(value["packed"], Lazy):  # of a folder, read when it is asked for
            plain = value

            def codes() -> QuantizedTensor:
                return from_plain(in_memory(plain))

            shape = shape_of(plain)
            return Lazy(
                shape, torch.float32, lambda: codes().dequantize(), quantized=True, codes=codes
            )
        value = from_plain(value)
    if isinstance(value, Tensor):
        if type(value) in (Tensor, torch.nn.Parameter):
            plain = value.layout is torch.strided and not value.is_meta
            return Lazy.of(value) if plain and value.dtype in DTYPES else None
        if type(value).dequantize is Tensor.dequantize:
            return None  # for example a shard of a distributed tensor
    if callable(getattr(value, "dequantize", None)) and hasattr(value, "shape"):
        return Lazy(
            tuple(value.shape), torch.float32, lambda: value.dequantize().float(), quantized=True
        )
    return None


def _kind(value: Any) -> str:
    if isinstance(value, Lazy):
        return str(value.dtype).removeprefix("torch.")
    if type(value) in (Tensor, torch.nn.Parameter):
        return f"{value.dtype} {value.layout}".replace("torch.", "")
    return type(value).__name__
