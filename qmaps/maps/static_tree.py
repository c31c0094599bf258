"""The static tree of 2015: a bisection tree under an exponent of fixed width."""

from dataclasses import dataclass

from torch import Tensor

from qmaps.maps.base import Map, check_range, mirror
from qmaps.maps.tree import bisection


@dataclass(frozen=True)
class StaticTree(Map, name="static-tree"):
    """A bisection tree of [0.1, 1] and a base-10 exponent, both of fixed width.

    ``10**(offset - E)`` times the ``2**tree_bits`` leaves of the tree, for every E that the
    bits left after sign and tree can hold. Holds no zero. With ``offset=0`` it fits values
    normalized to [-1, 1] or [0, 1].

    Attributes:
        tree_bits: depth of the tree; at least one bit is left for the exponent.
        offset: decimal exponent added to every value. The paper normalizes nothing and uses
            the offset to reach the range of gradients or activations.

    Source: 8-bit approximations for parallelism, section 2 ("static tree").
    """

    tree_bits: int = 3
    offset: int = 0

    def __post_init__(self) -> None:
        check_range("tree_bits", self.tree_bits, 1, 6)
        check_range("offset", self.offset, -30, 30)
        super().__post_init__()

    def widths(self, signed: bool) -> range:
        return range(signed + self.tree_bits + 1, 9)

    def values(self) -> Tensor:
        exponents = range(2 ** (self.bits - self.signed - self.tree_bits))
        leaves = bisection(self.tree_bits)
        magnitudes = [leaf * 10.0 ** (self.offset - e) for e in exponents for leaf in leaves]
        return mirror(magnitudes, signed=self.signed)
