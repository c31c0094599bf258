"""The file of one rank of DeepSpeed: flat partitions of states, read without running code."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from qmaps.errors import BadValueError, CaptureError
from qmaps.storage import checkpoint


class StandIn:
    """Substitute for an object of DeepSpeed's beside the states in a file."""

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
        weights: Sequence[Tensor] = of_stages or self.optimizer["fp32_flat_groups"]
        return weights

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


WEIGHTS_FILE = re.compile(r"layer_(\d+)(-|_expert_\d+_mp_rank_\d+_)model_states\.pt")
COMPARED = 4096
"""Elements of each piece that are compared, at most."""

Weights = dict[str, tuple[Path, Tensor]]
"""The file that has the weights of a parameter, and those weights, by the parameter's name."""


def weights_of_layers(folder: Path) -> Weights:
    """Weights in the files of pipeline layers and of experts."""
    weights: Weights = {}
    for file in sorted(folder.iterdir()):
        if match := WEIGHTS_FILE.fullmatch(file.name):
            layer = f"{int(match[1])}." if match[2] == "-" else ""
            weights |= weights_in(file, load_file(file), layer)
    return weights


def weights_in(file: Path, tensors: Mapping[Any, Any] | None, prefix: str = "") -> Weights:
    """Weights in a file; those of ZeRO 3 are empty, and left out."""
    return {
        f"{prefix}{name}": (file, tensor.detach())
        for name, tensor in (tensors or {}).items()
        if isinstance(tensor, Tensor) and tensor.numel()
    }


def compare(
    name: str, number: int, pieces: Sequence[Piece], file: Path, weight: Tensor, reason: str
) -> None:
    """Raise if ranks have other weights of a parameter than a file of the model.

    Args:
        name: name of the parameter.
        number: number of the flat tensor.
        pieces: the parts of it on ranks.
        file: the file.
        weight: the weights in it.
        reason: possible reason, for the message.
    """
    flat, at = weight.reshape(-1), 0
    for piece in pieces:
        count = min(piece.numel, COMPARED)
        master = piece.rank.masters[number].detach().reshape(-1)[piece.start : piece.start + count]
        expected = flat[at : at + count]
        same = len(master) == len(expected)
        if not (
            same and master.to(weight.dtype).allclose(expected, rtol=0, atol=0, equal_nan=True)
        ):
            for path in (file, piece.rank.path):
                checkpoint.verify(path)
            raise CaptureError(
                f"{str(piece.rank.path)!r} has other weights of {name!r} than {file.name!r}; "
                f"{reason}"
            )
        at += piece.numel


EXPERT_FILE = re.compile(r"layer_\d+_expert_\d+_mp_rank_\d+_model_states\.pt")
EXPERT_NAME = re.compile(r"(.*deepspeed_moe\.experts\.deepspeed_experts\.)(\d+)(\..*)")
AUTOMATIC = ("ds_autoep_layers", "autoep_layers")


class Experts:
    """The experts of one checkpoint.

    Args:
        model: the model's file.
        numbers: of how many experts the model's layers are.
    """

    def __init__(self, model: Path, numbers: Sequence[int]) -> None:
        self._model = model
        self._numbers = numbers

    @classmethod
    def of(cls, model: Path, saved: Mapping[str, Any], *, several: bool) -> Experts | None:
        """The experts; None if there are none.

        Raises:
            CaptureError: the checkpoint has experts of an unsupported kind.
        """
        if any(saved.get(key) for key in AUTOMATIC):
            raise CaptureError(
                f"{str(model)!r} is of experts that DeepSpeed's AutoEP made of a model's own, "
                "which are not read"
            )
        files = any(EXPERT_FILE.fullmatch(path.name) for path in model.parent.iterdir())
        if not files and not saved.get("num_experts"):
            return None
        if several:
            raise CaptureError(
                f"{str(model)!r} is of experts and of several model-parallel ranks; experts are "
                "read of data-parallel ranks alone"
            )
        return cls(model, [int(number) for number in saved.get("num_experts") or ()])

    def names(
        self, parameters: Sequence[str], part: int, parts: int, every: Sequence[str]
    ) -> dict[str, str]:
        """Names of the experts of some ranks among all experts.

        Args:
            parameters: names of the parameters of a group, as a rank calls them.
            part: number of the expert-parallel rank.
            parts: number of expert-parallel ranks; 1 for groups without experts.
            every: names of the parameters of all groups. DeepSpeed may divide the experts of a
                layer among groups, by their size.

        Returns:
            The name among all, by the rank's own name; experts alone.

        Raises:
            CaptureError: a parameter of ranks with different experts is of none, or there are more
                or fewer experts than the model's file says.
        """
        matches = {name: EXPERT_NAME.fullmatch(name) for name in parameters}
        if parts > 1 and (odd := [name for name, match in matches.items() if match is None]):
            raise CaptureError(
                f"{str(self._model)!r} has {odd[0]!r} in a group whose ranks have different "
                "experts, and it is no expert's"
            )
        experts = {name: match for name, match in matches.items() if match is not None}
        local: dict[str, int] = {}
        for match in filter(None, map(EXPERT_NAME.fullmatch, every)):
            local[match[1]] = max(local.get(match[1], 0), int(match[2]) + 1)
        for count in {local[match[1]] for match in experts.values()}:
            if count * parts not in self._numbers:
                numbers = ", ".join(map(str, self._numbers)) or "no"
                raise CaptureError(
                    f"{str(self._model)!r} is of layers with {numbers} experts, but {parts} ranks "
                    f"have {count} of one layer each"
                )
        return {
            name: f"{match[1]}{part * local[match[1]] + int(match[2])}{match[3]}"
            for name, match in experts.items()
        }
