"""gefen: a learned codebook for the first moment, and one mean per block for the second."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from torch import Tensor

from qmaps.capture.coded_states.base import About, Coded, blocks, lazy, tensor
from qmaps.errors import BadValueError

CODES, SCALES, MEANS = "m_codebook", "m_magnitude", "vmean"
CODEBOOKS = ("gefen_codebook", "_gefen_codebook")
"""Entry of a state_dict, and attribute of an optimizer, with the codebook of all parameters."""


class Gefen(Coded):
    """`Gefen` and `GefenMuon`: codes into the codebook times a scale per block, and block means.

    The first moment becomes ``exp_avg``; the second one, ``exp_avg_sq``, has its block's mean for
    every element. A state_dict has the shape of a parameter only with ``parameter_shape``, which
    some options add; states of others are 1-D.
    """

    name: ClassVar[str] = "gefen"
    beside: ClassVar[tuple[str, ...]] = CODEBOOKS[:1]

    def recognizes(self, state: Mapping[Any, Any]) -> bool:
        """Return True for codes with a scale."""
        return CODES in state and SCALES in state

    def decoded(self, state: Mapping[Any, Any], about: About) -> Mapping[Any, Any]:
        """See `Coded.decoded`."""
        known = {CODES, SCALES, MEANS, "m_codebook_shape", "parameter_shape"}
        plain = {name: value for name, value in state.items() if name not in known}
        count = state[CODES].shape[0] * state[CODES].shape[1]
        shape = about.shape or state.get("parameter_shape") or (count,)
        codebook = next((about.rest[key] for key in CODEBOOKS if key in about.rest), None)
        plain["exp_avg"] = lazy(shape, partial(_first, state[CODES], state[SCALES], codebook))
        if MEANS in state:
            plain["exp_avg_sq"] = lazy(shape, partial(_second, state[MEANS], count))
        return plain


def _first(codes: Any, scales: Any, codebook: Any) -> Tensor:
    if codebook is None:
        raise BadValueError("the codebook of gefen, gefen_codebook, is missing in the state_dict")
    s = tensor(scales).float()
    coefficients = tensor(codebook)[tensor(codes).long()].to(tensor(scales).dtype)
    return blocks(coefficients.float(), s) * s.reshape(-1, 1)


def _second(means: Any, count: int) -> Tensor:
    v = tensor(means).float().reshape(-1, 1)
    return v.expand(-1, count // v.numel()).reshape(-1)
