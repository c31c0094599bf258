"""adafactor8bit: second moments evenly spaced in their logarithm, first moments in 8 or 4 bits."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from qmaps.capture.coded_states.base import About, Coded, blocks, halves, lazy, tensor
from qmaps.errors import BadValueError

CODES = "_q"
PARTS = ("_scale", "_min_log", "_shape", "_pad")
SETTINGS = {"is_quantized", "block_size", "m_block_size"} | {f"{x}_quant_type" for x in "mvc"}
FIRST = ("m", "m_low")
"""First moments, whose names have no shape beside them: `m_low` is that of a projected gradient."""

LOWEST = -126.0
"""Logarithm of code 0 in version 0.1."""


class Adafactor8bit(Coded):
    """`Adafactor8Bit` of versions 0.1 and 0.4.

    Version 0.4 has code 0 for zero, and else 2^((q - 1) * scale / 254 + min_log) in blocks (with
    65534 for 16 bits). Version 0.1 has 2^(q * scale / 255 - 126), where `scale` has been divided by
    255 before: all its second moments decode to less than 2^-125, in the package as here.
    """

    name: ClassVar[str] = "adafactor8bit"

    def recognizes(self, state: Mapping[Any, Any]) -> bool:
        """Return True for a first or second moment in codes."""
        return "is_quantized" in state and any(str(name).endswith(CODES) for name in state)

    def decoded(self, state: Mapping[Any, Any], about: About) -> Mapping[Any, Any]:
        """See `Coded.decoded`."""
        coded = [str(n).removesuffix(CODES) for n, x in state.items() if str(n).endswith(CODES)]
        coded = [name for name in coded if f"{name}_scale" in state]
        parts = {f"{name}{part}" for name in coded for part in (CODES, *PARTS)} | SETTINGS
        plain = {name: value for name, value in state.items() if name not in parts}
        for name in coded:
            parts_of = {p: state.get(f"{name}{p}") for p in (CODES, *PARTS)}
            if parts_of[CODES] is None:  # before the first step
                continue
            if name in FIRST:
                kind = str(state.get("m_quant_type", "uf8"))
                shape: Any = about.shape or _shape(state, name)
                decode = partial(_first, parts_of[CODES], parts_of["_scale"], kind, shape)
            else:
                shape = parts_of["_shape"]
                decode = partial(_second, parts_of, shape)
            plain[name] = lazy(shape, decode)
        return plain


def _shape(state: Mapping[Any, Any], name: str) -> tuple[int, ...]:
    """The shape of a first moment, that of its second moment."""
    low = "_low" if name.endswith("_low") else ""
    whole = "v_low" if low else "variance"
    for shape in (state.get(f"{whole}_shape"), getattr(state.get(whole), "shape", None)):
        if shape is not None:
            return tuple(shape)
    row, column = (
        tuple(state.get(f"{side}_var{low}_shape") or state[f"{side}_var{low}"].shape)
        for side in ("row", "col")
    )
    return (*row[:-1], column[-1])


def _first(codes: Any, scales: Any, kind: str, shape: tuple[int, ...]) -> Tensor:
    q, s = tensor(codes), tensor(scales)
    if kind not in ("uf8", "uf4", "d8", "d4"):
        raise BadValueError(f"m_quant_type={kind!r} is not known; known are uf8, uf4, d8, d4")
    if kind.endswith("4"):
        q = halves(q)
    if kind[0] == "d":
        q = _codebook(int(kind[-1]))[q.long()]
    else:
        half = 2 ** (int(kind[-1]) - 1)  # two's complement, moved by half
        q, s = q.float() - half, s / half
    values = (blocks(q, s) * s.unsqueeze(-1)).reshape(-1)
    return values[: torch.Size(shape).numel()]


def _codebook(bits: int) -> Tensor:
    """Signed `DE`, whose last bits here are those of bitsandbytes' formula in float32."""
    values = [0.0, 1.0]
    for count in range(bits - 1):
        ends = torch.linspace(0.1, 1, 2**count + 1, dtype=torch.float32)
        decade = 10 ** (count - (bits - 2))
        means = (decade * ((ends[:-1] + ends[1:]) / 2)).tolist()
        values += [*means, *(-mean for mean in means)]
    return torch.tensor(sorted(values), dtype=torch.float32)


def _second(parts: Mapping[str, Any], shape: Any) -> Tensor:
    codes, s = tensor(parts[CODES]), tensor(parts["_scale"])
    q, scale = blocks(codes, s), s.reshape(-1).unsqueeze(-1)
    if parts["_min_log"] is None:
        values = torch.pow(2.0, q.float() * scale / 255.0 + LOWEST)
    else:
        largest = 255.0
        x = q.float()
        if q.dtype == torch.int16:
            largest, x = 65535.0, torch.where(x < 0, x + 65536.0, x)
        low = tensor(parts["_min_log"]).reshape(-1).unsqueeze(-1)
        values = torch.pow(2.0, (x - 1.0) * scale / (largest - 1.0) + low)
        values[q == 0] = 0.0
    return values.reshape(-1)[: torch.Size(shape).numel()]
