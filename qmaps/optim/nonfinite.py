"""Looking for NaN and infinity in gradients, on all processes that have shards of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from qmaps.distributed.shards import shard_of
from qmaps.engines.fused import Entry

_NONE = 2**62


def bad_elements(entries: Sequence[Entry]) -> list[tuple[int, int]]:
    """For each gradient, how many elements are not finite, and the first one's flat index.

    Of a sharded gradient both are those of the whole; two collectives for each process group see
    to that. Gradients are waited for.
    """
    found = []
    shards = [shard_of(param) for _, param, _, _ in entries]
    for (_, _, _, grad), shard in zip(entries, shards, strict=True):
        bad = (~grad.isfinite()).reshape(-1)
        count, first = int(bad.sum()), _NONE
        if count:
            first = int(bad.int().argmax())
            if shard is not None:
                length, distance = shard.runs or (bad.numel(), 0)
                first = shard.first + first // length * distance + first % length
        found.append((count, first))
    groups = dict.fromkeys(group for shard in shards if shard for group in shard.groups())
    for group in groups:
        mine = [i for i, shard in enumerate(shards) if shard and group in shard.groups()]
        device = entries[mine[0]][3].device
        counts, firsts = torch.tensor([found[i] for i in mine], device=device).unbind(1)
        torch.distributed.all_reduce(counts := counts.contiguous(), group=group)
        torch.distributed.all_reduce(
            firsts := firsts.contiguous(), torch.distributed.ReduceOp.MIN, group
        )
        for i, count, first in zip(mine, counts.tolist(), firsts.tolist(), strict=True):
            found[i] = (count, first)
    return found
