"""Scales of whole tensors sharded over several processes.

A scale over several shards, such as a column's maximum under `rank1` where rows are split, is the
maximum over the shards. All maxima of a step go into one collective for each process group. The
ends of their grids, for formats such as 8-bit scales, go into a second one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from qmaps.engines.sharding.over_shards import largest_bits
from qmaps.engines.sharding.shards import Groups, Shard
from qmaps.normalize.base import Minimum, Normalizer, Scales, Shape
from qmaps.normalize.scale_format import ScaleFormat

_TOP = 0x7FFFFFFF


class Request(NamedTuple):
    """The scales of a local part, float32 and not yet stored in another format."""

    normalizer: Normalizer
    scales: Scales
    shard: Shard

    @staticmethod
    def of(normalizer: Normalizer, x: Tensor, shard: Shard) -> Request:
        """The request for `x`, the float32 local part of a tensor."""
        scales = tuple(scale for inner, _ in _leaves(normalizer) for scale in inner.scales(x))
        return Request(normalizer, scales, shard)


class SharedScales(NamedTuple):
    """The scales of a local part, as the whole tensor has them: as stored, and in float32."""

    stored: Scales
    floats: Scales


def spans_shards(normalizer: Normalizer, shard: Shard) -> bool:
    """Return True if some of the scales depend on other shards."""
    dims = len(shard.shape)
    extents = normalizer.extents(dims) or ()
    return any(not extent.block and shard.groups(extent.over(dims)) for extent in extents)


def unformatted_shapes(normalizer: Normalizer, shape: Shape) -> list[Shape]:
    """The shapes of the float32 scales of a tensor of `shape`, before they take another format."""
    return [size for inner, _ in _leaves(normalizer) for _, size in inner.layout(shape)]


def shared_scales(requests: Sequence[Request]) -> list[SharedScales]:
    """The scales of local parts, as the whole tensors have them.

    Every process of the groups must make the same requests in the same order.
    """
    by_request = [list(_Leaf.all_of(request)) for request in requests]
    leaves = [leaf for same in by_request for leaf in same]
    wide = [(leaf, number, groups) for leaf in leaves for number, groups in leaf.wide()]
    bits = [(groups, leaf.scales[number].abs().view(torch.int32)) for leaf, number, groups in wide]
    for (leaf, number, _), largest in zip(wide, _largest(bits), strict=True):
        leaf.scales[number] = largest.view(torch.float32)

    formatted = [leaf for leaf in leaves if leaf.format is not None]
    sharing = [leaf for leaf in formatted if leaf.shares]
    ends = iter(_largest([(leaf.request.shard.groups(), leaf.end_bits()) for leaf in sharing]))
    for leaf in formatted:
        leaf.finish(next(ends) if leaf.shares else None)

    joined = []
    for parts in by_request:
        stored = tuple(scale for leaf in parts for scale in leaf.scales)
        joined.append(SharedScales(stored, tuple(s for leaf in parts for s in leaf.floats())))
    return joined


def _largest(bits: Sequence[tuple[Groups, Tensor]]) -> list[Tensor]:
    """`largest_bits` of tensors over groups of their own, in one collective for each group."""
    tensors: dict[Groups, list[Tensor]] = defaultdict(list)
    for groups, tensor in bits:
        tensors[groups].append(tensor)
    largest = {groups: iter(largest_bits(same, groups)) for groups, same in tensors.items()}
    return [next(largest[groups]) for groups, _ in bits]


def _leaves(normalizer: Normalizer) -> list[tuple[Normalizer, ScaleFormat | None]]:
    """The normalizers of a minimum, or the only one: each without its format, and the format."""
    parts = normalizer.parts if isinstance(normalizer, Minimum) else (normalizer,)
    return [(part.inner, part) if isinstance(part, ScaleFormat) else (part, None) for part in parts]


@dataclass
class _Leaf:
    """A normalizer other than a minimum, and its computed scales."""

    request: Request
    inner: Normalizer
    format: ScaleFormat | None
    scales: list[Tensor]

    @staticmethod
    def all_of(request: Request) -> Iterator[_Leaf]:
        scales, dims = iter(request.scales), len(request.shard.shape)
        for inner, format_ in _leaves(request.normalizer):
            count = len(inner.extents(dims) or ())
            yield _Leaf(request, inner, format_, list(islice(scales, count)))

    def floats(self) -> Scales:
        """The values of the stored scales in float32."""
        scales = tuple(self.scales)
        return scales if self.format is None else self.format.read(scales)

    @property
    def shares(self) -> bool:
        """True if its format depends on the scales of all shards."""
        return self.format is not None and self.format.shared > 0

    def wide(self) -> list[tuple[int, Groups]]:
        """Scales over several shards, with their process groups."""
        dims = len(self.request.shard.shape)
        numbered = [
            (number, self.request.shard.groups(extent.over(dims)))
            for number, extent in enumerate(self.inner.extents(dims) or ())
            if not extent.block
        ]
        return [(number, groups) for number, groups in numbered if groups]

    def end_bits(self) -> Tensor:
        """Bits of the ends of the local grid; their maxima are the whole grid's."""
        assert self.format is not None
        bits = self.format.ends(self.scales).abs().view(torch.int32)
        # No scale but zeros: anything is below its lower end.
        low = torch.where(bits[1] == 0, 0, _TOP - bits[0])
        return torch.stack([low, bits[1]])

    def finish(self, bits: Tensor | None) -> None:
        """Store the scales in their format; `bits` are those of `end_bits` over all shards."""
        assert self.format is not None
        if bits is None:
            ends = torch.zeros(2, dtype=torch.float32)
        else:
            low = torch.where(bits[1] == 0, 0, _TOP - bits[0])
            ends = torch.stack([low, bits[1]]).to(torch.int32).view(torch.float32)
            # NaN wins both comparisons, as without shards.
            ends = torch.where(ends[1].isnan(), ends[1], ends)
        self.scales = list(self.format.stored(self.scales, ends))
