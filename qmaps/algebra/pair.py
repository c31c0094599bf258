"""The quantizers of Adam's two moments, taken together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from qmaps.algebra.quantizer import Quantizer, quantizer
from qmaps.errors import BadTypeError, BadValueError, SpecError, shown
from qmaps.float32 import sqrt
from qmaps.maps.base import Map
from qmaps.maps.codebook import Codebook

UNQUANTIZED = "32-bit"


@dataclass(frozen=True)
class Pair:
    """Quantizers of the first and the second moment; None keeps a moment in 32 bits.

    Written ``"B128/DE@4s + rank1/linear@4u"``, with spaces around the plus sign and
    ``32-bit`` for None.

    >>> str(Pair.parse("b128/de@4s + 32-bit"))
    'B128/DE@4s + 32-bit'
    """

    first: Quantizer | None
    second: Quantizer | None

    @staticmethod
    def parse(
        pair: Pair | str | tuple[str | Quantizer | None, str | Quantizer | None],
        codebooks: Iterable[Codebook] = (),
    ) -> Pair:
        """Pair of a spec, or of a tuple of two specs or quantizers.

        Args:
            pair: ``"FIRST + SECOND"``, or a tuple of two specs or quantizers, in which None
                stands for 32 bits like ``"32-bit"``. A `Pair` is returned as it is.
            codebooks: maps of your own, found in specs by their label.

        Raises:
            SpecError: not two parts, or a part cannot be parsed.
            BadTypeError: `pair` is neither a str, a tuple nor a `Pair`.
        """
        if isinstance(pair, Pair):
            return pair
        parts: tuple[str | Quantizer | None, ...]
        if isinstance(pair, str):
            parts = tuple(re.split(r"\s+\+\s+", pair.strip()))
        elif isinstance(pair, tuple):
            parts = pair
        else:
            raise BadTypeError(
                f"pair={shown(pair)} must be 'FIRST + SECOND' or a tuple of two specs"
            )
        if len(parts) != 2:
            raise SpecError(
                f"pair={shown(pair)} has {len(parts)} parts; expected 'FIRST + SECOND' with "
                f"spaces around '+' and {UNQUANTIZED} for a moment that is not quantized"
            )
        books = tuple(codebooks)
        first, second = (
            None if part is None or part == UNQUANTIZED else quantizer(part, books)
            for part in parts
        )
        return Pair(first, second)

    @property
    def spec(self) -> str:
        """The canonical form; `parse` reads it back."""
        return f"{spec_of(self.first)} + {spec_of(self.second)}"

    def __str__(self) -> str:
        return self.spec


Keyed = TypeVar("Keyed", Pair, Quantizer, Map)


def listed(specs: Any) -> Sequence[Any]:
    """Specs as a list: one alone counts as a list of one.

    Raises:
        BadTypeError: `specs` is neither a spec nor an iterable of them.

    >>> listed("B128/DE@4s")
    ['B128/DE@4s']
    """
    if isinstance(specs, (str, Quantizer, Pair)):
        return [specs]
    if not isinstance(specs, Iterable):
        raise BadTypeError(
            f"specs={shown(specs)} must be a spec such as 'B128/DE@4s', or a list of them"
        )
    return list(specs)


def distinct(keyed: Iterable[Keyed]) -> list[Keyed]:
    """Pairs, quantizers or maps, each once, for results whose rows are named by specs.

    Raises:
        BadValueError: different ones have the same spec, as two codebooks with one label have.

    >>> one, other = Codebook([-1, 0, 1], label="mine"), Codebook([-1, 0.5, 1], label="mine")
    >>> [str(map_) for map_ in distinct([one, one])]
    ['mine@2s']
    >>> distinct([one, other])
    Traceback (most recent call last):
    qmaps.errors.BadValueError: two different codebooks have the spec 'mine@2s'; ...
    """
    each = list(dict.fromkeys(keyed))
    known: dict[str, Quantizer | Map] = {}
    for entry in each:
        for part in (entry.first, entry.second) if isinstance(entry, Pair) else (entry,):
            # Specs are read without regard to case.
            if part is not None and known.setdefault(part.spec.lower(), part) != part:
                raise BadValueError(
                    f"two different codebooks have the spec {part.spec!r}; each needs its own label"
                )
    return each


def spec_of(q: Quantizer | None) -> str:
    """The spec of a quantizer or of none."""
    return UNQUANTIZED if q is None else q.spec


def adam_update(m: Tensor, v: Tensor, eps: float) -> Tensor:
    """``u = m / (sqrt(v) + eps)``, the Adam update without bias correction, in float32.

    Where `v` and `eps` are 0 it is infinite, or NaN if `m` is 0 too.

    Source: 8-bit optimizers, equation 2 and appendix C.
    """
    return m / (sqrt(v) + eps)


def zero_points(m: Tensor, v: Tensor, exact: Tensor) -> Tensor:
    """Mark zero points, where v decodes to 0 and m does not; the next update may be m / eps there.

    Where `exact`, the second moment before it was encoded, is 0, nothing is lost.
    """
    return (exact != 0) & (v == 0) & (m != 0)
