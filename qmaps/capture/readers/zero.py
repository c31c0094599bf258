"""DeepSpeed's ZeRO 1, 2 and 3: flat partitions of the states, one file per rank."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from qmaps.capture.collect import decoded, is_packed, shape_of
from qmaps.capture.readers import base
from qmaps.capture.readers.parallel import INFO, Column, Experts, merged
from qmaps.capture.snapshot import Lazy, Part
from qmaps.errors import DAMAGE, BadValueError, CaptureError
from qmaps.storage import checkpoint
from qmaps.storage.files import exists

FILE = re.compile(r"(?:[a-z0-9]+_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
MODEL = re.compile(r"(?:zero_pp_rank_\d+_)?mp_rank_(\d+)_model_states\.pt")
MODELS = ("mp_rank_{:02d}_model_states.pt", "zero_pp_rank_0_mp_rank_{:02d}_model_states.pt")
WITHOUT_ZERO = re.compile(r"expp_rank_\d+_mp_rank_\d+_optim_states\.pt")
"""The states of experts in a training without ZeRO, by number and not by name."""
WEIGHTS_FILE = re.compile(r"layer_(\d+)(-|_expert_\d+_mp_rank_\d+_)model_states\.pt")
COMPARED = 4096
"""Elements of each piece that are compared with the model's weights, at most."""
REASONS = (
    "files are mixed or swapped, or the weights were changed after the last step",
    "files of two checkpoints are mixed, or ranks hold experts in another order than DeepSpeed's",
)
"""Why ranks may have other weights than the model's file, and than an expert's."""

Shapes = dict[str, tuple[int, ...]]
"""Shapes of the parameters of a flat tensor, by name and in their order in it."""

Weights = dict[str, tuple[Path, Tensor]]
"""The file that has the weights of a parameter, and those weights, by the parameter's name."""


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


class Other:
    """A state other than a flat tensor, such as errors of compressed communication."""


@dataclass(frozen=True)
class Rank:
    """The file of one rank: the state of DeepSpeed's optimizer, and of the optimizer within it.

    `states` are by the number of the flat tensor, and `groups` are that optimizer's.
    """

    path: Path
    optimizer: Mapping[str, Any]
    states: Mapping[Any, Mapping[str, Any]]
    groups: Sequence[Mapping[str, Any]]

    @classmethod
    def of(cls, path: Path) -> Rank:
        """Load a file."""
        try:
            optimizer = load_file(path)["optimizer_state_dict"]
            inner = optimizer.get("base_optimizer_state") or optimizer["optimizer_state_dict"]
            return cls(path, optimizer, inner["state"], inner["param_groups"])
        except BadValueError:
            raise
        except DAMAGE:
            raise CaptureError(
                f"{str(path)!r} does not hold the optimizer states of ZeRO 1, 2 or 3 as a rank of "
                "DeepSpeed saves them"
            ) from None

    @property
    def masters(self) -> Sequence[Tensor]:
        """The weights in float32, cut as the states are; in ZeRO 3 they are the only ones."""
        of_stages = self.optimizer.get("single_partition_of_fp32_groups")  # 1 and 2
        weights: Sequence[Tensor] = of_stages or self.optimizer["fp32_flat_groups"]
        return weights

    @cached_property
    def flats(self) -> dict[Any, dict[Any, Any]]:
        """The states by the number of the flat tensor, `Lazy` in place of tensors."""
        return {
            flat: {name: _lazy(value) for name, value in decoded(state).items()}
            for flat, state in self.states.items()
        }

    @property
    def world(self) -> int:
        """Number of data-parallel ranks."""
        count = self.optimizer["partition_count"]
        return max(count) if isinstance(count, (list, tuple)) else int(count)

    @property
    def step(self) -> float | None:
        """Number of steps taken; None if the file does not have it."""
        steps = [state["step"] for state in self.states.values() if "step" in state]
        steps += [group["step"] for group in self.groups if "step" in group]
        return float(steps[0]) if steps else None

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
    """Part of a parameter on one rank: elements from `start` on of the flat tensor `flat`."""

    rank: Rank
    flat: Any
    start: int
    numel: int


class Zero(base.Reader):
    """The folder of one step, or the one above it, with a file ``latest``.

    Stages 1 and 2 cut all parameters of a group, one after the other, into as many parts as there
    are ranks; stage 3 cuts every parameter. Names and shapes are those in ``param_shapes`` of the
    model's file. Each model-parallel rank has files of its own; `qmaps.capture.readers.parallel`
    puts them and the experts together. Ranks are known by the names of their files, which are
    checked as far as it can be known.
    """

    name: ClassVar[str] = "deepspeed"
    latest: ClassVar[str] = "latest"

    def is_here(self, path: Path) -> bool:
        """Return True for a folder with files ``zero_pp_rank_..._optim_states.pt``."""
        try:
            names = [file.name for file in path.iterdir()]
        except OSError:  # a file, or unreadable
            return False
        return any(FILE.fullmatch(name) or WITHOUT_ZERO.fullmatch(name) for name in names)

    def edited(self, path: Path) -> list[Path]:
        """The files of all ranks."""
        return [file for files in _files(path).values() for file in files.values()]

    def state_dicts(self, path: Path) -> list[base.StateDict]:
        """See `Reader.state_dicts`."""
        grid = _files(path)
        models = {number: model_of(path, number) for number in grid}
        _check_model_parallel(path, grid, models)
        columns = []
        layers = _weights_of_layers(path)
        first: Rank | None = None
        for number, files in grid.items():
            ranks = [Rank.of(file) for file in files.values()]
            _check(files, ranks)
            first = first or ranks[0]
            _refuse_other(first, ranks[0], "of step {}", first.step, ranks[0].step)
            _refuse_other(first, ranks[0], "written by {} ranks", first.world, ranks[0].world)
            model, saved = models[number]
            experts = Experts.of(model, saved, several=len(grid) > 1)
            weights = layers | _weights_in(model, saved.get("module"))
            state_dict = _state_dict(ranks, shapes_of(model, saved), experts, weights)
            _check_names(files)
            info = saved.get(INFO) or ranks[0].optimizer.get(INFO)
            columns.append(Column(model, {**saved, INFO: info}, state_dict))
        return [merged(columns)]


def load_file(path: Path) -> Mapping[str, Any]:
    """A file of DeepSpeed's; its large tensors are not verified yet."""
    loaded = checkpoint.load(path, mmap=True, verify_large=False, stand_ins=STAND_INS)
    if not isinstance(loaded, Mapping):
        raise CaptureError(f"{str(path)!r} holds a {type(loaded).__name__}; expected a dict")
    return loaded


def model_of(folder: Path, number: int = 0) -> tuple[Path, Mapping[str, Any]]:
    """The model's file of a model-parallel rank, and its content."""
    names = [name.format(number) for name in MODELS]
    path = next((folder / name for name in names if exists(folder / name)), folder / names[0])
    return path, load_file(path)


def shapes_of(path: Path, saved: Mapping[str, Any]) -> list[Shapes]:
    """Names and shapes of the parameters of each flat tensor, in a model's file."""
    param_shapes = saved.get("param_shapes")
    try:
        groups = [param_shapes] if isinstance(param_shapes, Mapping) else list(param_shapes or ())
        return [{str(n): tuple(map(int, shape)) for n, shape in g.items()} for g in groups]
    except DAMAGE:
        raise CaptureError(
            f"{str(path)!r} must have param_shapes, the names and shapes of parameters by group"
        ) from None


def with_names(
    groups: Sequence[Mapping[str, Any]], shapes: Sequence[Shapes]
) -> list[dict[str, Any]]:
    """Groups of flat tensors as groups of parameters; `shapes` has those of each flat tensor."""
    flat_shapes = iter(shapes)
    return [
        {**group, "params": [name for _ in group["params"] for name in next(flat_shapes)]}
        for group in groups
    ]


def _files(folder: Path) -> dict[int, dict[int, Path]]:
    """The files by model-parallel rank and by data-parallel rank."""
    files: dict[int, dict[int, Path]] = {}
    for path in sorted(folder.iterdir()):
        if WITHOUT_ZERO.fullmatch(path.name):
            raise CaptureError(
                f"{str(path)!r} is of experts in a training without ZeRO; it does not say which "
                "parameters its states are of, and is not read"
            )
        if (match := FILE.fullmatch(path.name)) is None:
            continue
        column = files.setdefault(int(match[2]), {})
        if int(match[1]) in column:
            raise CaptureError(
                f"{str(path)!r} and {column[int(match[1])].name!r} are both of rank "
                f"{int(match[1])}; files of two checkpoints are mixed"
            )
        column[int(match[1])] = path
    return {number: dict(sorted(files[number].items())) for number in sorted(files)}


def _check_model_parallel(
    folder: Path,
    grid: Mapping[int, Mapping[int, Path]],
    models: Mapping[int, tuple[Path, Mapping[str, Any]]],
) -> None:
    """Raise unless there are files of all model-parallel ranks, and of no others."""
    path, saved = models[min(models)]
    world = int(saved.get("mp_world_size") or 0)
    matches = (MODEL.fullmatch(file.name) for file in folder.iterdir())
    present = {*grid, *(int(match[1]) for match in matches if match)}
    if not world:
        if present != {0}:
            raise CaptureError(
                f"{str(path)!r} does not say how many model-parallel ranks there were "
                "(mp_world_size); make the checkpoint universal with DeepSpeed's ds_to_universal"
            )
        return
    for numbers in (present, grid):
        _require_all(folder, numbers, world, "model-parallel", path)
    for number in grid:
        model_file, content = models[number]
        if content.get("mp_world_size") != world:
            raise CaptureError(
                f"{str(model_file)!r} was written by {content.get('mp_world_size')} model-parallel "
                f"ranks, but {path.name!r} by {world}; files of two checkpoints are mixed"
            )


def _check(files: Mapping[int, Path], ranks: Sequence[Rank]) -> None:
    """Raise unless the files are of all data-parallel ranks of one step."""
    first = ranks[0]
    if not any(rank.states for rank in ranks):
        raise CaptureError(
            f"{str(first.path)!r} holds no states; it was saved before the first step"
        )
    count, world = first.optimizer["partition_count"], first.world
    _require_all(first.path.parent, files, world, "data-parallel", first.path)
    for rank in ranks:
        for what, expected, actual in (
            ("written by {} ranks", count, rank.optimizer["partition_count"]),
            ("of step {}", first.step, rank.step),
            ("of {} flat tensors", len(first.states), len(rank.states)),
        ):
            _refuse_other(first, rank, what, expected, actual)
        if [{*s} for s in rank.states.values()] != [{*s} for s in first.states.values()]:
            raise CaptureError(
                f"{str(rank.path)!r} has other states than {first.path.name!r}; files of two "
                "checkpoints are mixed"
            )


def _check_names(files: Mapping[int, Path]) -> None:
    """Raise if a file was written as that of another rank; ZeRO 3 has no weights to compare."""
    for path in files.values():
        written = f"{checkpoint.saved_as(path)}{path.suffix}"
        match, here = FILE.fullmatch(written), FILE.fullmatch(path.name)
        if match and here and match.groups() != here.groups():
            raise CaptureError(
                f"{str(path)!r} was written as {written!r}; files were renamed, mixed or swapped"
            )


def _require_all(
    folder: Path, numbers: Collection[int], world: int, kind: str, source: Path
) -> None:
    """Raise unless there are files of all ranks, and of no others."""
    if (len(numbers), max(numbers)) != (world, world - 1):  # `world` is the file's, of any size
        present = ", ".join(map(str, sorted(numbers)))
        raise CaptureError(
            f"{str(folder)!r} has files of the {kind} ranks {present}; {source.name!r} was written "
            f"by {world}"
        )


def _refuse_other(first: Rank, rank: Rank, what: str, expected: Any, actual: Any) -> None:
    if actual != expected:
        raise CaptureError(
            f"{str(rank.path)!r} is {what.format(actual)}, but {first.path.name!r} is "
            f"{what.format(expected)}; files of two checkpoints are mixed"
        )


def _weights_of_layers(folder: Path) -> Weights:
    """Weights in the files of pipeline layers and of experts."""
    weights: Weights = {}
    for file in sorted(folder.iterdir()):
        if match := WEIGHTS_FILE.fullmatch(file.name):
            layer = f"{int(match[1])}." if match[2] == "-" else ""
            weights |= _weights_in(file, load_file(file), layer)
    return weights


def _weights_in(file: Path, tensors: Mapping[Any, Any] | None, prefix: str = "") -> Weights:
    """Weights in a file; those of ZeRO 3 are empty, and left out."""
    return {
        f"{prefix}{name}": (file, tensor.detach())
        for name, tensor in (tensors or {}).items()
        if isinstance(tensor, Tensor) and tensor.numel()
    }


def _compare(
    name: str, number: int, pieces: Sequence[Piece], file: Path, weight: Tensor, reason: str
) -> None:
    """Raise if ranks have other weights of a parameter, in flat tensor `number`, than `file`."""
    flat, at = weight.reshape(-1), 0
    for piece in pieces:
        count = min(piece.numel, COMPARED)
        master = piece.rank.masters[number].detach().reshape(-1)[piece.start : piece.start + count]
        expected = flat[at : at + count]
        if not base.equal(master.to(weight.dtype), expected):
            for path in (file, piece.rank.path):
                checkpoint.verify(path)
            raise CaptureError(
                f"{str(piece.rank.path)!r} has other weights of {name!r} than {file.name!r}; "
                f"{reason}"
            )
        at += piece.numel


def _state_dict(
    ranks: list[Rank], shapes: list[Shapes], experts: Experts | None, weights: Weights
) -> base.StateDict:
    first = ranks[0]
    flats = [flat for group in first.groups for flat in group["params"]]
    if len(flats) != len(shapes):
        raise CaptureError(
            f"{str(first.path)!r} has {len(flats)} flat tensors, but the model's file has the "
            f"parameters of {len(shapes)}"
        )
    in_parts = _parts if "single_partition_of_fp32_groups" in first.optimizer else _cut
    state: dict[str, dict[str, Any]] = {}
    every: list[Shapes] = []
    for number, (flat, named) in enumerate(zip(flats, shapes, strict=True)):
        every.append({})
        for owners, names in _owners(ranks, number, shapes, experts):
            for local, pieces in in_parts(owners, number, flat, named).items():
                name, shape = names.get(local, local), named[local]
                every[-1][name] = shape
                state[name] = _joined(name, shape, pieces, ranks)
                if name in weights:
                    _compare(name, number, pieces, *weights[name], REASONS[local in names])
                elif local in names:
                    raise CaptureError(
                        f"{str(first.path.parent)!r} has no file of an expert's weights with "
                        f"{name!r}; one is missing"
                    )
    groups = with_names(first.groups, every)
    for group in groups:  # DeepSpeed's own optimizers count the steps of a group
        if (step := group.pop("step", None)) is not None:
            for name in group["params"]:
                state[name].setdefault("step", step)
    return {"state": state, "param_groups": groups}


def _owners(
    ranks: list[Rank], number: int, shapes: Sequence[Shapes], experts: Experts | None
) -> Iterator[tuple[list[Rank], dict[str, str]]]:
    """Yield ranks with a common group, and their names of its experts."""
    counts = ranks[0].optimizer["partition_count"]
    count = counts[number] if isinstance(counts, (list, tuple)) else int(counts)
    if experts is None:
        if count != len(ranks):
            raise CaptureError(
                f"{str(ranks[0].path)!r} says that flat tensor {number} was divided among {count} "
                f"of {len(ranks)} ranks, which only the states of experts are"
            )
        yield ranks, {}
        return
    several = len(ranks) // count
    every = [name for named in shapes for name in named]
    for part in range(several):
        yield ranks[part::several], experts.names([*shapes[number]], part, several, every)


def _parts(ranks: list[Rank], number: int, flat: Any, named: Shapes) -> dict[str, list[Piece]]:
    """Stages 1 and 2: parts of the parameters of a group, by each rank's own account."""
    pieces: dict[str, list[Piece]] = {name: [] for name in named}
    if "param_slice_mappings" in ranks[0].optimizer:
        for rank in ranks:
            for name, part in rank.optimizer["param_slice_mappings"][number].items():
                if name not in pieces:
                    raise CaptureError(
                        f"{str(rank.path)!r} has states of {name!r}, which the model's file does "
                        "not list; files are mixed or swapped"
                    )
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


def _cut(ranks: list[Rank], number: int, flat: Any, named: Shapes) -> dict[str, list[Piece]]:
    """Stage 3: every rank has an equal part of each parameter, the last ones with padding."""
    pieces: dict[str, list[Piece]] = {}
    start = 0
    for name, shape in named.items():
        remaining = math.prod(shape)
        share = -(-remaining // len(ranks))
        pieces[name] = []
        for rank in ranks:
            pieces[name].append(Piece(rank, flat, start, min(share, remaining)))
            remaining -= pieces[name][-1].numel
        start += share
    numel = ranks[0].masters[number].numel()
    if numel != start:
        raise CaptureError(
            f"{str(ranks[0].path)!r} has {numel} elements in flat tensor {number}, but the "
            f"parameters of the model's file take {start}"
        )
    return pieces


def _joined(
    name: str, shape: tuple[int, ...], pieces: list[Piece], ranks: list[Rank]
) -> dict[str, Any]:
    """The states of one parameter."""
    numel = sum(piece.numel for piece in pieces)
    if numel != math.prod(shape) or not pieces:
        raise CaptureError(
            f"{str(ranks[0].path.parent)!r}: the ranks have {numel} elements of {name!r}, but the "
            f"model's file says that its shape is {shape}"
        )
    flat = pieces[0].flat
    states: dict[str, Any] = {}
    for state, value in pieces[0].rank.flats[flat].items():
        parts: list[Any] = [piece.rank.flats[flat].get(state) for piece in pieces]
        if state == "step":
            states[state] = base.step_of([rank.flats[flat][state] for rank in ranks])
        elif odd := _without_tensor(state, parts):
            path, kind = pieces[odd[0]].rank.path, type(parts[odd[0]]).__name__
            raise CaptureError(
                f"{str(path)!r} has {state} of {name!r} as {kind}; expected a tensor"
            )
        elif not isinstance(value, Lazy):
            states[state] = value
        elif all(_holds(part, piece) for part, piece in zip(parts, pieces, strict=True)):
            spans = [(part, p.start, p.numel) for part, p in zip(parts, pieces, strict=True)]
            opened = partial(_opened, [piece.rank for piece in pieces], spans)
            store = partial(_store, spans) if all(part.store for part in parts) else None
            states[state] = Lazy(shape, value.dtype, partial(_read, opened, shape), store, opened)
        else:
            states[state] = Other()
    return states


def _without_tensor(state: str, parts: Sequence[Any]) -> list[int]:
    """The positions of parts without a tensor, where others have one or the state is known."""
    odd = [number for number, part in enumerate(parts) if not isinstance(part, Lazy)]
    return odd if len(odd) < len(parts) or base.state_of(state) is not None else []


def _lazy(value: Any) -> Any:
    """A flat tensor to read on demand; those that qmaps quantized are decoded."""
    if not is_packed(value):
        return base.in_place(value)
    from qmaps.algebra.saved import from_plain  # reading other states needs no quantizer

    shape, read = shape_of(value), lambda: from_plain(value).dequantize()
    return Lazy(shape, torch.float32, read, quantized=True)


def _holds(part: Any, piece: Piece) -> bool:
    return isinstance(part, Lazy) and piece.start + piece.numel <= math.prod(part.shape)


def _opened(ranks: Sequence[Rank], spans: Sequence[base.Span]) -> Part:
    for rank in ranks:
        if rank.damage:
            raise rank.damage
    return base.opened_spans(spans)


def _read(opened: Callable[[], Part], shape: tuple[int, ...]) -> Tensor:
    return opened()(0, math.prod(shape)).reshape(shape)


def _store(spans: Sequence[base.Span], tensor: Tensor) -> None:
    parts = torch.split(tensor.reshape(-1), [numel for _, _, numel in spans])
    for (flat, start, numel), values in zip(spans, parts, strict=True):
        flat.read().view(-1)[start : start + numel].copy_(values)
