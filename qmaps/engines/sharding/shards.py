"""Shards: this process's part of a whole tensor.

A `DTensor` (``fully_shard``, HSDP, tensor parallelism) has a mesh and placements. This module turns
them into a box: the position of the local tensor in the whole tensor, and the process groups of
the rest.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from qmaps.errors import BadValueError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Shape = tuple[int, ...]
Groups = tuple["ProcessGroup", ...]


def is_distributed(x: object) -> bool:
    """Return True if `x` is a DTensor."""
    module: Any = sys.modules.get(
        "torch.distributed.tensor"
    )  # if it is not imported, there are no DTensors
    return module is not None and isinstance(x, module.DTensor)


def is_flat(param: Tensor) -> bool:
    """Return True for a flat parameter of FullyShardedDataParallel (FSDP1), with many in it."""
    return getattr(param, "_fsdp_flattened", False)


def any_distributed(tensors: Iterable[Tensor]) -> bool:
    """Return True if any of these is a DTensor: `is_distributed` for many at once."""
    module: Any = sys.modules.get("torch.distributed.tensor")
    if module is not None:
        for cls in {*map(type, tensors)}:
            if issubclass(cls, module.DTensor):
                return True
    return False


def local(x: Tensor) -> Tensor:
    """The local tensor of a DTensor, the same object each time; any other tensor itself."""
    if not is_distributed(x):
        return x
    with torch.no_grad():
        part: Tensor = x.to_local()  # type: ignore[attr-defined]
    return part


class Box(NamedTuple):
    """The part of a whole tensor on the process of a global rank."""

    rank: int
    offsets: Shape
    sizes: Shape

    def of(self, x: Tensor) -> Tensor:
        """The part of `x`, a whole tensor, as a view."""
        return _narrowed(x, self.offsets, self.sizes)


@dataclass(frozen=True)
class Shard:
    """A box of a whole tensor: this process's part.

    Attributes:
        shape: the shape of the whole tensor.
        local_shape, offsets: the shape of the box, and the index of its first element.
        splits: for each mesh dimension, the tensor dimension split by it, or None.
        mesh: the DTensor's device mesh.
        strided: the mesh dimensions that split what later ones have left.
    """

    shape: Shape
    local_shape: Shape
    offsets: Shape
    splits: tuple[int | None, ...]
    mesh: Any
    strided: tuple[int, ...] = ()

    @property
    def first(self) -> int:
        """The row-major index of the box's first element in the whole tensor; 0 if it is empty."""
        index = 0
        for size, offset in zip(self.shape, self.offsets, strict=True):
            index = index * size + offset
        return index if math.prod(self.local_shape) else 0

    @property
    def runs(self) -> tuple[int, int] | None:
        """Length and distance of the runs of consecutive elements; None where there is one.

        Raises:
            BadValueError: runs have more than one distance.
        """
        box, shape = self.local_shape, self.shape
        if math.prod(box) == 0:
            return None
        cut = [dim for dim, (a, b) in enumerate(zip(box, shape, strict=True)) if a != b]
        if not cut or all(size == 1 for size in box[: cut[-1]]):
            return None
        inner = cut[-1]
        if any(dim and any(size > 1 for size in box[:dim]) for dim in cut[:-1]):
            raise BadValueError(
                f"a tensor of shape {shape} is split along the dimensions {cut}; stochastic "
                "rounding supports a split along one dimension, or along one dimension and the "
                "first"
            )
        return math.prod(box[inner:]), math.prod(shape[inner:])

    @property
    def by_rows(self) -> bool:
        """True if only the first dimension is split, on any process."""
        return all(dim in (None, 0) for dim in self.splits)

    def split_by(self, dims: Iterable[int] | None = None) -> tuple[int, ...]:
        """Mesh dimensions that split any of these dimensions, all by default."""
        wanted = None if dims is None else {dim % len(self.shape) for dim in dims}
        return tuple(
            number
            for number, dim in enumerate(self.splits)
            if dim is not None and (wanted is None or dim in wanted)
        )

    def groups(self, dims: Iterable[int] | None = None) -> Groups:
        """Process groups that split any of these dimensions, all by default."""
        return tuple(map(self.mesh.get_group, self.split_by(dims)))

    def boxes(self, numbers: Sequence[int]) -> tuple[Box, ...]:
        """The parts of this process and of those that differ from it in these mesh dimensions."""
        place = self.mesh.get_coordinate()
        index = [slice(None) if at in numbers else place[at] for at in range(len(place))]
        ranks = self.mesh.mesh[tuple(index)].flatten().tolist()
        places = tuple(None if at in numbers else place[at] for at in range(len(place)))
        counts = tuple(self.mesh.shape)
        parts = _parts(self.shape, self.splits, self.strided, counts, places)
        return tuple(Box(rank, *part) for rank, part in zip(ranks, parts, strict=True))

    def cut(self, x: Tensor) -> Tensor:
        """The box of `x`, a whole tensor, as a view."""
        return _narrowed(x, self.offsets, self.local_shape)

    def following(self, dims: Sequence[int | None]) -> Shard:
        """The box of a tensor with these of its dimensions; None for a dimension of size 1."""
        return Shard(
            tuple(1 if dim is None else self.shape[dim] for dim in dims),
            tuple(1 if dim is None else self.local_shape[dim] for dim in dims),
            tuple(0 if dim is None else self.offsets[dim] for dim in dims),
            tuple(
                None if split is None or split not in dims else list(dims).index(split)
                for split in self.splits
            ),
            self.mesh,
        )

    def of_rows(self, x: Tensor, *, split: bool) -> Shard:
        """The box of a local tensor, with rows split as this one's, or not at all."""
        local = tuple(x.shape)
        if not split:
            return Shard(local, local, (0,) * x.dim(), (None,) * len(self.splits), self.mesh)
        shape = (self.shape[0] if self.shape else 1, *local[1:])
        offsets = (self.offsets[0] if self.shape else 0, *([0] * (x.dim() - 1)))
        return Shard(shape, local, offsets, self.splits, self.mesh)

    def placements(self) -> list[Any]:
        """The placements of a DTensor with these splits."""
        from torch.distributed.tensor import Replicate
        from torch.distributed.tensor import Shard as Split

        return [Replicate() if split is None else Split(split) for split in self.splits]

    def distributed(self, x: Tensor) -> Tensor:
        """A DTensor with `x` as the local part."""
        from torch.distributed.tensor import DTensor

        placements = self.placements()
        stride = torch.empty(self.shape, dtype=x.dtype, device="meta").stride()
        joined: Tensor = DTensor.from_local(
            x, self.mesh, placements, run_check=False, shape=torch.Size(self.shape), stride=stride
        )
        return joined


def shard_of(x: Tensor) -> Shard | None:
    """The box of a DTensor's local tensor; None for other tensors.

    Raises:
        BadValueError: an optimizer cannot step a tensor with these placements.
    """
    if not is_distributed(x):
        return None
    tensor: Any = x
    shape, mesh = tuple(tensor.shape), tensor.device_mesh
    splits: list[int | None] = []
    strided: list[int] = []
    for number, placement in enumerate(tensor.placements):
        if placement.is_partial():
            raise BadValueError(
                f"a tensor of shape {shape} has the placement {placement}; partial sums must be "
                "reduced before a step"
            )
        dim = getattr(placement, "dim", None)
        splits.append(dim)
        if dim is not None and getattr(placement, "split_factor", 1) != 1:
            strided.append(number)
    place, local_shape = mesh.get_coordinate(), tuple(local(x).shape)
    if place is None:  # this process is not in the mesh, and its local tensor has no dimensions
        nothing = (0, *shape[1:])[: len(shape)]
        return Shard(shape, nothing, (0,) * len(shape), tuple(splits), mesh)
    counts = tuple(mesh.shape)
    ((offsets, sizes),) = _parts(shape, tuple(splits), tuple(strided), counts, tuple(place))
    if sizes != local_shape:
        raise BadValueError(
            f"a tensor of shape {shape} with placements {tensor.placements} has a local part of "
            f"shape {local_shape}, expected {sizes}"
        )
    return Shard(shape, local_shape, offsets, tuple(splits), mesh, tuple(strided))


@lru_cache(maxsize=1024)
def _parts(
    shape: Shape,
    splits: tuple[int | None, ...],
    strided: tuple[int, ...],
    counts: Shape,
    place: tuple[int | None, ...],
) -> tuple[tuple[Shape, Shape], ...]:
    """Offsets and sizes of the parts at a place in a mesh of `counts`; None is every coordinate."""
    # A strided split is a later one, of what the mesh dimensions after it have left.
    order = [*(number for number in range(len(splits)) if number not in strided), *strided[::-1]]
    parts = []
    for at in product(
        *((n,) if n is not None else range(c) for n, c in zip(place, counts, strict=True))
    ):
        sizes, offsets = list(shape), [0] * len(shape)
        for number in order:
            if (dim := splits[number]) is None:
                continue
            piece = -(-sizes[dim] // counts[number])
            begin = min(sizes[dim], at[number] * piece)
            offsets[dim] += begin
            sizes[dim] = min(piece, sizes[dim] - begin)
        parts.append((tuple(offsets), tuple(sizes)))
    return tuple(parts)


def _narrowed(x: Tensor, offsets: Shape, sizes: Shape) -> Tensor:
    for dim, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
        x = x.narrow(dim, offset, size)
    return x
