"""Policies for NaN and infinity in gradients: the values of the option `nonfinite`.

The host checks gradients, on all processes with shards of them. An engine that checks
gradients itself on its device learns from `ParameterStep.skips` whether to skip the step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from qmaps.algebra.quantizer import QuantizedTensor
from qmaps.engines.sharding.shards import shard_of
from qmaps.engines.step import codes_of
from qmaps.engines.threads import safe_after_fork
from qmaps.errors import NonFiniteError
from qmaps.optim.checks import check_gradient
from qmaps.optim.records import Entry, Parameters

POLICIES = ("propagate", "skip", "raise")
_NONE = 2**62


def leaves_out(parameters: Parameters, entries: Sequence[Entry], *, skipping: bool = True) -> bool:
    """Return True if to skip the step of these parameters, on all processes with shards of one.

    With `skipping` False, gradients are checked only if a group has the policy "raise".

    Raises:
        NonFiniteError: a gradient holds NaN or infinity, and its group has the policy "raise".
    """
    policies = {group["nonfinite"] for group in parameters.groups} - {"propagate"}
    if not policies or (not skipping and "raise" not in policies):
        return False
    looked = [entry for entry in entries if entry[2]["nonfinite"] != "propagate"]
    records = parameters.records()
    for number, *_, gradient in looked:
        check_gradient(records[number], gradient)
    leave_out = False
    for entry, (count, first) in zip(looked, bad_elements(looked), strict=True):
        if count and entry[2]["nonfinite"] == "raise":
            raise _error(records[entry[0]].label, entry[3], count, first)
        leave_out = leave_out or count > 0
    return leave_out


def _error(label: str, grad: Tensor, count: int, first: int) -> NonFiniteError:
    if codes_of(grad) is not None:
        return NonFiniteError(
            f"the gradient of {label} has {count} NaN or infinite scales, the first at index "
            f"{first}; nonfinite='raise' allows only finite gradients"
        )
    return NonFiniteError(
        f"the gradient of {label} holds {count} NaN or infinite elements, "
        f"the first at flat index {first}; nonfinite='raise' allows only finite gradients"
    )


@safe_after_fork()
def bad_elements(entries: Sequence[Entry]) -> list[tuple[int, int]]:
    """For each gradient, how many elements are not finite, and the first one's flat index.

    For a sharded gradient both describe the whole gradient; this takes two collectives for each
    process group. For a gradient stored as codes, scales are counted. The function waits for
    the gradients.
    """
    bad = []
    shards = [shard_of(entry[1]) for entry in entries]
    for entry, shard in zip(entries, shards, strict=True):
        codes = codes_of(entry[3])
        if codes is not None:
            bad.append(bad_scales(codes))
            continue
        nonfinite = (~entry[3].isfinite()).reshape(-1)
        count, first = int(nonfinite.sum()), _NONE
        if count:
            first = int(nonfinite.int().argmax())
            if shard is not None:
                length, distance = shard.runs or (nonfinite.numel(), 0)
                first = shard.first + first // length * distance + first % length
        bad.append((count, first))
    groups = dict.fromkeys(group for shard in shards if shard for group in shard.groups())
    for group in groups:
        indices = [i for i, shard in enumerate(shards) if shard and group in shard.groups()]
        device = entries[indices[0]][3].device
        pairs = torch.tensor([bad[i] for i in indices], dtype=torch.int64, device=device)
        counts, firsts = pairs.unbind(1)
        torch.distributed.all_reduce(counts := counts.contiguous(), group=group)
        torch.distributed.all_reduce(
            firsts := firsts.contiguous(), torch.distributed.ReduceOp.MIN, group
        )
        for i, count, first in zip(indices, counts.tolist(), firsts.tolist(), strict=True):
            bad[i] = (count, first)
    return bad


def bad_scales(t: QuantizedTensor) -> tuple[int, int]:
    """Number of NaN or infinite scales of `t`, and the flat index of the first.

    A NaN or infinite element makes its scale NaN or infinite.
    """
    for scale in t.scales:
        bad = ~scale.isfinite().reshape(-1)
        if count := int(bad.sum()):
            return count, int(bad.int().argmax())
    return 0, 0
