"""Whole matrices of sharded parameters: each is sent to one process, its owner, and back.

Matrices are spread over the processes that hold their parts, the largest first, each to the
process with the fewest elements so far. They are exchanged in rounds of one matrix for each owner,
so a process holds one whole matrix at a time, and its parts of the others of the round. Copies of
parameters (HSDP) are exchanged among the shards of each copy; no message goes from copy to copy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from qmaps.engines.sharding.shards import Box, Shape, Shard

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Ranks = tuple[int, ...]
Loads = dict[Ranks, list[int]]
"""Elements that each process owns, by the processes that share them."""


class Matrix(NamedTuple):
    """A whole tensor in parts, with its owner.

    Attributes:
        shape: of the whole.
        boxes: the parts of all processes, this one's included.
        owner: global rank of the process that computes it.
        group: process group of the parts; None is that of all processes.
    """

    shape: Shape
    boxes: tuple[Box, ...]
    owner: int
    group: ProcessGroup | None

    @property
    def ranks(self) -> Ranks:
        """Global ranks of the processes with a part."""
        return tuple(box.rank for box in self.boxes)

    @property
    def owned(self) -> bool:
        """True if this process is the owner."""
        return self.owner == torch.distributed.get_rank()


def matrices_of(shard: Shard, *, stacked: bool) -> list[Matrix]:
    """The matrices of a sharded parameter that lie on several processes, without owners yet.

    One for the parameter, or for each matrix on this process of a stack along the first dimension;
    none where this process and others share no matrix, or where it is not in the mesh.
    """
    first = 1 if stacked else 0
    numbers = shard.split_by(range(first, len(shard.shape)))
    if not numbers or shard.mesh.get_coordinate() is None:
        return []
    boxes = tuple(
        Box(box.rank, box.offsets[first:], box.sizes[first:]) for box in shard.boxes(numbers)
    )
    matrix = Matrix(shard.shape[first:], boxes, -1, _group(shard, numbers))
    return [matrix] * (shard.local_shape[0] if stacked else 1)


def spread(matrices: Sequence[Matrix], loads: Loads) -> list[Matrix]:
    """The matrices with owners; `loads` is what these own already, and is added to."""
    spread_ones = list(matrices)
    for index in _by_size(matrices):
        matrix = matrices[index]
        load = loads.setdefault(matrix.ranks, [0] * len(matrix.boxes))
        place = load.index(min(load))
        load[place] += math.prod(matrix.shape)
        spread_ones[index] = matrix._replace(owner=matrix.ranks[place])
    return spread_ones


def rounds(matrices: Sequence[Matrix]) -> list[list[int]]:
    """Indices of the matrices of each round: at most one for each owner, the largest first."""
    # In the order of parameters, which all processes share, and not in that of sizes.
    queues: dict[Ranks, dict[int, list[int]]] = {matrix.ranks: {} for matrix in matrices}
    for index in _by_size(matrices):
        matrix = matrices[index]
        queues[matrix.ranks].setdefault(matrix.owner, []).append(index)
    return [
        [index for index in batch if index is not None]
        for by_owner in queues.values()
        for batch in zip_longest(*by_owner.values())
    ]


def gather(batch: Sequence[tuple[Matrix, Tensor]]) -> Tensor | None:
    """Send the local parts of a round to the owners; returns this process's matrix, or None."""
    owned = [part.new_empty(matrix.shape) for matrix, part in batch if matrix.owned]
    whole = owned[0] if owned else None
    sent = [(part, matrix.owner) for matrix, part in batch]
    _exchange(sent, _owned_parts(batch, whole), batch[0][0].group)
    return whole


def scatter(batch: Sequence[tuple[Matrix, Tensor]], whole: Tensor | None) -> None:
    """Send `whole`, computed from the result of `gather`, back into the local parts of a round."""
    received = [(part, matrix.owner) for matrix, part in batch]
    _exchange(_owned_parts(batch, whole), received, batch[0][0].group)


def _owned_parts(
    batch: Sequence[tuple[Matrix, Tensor]], whole: Tensor | None
) -> list[tuple[Tensor, int]]:
    """Views of `whole`, the matrix of a round that this process owns, with the ranks of parts."""
    owned = next((matrix for matrix, _ in batch if matrix.owned), None)
    if owned is None:
        return []
    assert whole is not None
    return [(box.of(whole), box.rank) for box in owned.boxes]


@dataclass(frozen=True)
class Owned(Shard):
    """A state that the owner of its parameter has whole, and other processes empty.

    In checkpoints it is split by rows, as other states are.

    Attributes:
        matrix: the parameter; None if no process has a part only.
        numbers: mesh dimensions that split the parameter.
        split: False for what all processes have whole in a checkpoint.
    """

    matrix: Matrix | None = None
    numbers: tuple[int, ...] = ()
    split: bool = True

    @property
    def here(self) -> bool:
        """True if this process has the state."""
        return self.matrix is None or self.matrix.owned

    @staticmethod
    def of(shape: Shape, shard: Shard, matrix: Matrix | None) -> Owned:
        """The part of a state of at least one dimension; `shard` is the parameter's."""
        here = matrix.owned if matrix else shard.mesh.get_coordinate() is not None
        size = shape if here else (0, *shape[1:])
        nowhere = (None,) * len(shard.splits)
        numbers = shard.split_by()
        return Owned(shape, size, (0,) * len(shape), nowhere, shard.mesh, (), matrix, numbers)

    def of_rows(self, x: Tensor, *, split: bool) -> Owned:
        shape = (self.shape[0], *x.shape[1:]) if split else tuple(x.shape)
        return replace(
            self, shape=shape, local_shape=tuple(x.shape), offsets=(0,) * x.dim(), split=split
        )

    def distributed(self, x: Tensor) -> Tensor:
        """A DTensor of rows of `x`, which the owner has; all processes must call it."""
        splits: list[int | None] = [None] * len(self.splits)
        if self.numbers and self.split:
            splits[self.numbers[0]] = 0
        rows = Shard(self.shape, self.shape, self.offsets, tuple(splits), self.mesh)
        if self.matrix is None:
            return rows.distributed(x)
        boxes = rows.boxes(self.numbers)
        here = next(box for box in boxes if box.rank == torch.distributed.get_rank())
        part = x.new_empty(here.sizes)
        scatter([(self.matrix._replace(boxes=boxes), part)], x)
        return rows.distributed(part)


def _by_size(matrices: Sequence[Matrix]) -> list[int]:
    return sorted(range(len(matrices)), key=lambda index: -math.prod(matrices[index].shape))


def _group(shard: Shard, numbers: Sequence[int]) -> Any:
    return shard.mesh.get_group(numbers[0]) if len(numbers) == 1 else None


def _exchange(
    sent: Sequence[tuple[Tensor, int]],
    received: Sequence[tuple[Tensor, int]],
    group: ProcessGroup | None,
) -> None:
    """Send tensors to ranks and receive others; at most one message from one process to another."""
    from torch import distributed as dist

    here = dist.get_rank()
    operations, copies = [], []
    for part, rank in received:
        if rank == here:
            copies.append((part, next(own for own, to in sent if to == here)))
        elif part.numel():
            buffer = part if part.is_contiguous() else torch.empty_like(part).contiguous()
            operations.append(dist.P2POp(dist.irecv, buffer, rank, group))
            copies.append((part, buffer))
    for part, rank in sent:
        if rank != here and part.numel():
            operations.append(dist.P2POp(dist.isend, part.contiguous(), rank, group))
    if operations:
        for work in dist.batch_isend_irecv(operations):
            work.wait()
    for part, buffer in copies:
        if part is not buffer:
            part.copy_(buffer)
