"""What a NaN or infinity in a gradient does: the options of `nonfinite`, in one place.

Gradients are looked at on the host, on all processes that have shards of them. An engine that looks
by itself on its device is told so by `ParameterStep.skips`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qmaps.algebra.quantized import QuantizedTensor
from qmaps.distributed.shards import shard_of
from qmaps.errors import BadValueError, NonFiniteError, shown
from qmaps.optim.checks import check_gradient
from qmaps.optim.entries import Entry, label_of

if TYPE_CHECKING:
    from qmaps.optim.base import QuantizedOptimizer

POLICIES = ("propagate", "skip", "raise")
_NONE = 2**62


def check_policy(policy: Any) -> None:
    """Raise unless this is a policy."""
    if not isinstance(policy, str) or policy not in POLICIES:
        allowed = ", ".join(map(repr, POLICIES))
        raise BadValueError(f"nonfinite={shown(policy)} must be one of {allowed}")


def leaves_out(
    optimizer: QuantizedOptimizer, entries: Sequence[Entry], *, skipping: bool = True
) -> bool:
    """Whether the step of these parameters is to be left out.

    All processes that have shards of a parameter decide alike.

    Args:
        optimizer: whose parameters they are.
        entries: the parameters with their gradients.
        skipping: False looks only for what has to be raised.

    Raises:
        NonFiniteError: a gradient holds NaN or infinity, and its group raises then.
    """
    policies = {group["nonfinite"] for group in optimizer.param_groups} - {"propagate"}
    if not policies or (not skipping and "raise" not in policies):
        return False
    looked = [entry for entry in entries if entry.group["nonfinite"] != "propagate"]
    for entry in looked:
        check_gradient(optimizer, entry)
    leave_out = False
    for entry, (count, first) in zip(looked, bad_elements(looked), strict=True):
        if count and entry.group["nonfinite"] == "raise":
            raise _error(label_of(optimizer, entry.number), entry.grad, count, first)
        leave_out = leave_out or count > 0
    return leave_out


def _error(label: str, grad: Tensor, count: int, first: int) -> NonFiniteError:
    if hasattr(grad, "codes"):
        return NonFiniteError(
            f"the gradient of {label} is NaN or infinite under {count} of its "
            f"scales, the first at index {first}; nonfinite='raise' allows none"
        )
    return NonFiniteError(
        f"the gradient of {label} holds {count} NaN or infinite elements, "
        f"the first at flat index {first}; nonfinite='raise' allows none"
    )


def bad_elements(entries: Sequence[Entry]) -> list[tuple[int, int]]:
    """For each gradient, how many elements are not finite, and the first one's flat index.

    Of a sharded gradient both are those of the whole; two collectives for each process group see
    to that. Of a gradient that is kept as codes scales are counted. Gradients are waited for.
    """
    found = []
    shards = [shard_of(entry.param) for entry in entries]
    for entry, shard in zip(entries, shards, strict=True):
        codes = getattr(entry.grad, "codes", None)
        if isinstance(codes, QuantizedTensor):
            found.append(bad_scales(codes))
            continue
        bad = (~entry.grad.isfinite()).reshape(-1)
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
        device = entries[mine[0]].grad.device
        counts, firsts = torch.tensor([found[i] for i in mine], device=device).unbind(1)
        torch.distributed.all_reduce(counts := counts.contiguous(), group=group)
        torch.distributed.all_reduce(
            firsts := firsts.contiguous(), torch.distributed.ReduceOp.MIN, group
        )
        for i, count, first in zip(mine, counts.tolist(), firsts.tolist(), strict=True):
            found[i] = (count, first)
    return found


def bad_scales(t: QuantizedTensor) -> tuple[int, int]:
    """How many scales of `t` are NaN or infinite, and the flat index of the first.

    A NaN or infinity makes the scale so that it shares, and everything under that scale decodes to
    NaN or infinity.
    """
    for scale in t.scales:
        bad = ~scale.isfinite().reshape(-1)
        if count := int(bad.sum()):
            return count, int(bad.int().argmax())
    return 0, 0
