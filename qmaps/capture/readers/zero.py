"""DeepSpeed's ZeRO 1, 2 and 3: flat partitions of the states, one file per rank."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from qmaps.capture.decoded import decoded
from qmaps.capture.readers.base import Reader, StateDict, named_by, reading
from qmaps.capture.snapshot import Lazy
from qmaps.errors import DAMAGE, BadValueError, CaptureError
from qmaps.storage import checkpoint
from qmaps.storage.files import exists

FILE = re.compile(r"(?:[a-z0-9]+_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
MODELS = ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt")
OTHER_RANKS = re.compile(r"(?:.*_)?mp_rank_(?!00)\d+_model_states\.pt")
EXPERTS = re.compile(r"layer_\d+_expert_\d+_.*|expp_rank_.*")
"""Files that a checkpoint has besides if there are several model-parallel ranks, or experts."""


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

    @cached_property
    def damage(self) -> BadValueError | None:
        """What is wrong with the file's large tensors; all of it is read once to find out."""
        try:
            checkpoint.verify(self.path)
        except BadValueError as error:
            return error
        return None


@dataclass(frozen=True)
class Piece:
    """What one rank has of one parameter.

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


class Other:
    """A state that is no flat tensor, such as the errors that compressed communication keeps."""


class Zero(Reader):
    """The folder of one step, or the one above it, in which ``latest`` names a step.

    Stages 1 and 2 cut all parameters of a group, one after the other, into as many parts as there
    are ranks; stage 3 cuts every parameter. Names and shapes are those in ``param_shapes`` of the
    model's file. Checkpoints of several ranks of model or pipeline parallelism have to be made
    universal first; those of experts are not read.
    """

    name: ClassVar[str] = "deepspeed"
    latest: ClassVar[str] = "latest"

    def holder(self, path: Path) -> Path | None:
        """The folder with files ``zero_pp_rank_..._optim_states.pt``."""
        if _is_here(path):
            return path
        step = named_by(path, self.latest)
        return step if step is not None and _is_here(step) else None

    def edited(self, path: Path) -> list[Path]:
        """The files of all ranks."""
        return [*_files(path).values()]

    def read(self, path: Path) -> list[StateDict]:
        """See `Reader.read`."""
        folder = self.holder(path) or path
        files = _files(folder)
        ranks = [_rank(file) for file in files.values()]
        shapes = shapes_in(folder)
        try:
            _check(files, ranks)
            return [_state_dict(ranks, shapes)]
        except CaptureError:
            raise
        except BadValueError as error:
            raise CaptureError(str(error)) from None
        except DAMAGE:
            raise CaptureError(
                f"{str(folder)!r} is a checkpoint of DeepSpeed whose parts do not fit together"
            ) from None


def _is_here(path: Path) -> bool:
    try:
        return any(FILE.fullmatch(found.name) for found in path.iterdir())
    except OSError:  # a file, or unreadable
        return False


def _files(folder: Path) -> dict[int, Path]:
    """The files by rank."""
    found: dict[int, Path] = {}
    for path in sorted(folder.iterdir()):
        if EXPERTS.fullmatch(path.name):
            raise CaptureError(
                f"{str(path)!r} is of experts; DeepSpeed's checkpoints of mixtures of experts are "
                "not read"
            )
        match = FILE.fullmatch(path.name)
        if OTHER_RANKS.fullmatch(path.name) or (match and int(match[2])):
            raise CaptureError(
                f"{str(path)!r} is of a model-parallel or pipeline rank; only data-parallel ones "
                "are read: make the checkpoint universal with DeepSpeed's ds_to_universal"
            )
        if match is None:
            continue
        if int(match[1]) in found:
            raise CaptureError(
                f"{str(path)!r} and {found[int(match[1])].name!r} are both of rank "
                f"{int(match[1])}; files of two checkpoints are mixed"
            )
        found[int(match[1])] = path
    return dict(sorted(found.items()))


def load_file(path: Path) -> Mapping[str, Any]:
    """A file of DeepSpeed's; its large tensors are not verified yet."""
    try:
        loaded = checkpoint.load(path, mmap=True, verify_large=False, stand_ins=STAND_INS)
    except BadValueError as error:
        raise CaptureError(str(error)) from None
    if not isinstance(loaded, Mapping):
        raise CaptureError(f"{str(path)!r} holds a {type(loaded).__name__}; expected a dict")
    return loaded


def _rank(path: Path) -> Rank:
    try:
        optimizer = load_file(path)["optimizer_state_dict"]
        inner = optimizer.get("base_optimizer_state") or optimizer["optimizer_state_dict"]
        return Rank(path, optimizer, inner["state"], inner["param_groups"])
    except CaptureError:
        raise
    except DAMAGE:
        raise CaptureError(
            f"{str(path)!r} does not hold the optimizer states of ZeRO 1, 2 or 3 as a rank of "
            "DeepSpeed saves them"
        ) from None


def shapes_in(folder: Path) -> list[dict[str, tuple[int, ...]]]:
    """Names and shapes of the parameters of each flat tensor, in their order in it."""
    path = next((folder / name for name in MODELS if exists(folder / name)), folder / MODELS[0])
    found = load_file(path).get("param_shapes")
    try:
        groups = [found] if isinstance(found, Mapping) else list(found or ())
        return [{str(n): tuple(map(int, shape)) for n, shape in g.items()} for g in groups]
    except DAMAGE:
        raise CaptureError(
            f"{str(path)!r} must have param_shapes, the names and shapes of parameters by group"
        ) from None


def _check(files: dict[int, Path], ranks: list[Rank]) -> None:
    """Raise unless the files are of all ranks of one step."""
    first = ranks[0]
    if not any(rank.states for rank in ranks):
        raise CaptureError(
            f"{str(first.path)!r} holds no states; it was saved before the first step"
        )
    count = first.optimizer["partition_count"]
    world = max(count) if isinstance(count, (list, tuple)) else int(count)
    for number in range(world):
        if number not in files:
            name = first.path.name.replace(f"rank_{min(files)}_", f"rank_{number}_", 1)
            raise CaptureError(
                f"{str(first.path.parent / name)!r} does not exist; the checkpoint was written by "
                f"{world} ranks"
            )
    if extra := [path for number, path in files.items() if number >= world]:
        raise CaptureError(
            f"{str(extra[0])!r} is of one rank too many; {first.path.name!r} was written by "
            f"{world} ranks"
        )
    for rank in ranks:
        for what, expected, found in (
            ("written by {} ranks", count, rank.optimizer["partition_count"]),
            ("of step {}", _step(first), _step(rank)),
            ("of {} flat tensors", len(first.states), len(rank.states)),
        ):
            if found != expected:
                raise CaptureError(
                    f"{str(rank.path)!r} is {what.format(found)}, but {first.path.name!r} is "
                    f"{what.format(expected)}; files of two checkpoints are mixed"
                )
        if _names(rank) != _names(first):
            raise CaptureError(
                f"{str(rank.path)!r} has other states than {first.path.name!r}; files of two "
                "checkpoints are mixed"
            )


def _step(rank: Rank) -> float | None:
    steps = [state["step"] for state in rank.states.values() if "step" in state]
    steps += [group["step"] for group in rank.groups if "step" in group]
    return float(steps[0]) if steps else None


def _names(rank: Rank) -> list[set[str]]:
    return [{*state} for state in rank.states.values()]


def _state_dict(ranks: list[Rank], shapes: list[dict[str, tuple[int, ...]]]) -> StateDict:
    first = ranks[0]
    flats = [flat for group in first.groups for flat in group["params"]]
    if len(flats) != len(shapes):
        raise CaptureError(
            f"{str(first.path)!r} has {len(flats)} flat tensors, but the model's file has the "
            f"parameters of {len(shapes)}"
        )
    states = {
        (id(rank), flat): decoded(state) for rank in ranks for flat, state in rank.states.items()
    }
    in_parts = _parts if "single_partition_of_fp32_groups" in first.optimizer else _cut
    state: dict[str, dict[str, Any]] = {}
    groups = with_names(first.groups, shapes)
    for number, (flat, named) in enumerate(zip(flats, shapes, strict=True)):
        for name, pieces in in_parts(ranks, number, flat, named).items():
            state[name] = _joined(name, named[name], pieces, states, first.path.parent)
    for group in groups:  # DeepSpeed's own optimizers count the steps of a group
        if (step := group.pop("step", None)) is not None:
            for name in group["params"]:
                state[name].setdefault("step", step)
    return {"state": state, "param_groups": groups}


def with_names(
    groups: Sequence[Mapping[str, Any]], shapes: list[dict[str, tuple[int, ...]]]
) -> list[dict[str, Any]]:
    """Groups of flat tensors as groups of parameters; `shapes` has those of each flat tensor."""
    rest = iter(shapes)
    return [
        {**group, "params": [name for _ in group["params"] for name in next(rest)]}
        for group in groups
    ]


def _parts(
    ranks: list[Rank], number: int, flat: Any, named: Mapping[str, tuple[int, ...]]
) -> dict[str, list[Piece]]:
    """Stages 1 and 2: where each rank says that it has parts of the parameters of a group."""
    pieces: dict[str, list[Piece]] = {name: [] for name in named}
    if "param_slice_mappings" in ranks[0].optimizer:
        for rank in ranks:
            for name, part in rank.optimizer["param_slice_mappings"][number].items():
                pieces[name].append(Piece(rank, flat, int(part.start), int(part.numel)))
        return pieces
    # Old versions do not say it: there the parameters follow each other without gaps.
    size = max(
        value.numel() for value in ranks[0].states[flat].values() if isinstance(value, Tensor)
    )
    begin = 0
    for name, shape in named.items():
        end = begin + math.prod(shape)
        for position, rank in enumerate(ranks):
            start, stop = max(begin, position * size), min(end, (position + 1) * size)
            if start < stop:
                pieces[name].append(Piece(rank, flat, start - position * size, stop - start))
        begin = end
    return pieces


def _cut(
    ranks: list[Rank],
    number: int,
    flat: Any,
    named: Mapping[str, tuple[int, ...]],
) -> dict[str, list[Piece]]:
    """Stage 3: every rank has an equal part of each parameter, the last ones with padding."""
    pieces: dict[str, list[Piece]] = {}
    start = 0
    for name, shape in named.items():
        rest = math.prod(shape)
        each = -(-rest // len(ranks))
        pieces[name] = []
        for rank in ranks:
            pieces[name].append(Piece(rank, flat, start, min(each, rest)))
            rest -= pieces[name][-1].numel
        start += each
    found = ranks[0].optimizer["fp32_flat_groups"][number].numel()
    if found != start:
        raise CaptureError(
            f"{str(ranks[0].path)!r} has {found} elements in flat tensor {number}, but the "
            f"parameters of the model's file take {start}"
        )
    return pieces


def _joined(
    name: str,
    shape: tuple[int, ...],
    pieces: list[Piece],
    flats: Mapping[tuple[int, Any], Mapping[str, Any]],
    folder: Path,
) -> dict[str, Any]:
    """The states of one parameter."""
    found = sum(piece.numel for piece in pieces)
    if found != math.prod(shape) or not pieces:
        raise CaptureError(
            f"{str(folder)!r}: the ranks have {found} elements of {name!r}, but the model's file "
            f"says that its shape is {shape}"
        )
    states: dict[str, Any] = {}
    for state, value in flats[id(pieces[0].rank), pieces[0].flat].items():
        parts = [flats[id(piece.rank), piece.flat].get(state) for piece in pieces]
        if state == "step":
            of_ranks = [own[state] for (_, flat), own in flats.items() if flat == pieces[0].flat]
            states[state] = step_of(of_ranks)
        elif not isinstance(value, (Tensor, Lazy)):
            states[state] = value
        elif all(_holds(part, piece) for part, piece in zip(parts, pieces, strict=True)):
            read = reading(_reader(shape, pieces, parts))
            states[state] = Lazy(shape, value.dtype, read, _writer(pieces, parts))
        else:
            states[state] = Other()
    return states


def step_of(kept: Sequence[Any]) -> Any:
    """A number of steps that is kept in several places: of tensors a `Lazy` that stores in all."""
    if not kept or not all(isinstance(step, Tensor) for step in kept):
        return kept[0] if kept else None

    def store(tensor: Tensor) -> None:
        for step in kept:
            step.copy_(tensor)

    return Lazy(tuple(kept[0].shape), kept[0].dtype, kept[0].clone, store)


def _holds(part: Any, piece: Piece) -> bool:
    return isinstance(part, (Tensor, Lazy)) and piece.start + piece.numel <= math.prod(part.shape)


def _reader(shape: tuple[int, ...], pieces: list[Piece], parts: list[Any]) -> Any:
    def read() -> Tensor:
        cut = []
        for piece, part in zip(pieces, parts, strict=True):
            if piece.rank.damage:
                raise piece.rank.damage
            flat = part.read() if isinstance(part, Lazy) else part
            cut.append(flat.reshape(-1)[piece.start : piece.start + piece.numel])
        return torch.cat(cut).reshape(shape)

    return read


def _writer(pieces: list[Piece], parts: list[Any]) -> Any:
    if not all(isinstance(part, Tensor) for part in parts):
        return None  # codes

    def store(tensor: Tensor) -> None:
        cut = torch.split(tensor.reshape(-1), [piece.numel for piece in pieces])
        for piece, part, values in zip(pieces, parts, cut, strict=True):
            part.view(-1)[piece.start : piece.start + piece.numel].copy_(values)

    return store
