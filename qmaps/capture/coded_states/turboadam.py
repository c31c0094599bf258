"""turboadam: a first moment of 2 bits in units of the update, and a second one in its logarithm."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from qmaps.algebra import packing
from qmaps.capture.coded_states.base import About, Coded, lazy, tensor
from qmaps.capture.snapshot import Lazy
from qmaps.errors import BadValueError

FIRST, SECOND = "ustate", "v_state"


class TurboAdam(Coded):
    """`TurboAdam`: v is exp of a point between the logarithms of its block's ends, in float16.

    The first moment is stored as u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps): a mean
    for each block of 64, and of the rest one of four levels, less the mean of the levels.
    """

    name: ClassVar[str] = "turboadam"

    def recognizes(self, state: Mapping[Any, Any]) -> bool:
        """Return True for one of both moments in codes."""
        return FIRST in state or SECOND in state

    def decoded(self, state: Mapping[Any, Any], about: About) -> Mapping[Any, Any]:
        """See `Coded.decoded`."""
        known = {FIRST, SECOND, "_use_ustate", "_use_v_state"}
        plain = {name: value for name, value in state.items() if name not in known}
        second = state.get(SECOND)
        if second is None:
            v = state["exp_avg_sq"]
            shape, decode = tuple(v.shape), partial(tensor, v)
        else:
            shape = tuple(second["original_shape"])
            decode = partial(_second, second)
            plain["exp_avg_sq"] = lazy(shape, decode)
        if FIRST in state:
            options = (state["step"], about.group["betas"], about.group["eps"])
            plain["exp_avg"] = lazy(shape, partial(_first, state[FIRST], decode, *options))
        return plain


def _unpacked(codes: Any, bits: int, count: int) -> Tensor:
    packed = tensor(codes).reshape(-1)
    if packed.numel() != packing.packed_bytes(count, bits):
        raise BadValueError(f"{packed.numel()} bytes do not hold {count} codes of {bits} bits")
    return packing.unpack(packed, bits, count)


def _second(state: Mapping[str, Any]) -> Tensor:
    bits, size, ends = int(state["n_bits"]), int(state["block_size"]), tensor(state["scales"])
    codes = _unpacked(state["indices"], bits, ends.shape[0] * size)
    place = codes.reshape(-1, size).float() / float(2**bits - 1)
    low, high = (ends[:, side].float().unsqueeze(1) for side in (0, 1))
    values = torch.exp(low + place * (high - low))
    return values.reshape(-1)[: int(state["original_length"])].reshape(state["original_shape"])


def _first(state: Mapping[str, Any], second: Any, step: Any, betas: Any, eps: float) -> Tensor:
    t, v = int(step.read() if isinstance(step, Lazy) else step), second().float()
    if t < 1:
        return torch.zeros_like(v)
    count, size = int(state["original_numel"]), int(state["mean_block_size"])
    storage = int(state["storage_block_size"])
    means = tensor(state["means"]).float().reshape(-1, 1)
    codes = _unpacked(state["codes"], 2, -(-count // storage) * storage)
    levels = codes[: means.numel() * size].reshape(-1, size).float() - 1.5
    rest = levels * tensor(state["decode_step"]).float().reshape(())
    last = count - (means.numel() - 1) * size
    rest[-1, last:] = 0
    sizes = torch.full((means.numel(),), float(size), dtype=torch.float32)
    sizes[-1] = last
    rest -= (rest.sum(dim=1) / sizes).unsqueeze(1)
    u = (means + rest).reshape(-1)[:count].reshape(v.shape)
    denominator = v.clamp_min(0).sqrt().div_(math.sqrt(1.0 - float(betas[1]) ** t)).add_(eps)
    return u.mul_(1.0 - float(betas[0]) ** t).mul_(denominator)
