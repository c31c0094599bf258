"""Codebooks of users, and the frozen form of fitted maps."""

from __future__ import annotations

import hashlib
import math
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from qmaps.errors import BadTypeError, BadValueError, check_int, shown
from qmaps.maps.base import REGISTRY, Map

LONGEST = 200
"""Characters of a label, at most."""


@dataclass(frozen=True, init=False)
class Codebook(Map):
    """A map given by its values.

    Args:
        values: 2 to 65536 finite, distinct numbers in any order; rounded to float32.
        bits: width of a code; the smallest that holds all values if left out.
        signed: whether negative inputs are allowed; if left out, whether a value is negative.
        label: the name shown in specs. ``qmaps.quantizer("B128/LABEL@4s", codebooks=[...])``
            reads it back. If left out, it is ``codebook-`` and a hash of the values, so that
            different codebooks have different specs.
        per_tensor: whether the codebook belongs to one tensor and is stored, and counted,
            with it. Fitted maps set this, and may hold equal values where the data has ties; of
            those the lowest code is taken.
    """

    codes: tuple[float, ...] = ()
    label: str = ""
    per_tensor: bool = False

    def __init__(
        self,
        values: Tensor | Iterable[float],
        *,
        bits: int | None = None,
        signed: bool | None = None,
        label: str | None = None,
        per_tensor: bool = False,
    ) -> None:
        codes = _numbers(values)
        if not 2 <= len(codes) <= 65536:
            raise BadValueError(f"values has {len(codes)} entries; 2 to 65536 are allowed")
        if not all(map(math.isfinite, codes)):
            raise BadValueError("values holds NaN or infinity; only finite numbers are allowed")
        if not per_tensor and len(set(codes)) < len(codes):
            raise BadValueError("values holds equal numbers (as float32); they must be distinct")
        if signed is not None and not isinstance(signed, bool):
            raise BadTypeError(f"signed={shown(signed)} must be True, False or None")
        smallest = max(1, (len(codes) - 1).bit_length())
        negative = codes[0] < 0
        if signed is None:
            signed = negative
        if negative and not signed:
            raise BadValueError(
                f"values holds {codes[0]}, which is negative; an unsigned codebook has no negative "
                "values"
            )
        if label is None:
            label = f"codebook-{_digest(codes)}"
        if not isinstance(label, str):
            raise BadTypeError(f"label={shown(label)} must be a str")
        if not per_tensor and len(label) > LONGEST:
            raise BadValueError(
                f"label={shown(label)} has {len(label)} characters; at most {LONGEST} are allowed"
            )
        if not per_tensor and not re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]*", label):
            raise BadValueError(
                f"label={shown(label)} must be a letter followed by letters, digits, '_', '.' "
                "or '-'"
            )
        if label.lower() in {name.lower() for name in REGISTRY}:
            raise BadValueError(f"label={shown(label)} is the name of a built-in map")
        if bits is not None:
            check_int("bits", bits)
            if not smallest <= bits <= 16:
                raise BadValueError(
                    f"bits={shown(bits)} must be between {smallest} and 16 to hold {len(codes)} "
                    "values"
                )
        self.__dict__.update(  # as the dataclass is frozen
            bits=bits or smallest, signed=signed, codes=codes, label=label, per_tensor=per_tensor
        )

    @property
    def counted(self) -> bool:
        """True if the codebook is stored, and counted, with every tensor."""
        return self.per_tensor

    def values(self) -> Tensor:
        """The values given, ascending."""
        return torch.tensor(self.codes, dtype=torch.float64)

    @property
    def spec(self) -> str:
        """The label with width and sign; for a fitted map, the spec it was fitted from."""
        if self.counted:
            return self.label
        return f"{self.label}@{self.bits}{'s' if self.signed else 'u'}"


def _digest(codes: tuple[float, ...]) -> str:
    """Eight hexadecimal digits that depend on the values alone, equal on every machine."""
    return hashlib.sha256(struct.pack(f"<{len(codes)}f", *codes)).hexdigest()[:8]


def _numbers(values: Tensor | Iterable[float]) -> tuple[float, ...]:
    """The values as float32 in ascending order."""
    try:
        if not isinstance(values, Tensor):
            values = torch.tensor(list(values), dtype=torch.float64, device="cpu")
        if values.is_complex():
            raise TypeError("they are complex")
        # Adding 0 turns -0 into 0, so that equal codebooks decode to the same bits.
        return tuple((values.detach().cpu().float().reshape(-1) + 0.0).sort().values.tolist())
    except (OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise BadTypeError(
            f"values={shown(values)} must be a tensor or a sequence of numbers ({error})"
        ) from None
