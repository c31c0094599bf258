"""The quantizers that a design compares: with known maps, and with codebooks of its own."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np

from qmaps import maps
from qmaps.algebra.quantizer import Quantizer
from qmaps.analyze.design.codebook import SQUARED, best, of_inverse_root
from qmaps.analyze.design.samples import Look, samples
from qmaps.maps.base import Map
from qmaps.maps.codebook import Codebook
from qmaps.maps.linear import Linear
from qmaps.normalize.base import Normalizer
from qmaps.normalize.block import BlockWise
from qmaps.normalize.eight_bit import EightBit
from qmaps.normalize.rank1 import Rank1

NAMES = ("first", "second")
"""The moments, as labels of codebooks name them. The first is signed."""
MAPS = (("DE", "linear0", "linear", "nf4", "power2"), ("DE-0", "linear", "power2", "power3", "DE"))
"""Maps of the papers for each moment, as far as they have the width."""
NORMALIZERS = (("B128",), ("B128", "rank1"))
"""Normalizers of the papers for each moment below 8 bits."""
WIDE = ("B256", "B2048")
"""Normalizers of the papers and of common practice at 8 bits."""
PAIRS = (("B128/DE", "rank1/linear"), ("B128/DE", "B128/DE-0"), ("B128/DE", "B128/DE"))
WIDE_PAIRS = (("B256/DE", "B256/DE-0"), ("B2048/DE", "B2048/DE"))
"""Pairs of the papers and of the presets, below 8 bits and at 8 bits."""
SIZES = tuple(2**power for power in range(4, 13))
"""Block sizes that are considered."""
OF_EACH = 2
"""How many block sizes are tried with float32 scales, and with scales in 8 bits."""

Shapes = Sequence[tuple[int, ...]]


def bits_of(q: Quantizer, shapes: Shapes) -> float:
    """Bits per element that a quantizer takes on tensors of these shapes, scales included."""
    return 8 * sum(q.nbytes(shape) for shape in shapes) / sum(map(math.prod, shapes))


def within(bits: float, most: float, codes: float) -> bool:
    """Whether bits per element are at most `most`, up to a twentieth of the bits for scales.

    On small tensors, ragged blocks and the ends of the grid of scales in 8 bits take a little more.

    Args:
        bits: bits per element, scales included.
        most: the limit.
        codes: bits per element of the codes alone.
    """
    return bits - codes <= 1.05 * (most - codes)


def known_maps(moment: int, bits: int) -> list[Map]:
    """The papers' maps of a width.

    Args:
        moment: 0 for the first, which is signed; 1 for the second.
        bits: width of a code.
    """
    signed = moment == 0
    classes = [maps.REGISTRY[name] for name in MAPS[moment]]
    return [cls(bits, signed) for cls in classes if bits in cls.widths_of(signed)]


def known(moment: int, bits: int) -> list[str]:
    """Specs of the papers' maps and normalizers, rounded to nearest and stochastically."""
    return [
        f"{norm}/{map_}{rounding}"
        for norm in (WIDE if bits >= 8 else NORMALIZERS[moment])
        for map_ in known_maps(moment, bits)
        for rounding in ("", "+sr")
    ]


def known_pairs(widths: tuple[int, int]) -> list[str]:
    """Specs of the papers' pairs at these widths, the first moment rounded either way."""
    chosen = WIDE_PAIRS if min(widths) >= 8 else PAIRS
    return [f"{a}@{widths[0]}s{r} + {b}@{widths[1]}u" for a, b in chosen for r in ("", "+sr")]


def normalizers(
    moment: int, bits: int, shapes: Shapes, most: float
) -> tuple[list[Normalizer], float]:
    """The normalizers of designed codebooks that leave the bits per element within a limit.

    These are the smallest blocks, with float32 scales and with scales in 8 bits, and for the second
    moment `rank1`.

    Args:
        moment: 0 for the first, 1 for the second.
        bits: width of a code.
        shapes: shapes of the parameters.
        most: most bits per element, scales included.

    Returns:
        Those that fit, and the fewest bits per element that one takes.
    """
    blocks = [BlockWise(size) for size in SIZES]
    families: list[list[Normalizer]] = [[*blocks], [EightBit(block) for block in blocks]]
    if moment == 1:
        families.append([Rank1()])
    sizes = {n: bits_of(n / Linear(bits, moment == 0), shapes) for each in families for n in each}
    fitting = ([n for n in family if within(sizes[n], most, bits)] for family in families)
    return [n for family in fitting for n in family[:OF_EACH]], min(sizes.values())


def designed(
    moment: int, bits: int, norms: Sequence[Normalizer], looks: Sequence[Look], beta: float
) -> list[Quantizer]:
    """Quantizers with codebooks for one moment, for either rounding.

    Args:
        moment: 0 for the first, 1 for the second.
        bits: width of a code.
        norms: the normalizers.
        looks: what the moments are.
        beta: the moment's decay.

    Returns:
        Two quantizers for each normalizer, but none that rounds second moments to nearest under
        scales in 8 bits: these are rounded up in every step, and the largest element of a block,
        whose code stays 1, grows with its scale. The label of a codebook, such as
        ``first-3fa9c1``, holds a digest of its values.
    """
    signed = moment == 0
    loss = SQUARED if signed else of_inverse_root(beta)
    found = []
    for norm in norms:
        values = samples(looks, moment, norm)
        for stochastic in (False, True):
            if not (signed or stochastic) and isinstance(norm, EightBit):
                continue
            codes = best(
                values, 2**bits, loss=loss, beta=beta, stochastic=stochastic, signed=signed
            )
            distinct = np.unique(codes.astype(np.float32))
            label = f"{NAMES[moment]}-{hashlib.sha256(distinct.tobytes()).hexdigest()[:6]}"
            book = Codebook(distinct.tolist(), bits=bits, signed=signed, label=label)
            found.append(Quantizer(norm, book, stochastic))
    return found
