"""FlashOptim, and FlashAdamW of pytorch-optimizer: groups of 32, softsign and square roots."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from qmaps.capture.coded_states.base import About, Coded, lazy, tensor
from qmaps.errors import BadValueError

CODES, SCALES = "::quantized", "::scales"
GROUP = 32
REMAINDER = "error_bits"
"""Lower bits of the parameter, which a state_dict holds in the parameter's dtype."""


class FlashOptim(Coded):
    """int8 codes q of y / (2 - abs(y)) with y = q / 127, or uint8 codes of (q / 255)^2.

    Scales are float16, those of uint8 codes of the square root. Beside bfloat16 parameters they are
    stored with the dtype bfloat16, but have the bits of float16.
    """

    name: ClassVar[str] = "flashoptim"

    def recognizes(self, state: Mapping[Any, Any]) -> bool:
        """Return True if a name ends with ``::quantized``, or for a live optimizer's objects."""
        return any(str(n).endswith(CODES) or _is_live(x) for n, x in state.items())

    def decoded(self, state: Mapping[Any, Any], about: About) -> Mapping[Any, Any]:
        """See `Coded.decoded`; lower bits of parameters become integers again."""
        plain: dict[Any, Any] = {}
        for name, value in state.items():
            if str(name).endswith(CODES):
                own = str(name).removesuffix(CODES)
                plain[own] = lazy(value.shape, partial(_values, value, state[own + SCALES]))
            elif _is_live(value):
                plain[name] = lazy(value.shape, value.materialize)
            elif name == REMAINDER and value.dtype.is_floating_point:
                is_narrow = about.group.get("master_bytewidth") == value.dtype.itemsize + 1
                bits = tensor(value)
                plain[name] = bits.to(torch.int8) if is_narrow else bits.view(torch.int16)
            elif not str(name).endswith(SCALES):
                plain[name] = value
        return plain


def _is_live(value: Any) -> bool:
    """True for the object of a state, quantized or not, in an optimizer in memory."""
    return hasattr(value, "materialize") and hasattr(value, "is_quantized")


def _values(codes: Any, scales: Any) -> Tensor:
    q, s = tensor(codes), tensor(scales)
    if q.dtype not in (torch.int8, torch.uint8) or s.dtype not in (torch.float16, torch.bfloat16):
        raise BadValueError(f"codes of {q.dtype} and scales of {s.dtype} are not FlashOptim's")
    if s.numel() != -(-q.numel() // GROUP):
        raise BadValueError(f"{q.numel()} codes do not fit {s.numel()} scales of {GROUP} each")
    s = s.view(torch.float16).float().repeat_interleave(GROUP)[: q.numel()]
    y = q.reshape(-1).float()
    if q.dtype == torch.int8:
        y = y / 127
        return y / (2 - y.abs()) * s
    x = y / 255 * s
    return x * x
