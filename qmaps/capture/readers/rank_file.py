"""The file of one rank of DeepSpeed: flat partitions of states, read without running code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from qmaps.errors import BadValueError, CaptureError
from qmaps.storage import checkpoint


class StandIn:
    """In place of an object of DeepSpeed's that a file has beside the states."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments


STAND_INS = {
    "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler": StandIn,
    "deepspeed.runtime.fp16.loss_scaler.LossScaler": StandIn,
    "deepspeed.runtime.zero.config.ZeroStageEnum": StandIn,
    "deepspeed.utils.tensor_fragment.fragment_address": StandIn,
}


@dataclass(frozen=True)
class Rank:
    """The file of one rank.

    Attributes:
        path: the file.
        optimizer: the state of DeepSpeed's optimizer.
        states: the state of the optimizer within it, by the number of the flat tensor.
        groups: that optimizer's parameter groups.
    """

    path: Path
    optimizer: Mapping[str, Any]
    states: Mapping[Any, Mapping[str, Any]]
    groups: Sequence[Mapping[str, Any]]

    @property
    def masters(self) -> Sequence[Tensor]:
        """The weights in float32, cut as the states are; in ZeRO 3 they are the only ones."""
        of_stages = self.optimizer.get("single_partition_of_fp32_groups")  # 1 and 2
        found: Sequence[Tensor] = of_stages or self.optimizer["fp32_flat_groups"]
        return found

    @cached_property
    def damage(self) -> BadValueError | None:
        """Description of damage to the file's large tensors; reads all of it once."""
        try:
            checkpoint.verify(self.path)
        except BadValueError as error:
            return error
        return None


@dataclass(frozen=True)
class Piece:
    """Part of a parameter on one rank.

    Attributes:
        rank: the rank's file.
        flat: number of the flat tensor.
        start: the parameter's first element in it.
        numel: number of elements.
    """

    rank: Rank
    flat: Any
    start: int
    numel: int


def load_file(path: Path) -> Mapping[str, Any]:
    """A file of DeepSpeed's; its large tensors are not verified yet."""
    loaded = checkpoint.load(path, mmap=True, verify_large=False, stand_ins=STAND_INS)
    if not isinstance(loaded, Mapping):
        raise CaptureError(f"{str(path)!r} holds a {type(loaded).__name__}; expected a dict")
    return loaded
