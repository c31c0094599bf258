"""Reductions over a whole tensor, sharded over processes.

An update rule sees local tensors. To reduce over a split dimension, each process
reduces its part, and the results are combined here. Sums of parts are float64 sums in another order
than those of the whole tensor, so norms and means on shards may differ in the last bits of
float64. Maxima are exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from qmaps.engines.sharding.shards import Groups, Shard

_current: ContextVar[Shard | None] = ContextVar("part", default=None)


@contextmanager
def whole_of(shard: Shard | None) -> Iterator[None]:
    """Reduce over the whole tensor of `shard` within the block."""
    token = _current.set(shard)
    try:
        yield
    finally:
        _current.reset(token)


def total(sums: Tensor, dims: Iterable[int] | None = None) -> Tensor:
    """Sum local sums over shards of dimensions of the parameter; None stands for all."""
    shard = _current.get()
    for group in () if shard is None else shard.groups(dims):
        sums = sums.contiguous().clone()
        torch.distributed.all_reduce(sums, group=group)
    return sums


def largest(maxima: Tensor, dims: Iterable[int] | None = None) -> Tensor:
    """The maximum over shards of float32 maxima of at least 0; NaN counts as the largest."""
    shard = _current.get()
    groups = () if shard is None else shard.groups(dims)
    if not groups:
        return maxima
    return largest_bits([maxima.abs().view(torch.int32)], groups)[0].view(torch.float32)


def numel(x: Tensor) -> int:
    """Number of elements of the whole tensor of `x`, a local tensor."""
    shard = _current.get()
    return x.numel() if shard is None else torch.Size(shard.shape).numel()


def size(local_size: int, dim: int) -> int:
    """The size of dimension `dim` of the whole tensor; its local size is `local_size`."""
    shard = _current.get()
    return local_size if shard is None else shard.shape[dim]


def largest_bits(bits: Sequence[Tensor], groups: Groups) -> list[Tensor]:
    """The largest of every int32 element over process groups, one collective for each group.

    The bits of non-negative floats are ordered as the floats are, with NaN above infinity;
    collectives of floats do not promise it.
    """
    joined = torch.cat([t.reshape(-1) for t in bits])
    for group in groups:
        torch.distributed.all_reduce(joined, torch.distributed.ReduceOp.MAX, group)
    maxima = torch.split(joined, [t.numel() for t in bits])
    return [new.view(t.shape) for new, t in zip(maxima, bits, strict=True)]
