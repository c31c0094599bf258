"""Scales of whole tensors that several processes keep in shards.

A scale that spans shards, such as a column's maximum under `rank1` where rows are split, is the
maximum over the shards. All maxima of a step go into one collective for each process group. The
ends of 8-bit grids of scales, which depend on them, go into a second one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from qmaps.distributed.over_shards import largest_bits
from qmaps.distributed.shards import Groups, Shard
from qmaps.normalize.base import Normalizer, Scales
from qmaps.normalize.eight_bit import EightBit
from qmaps.normalize.minimum import Minimum

_TOP = 0x7FFFFFFF


class Request(NamedTuple):
    """A tensor whose scales are wanted.

    Attributes:
        normalizer: computes the scales.
        x: the local part of the tensor, float32.
        shard: what part of the whole tensor `x` is.
    """

    normalizer: Normalizer
    x: Tensor
    shard: Shard


def spans_shards(normalizer: Normalizer, shard: Shard) -> bool:
    """Whether some of the scales depend on other shards."""
    dims = len(shard.shape)
    extents = normalizer.extents(dims) or ()
    return any(not each.block and shard.groups(each.over(dims)) for each in extents)


def shared_scales(requests: Sequence[Request]) -> list[Scales]:
    """The scales of local parts, as the whole tensors have them.

    Every process of the groups must make the same requests in the same order.

    Args:
        requests: the local tensors with their normalizers.

    Returns:
        The scales of each request, in the parts that its normalizer's `layout` describes for the
        local shape.
    """
    leaves = [_Leaf.of(request, each) for request in requests for each in _leaves(request)]
    bits: dict[Groups, list[Tensor]] = defaultdict(list)
    for leaf in leaves:
        for number, groups in leaf.wide():
            bits[groups].append(leaf.scales[number].abs().view(torch.int32))
    found = {groups: iter(largest_bits(given, groups)) for groups, given in bits.items()}
    for leaf in leaves:
        for number, groups in leaf.wide():
            leaf.scales[number] = next(found[groups]).view(torch.float32)

    bits = defaultdict(list)
    eight = [(leaf, leaf.request.shard.groups()) for leaf in leaves if leaf.eight is not None]
    for leaf, groups in eight:
        bits[groups].append(leaf.end_bits())
    found = {groups: iter(largest_bits(given, groups)) for groups, given in bits.items()}
    for leaf, groups in eight:
        leaf.finish(next(found[groups]))

    results = iter(leaves)
    return [
        tuple(scale for _ in _leaves(request) for scale in next(results).scales)
        for request in requests
    ]


def _leaves(request: Request) -> tuple[Normalizer, ...]:
    normalizer = request.normalizer
    return normalizer.parts if isinstance(normalizer, Minimum) else (normalizer,)


@dataclass
class _Leaf:
    """A normalizer that is not a minimum of others, and its scales as far as they are computed."""

    request: Request
    inner: Normalizer
    eight: EightBit | None
    scales: list[Tensor]

    @staticmethod
    def of(request: Request, normalizer: Normalizer) -> _Leaf:
        eight = normalizer if isinstance(normalizer, EightBit) else None
        inner = normalizer if eight is None else eight.inner
        return _Leaf(request, inner, eight, list(inner.scales(request.x)))

    def wide(self) -> list[tuple[int, Groups]]:
        """Which scales span shards, and over which groups."""
        dims = len(self.request.shard.shape)
        found = [
            (number, self.request.shard.groups(extent.over(dims)))
            for number, extent in enumerate(self.inner.extents(dims) or ())
            if not extent.block
        ]
        return [(number, groups) for number, groups in found if groups]

    def end_bits(self) -> Tensor:
        """The ends of the local grid, so that the largest bits are those of the whole grid's."""
        assert self.eight is not None
        bits = self.eight.ends(self.scales).abs().view(torch.int32)
        # No scale but zeros: anything is below its lower end.
        low = torch.where(bits[1] == 0, 0, _TOP - bits[0])
        return torch.stack([low, bits[1]])

    def finish(self, bits: Tensor) -> None:
        """Round scales up to the grid between these ends."""
        assert self.eight is not None
        low = torch.where(bits[1] == 0, 0, _TOP - bits[0])
        ends = torch.stack([low, bits[1]]).to(torch.int32).view(torch.float32)
        # NaN wins both comparisons, as without shards.
        ends = torch.where(ends[1].isnan(), ends[1], ends)
        self.scales = list(self.eight.stored(self.scales, ends))
