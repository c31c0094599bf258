"""torch.distributed.checkpoint: FSDP2, FSDP1, and nested dicts of any other training."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from qmaps.capture.coded_states import CODED
from qmaps.capture.flattened import grouped, joined, options_of, put, split
from qmaps.capture.readers.base import Reader, StateDict, know, refuse_missing_state
from qmaps.capture.snapshot import Lazy
from qmaps.errors import CaptureError, shown
from qmaps.storage import distributed
from qmaps.storage.checkpoint import Part, load_part
from qmaps.storage.distributed import Stored
from qmaps.storage.files import exists

WITHIN = ("", "optimizer_0", "optimizer")
"""Where the folder of a checkpoint may have one of torch.distributed.checkpoint: here, or where
Hugging Face's Accelerate puts it."""

KINDS = ("state", "param_groups")
"""The two entries of an optimizer's state_dict."""

FLAT = re.compile(r"(.+?)\.(state|param_groups)\.(.+)")
"""A key of a checkpoint that does not say what was nested in what."""

USUAL = frozenset({"exp_avg", "exp_avg_sq", "momentum_buffer", "square_avg", "state1", "sum"})
"""Names of states by which an optimizer is known that was saved without its groups."""

Path_ = tuple[str | int, ...]


class DistributedCheckpoint(Reader):
    """A folder with ``.metadata`` and ``.distcp`` files, as ``dcp.save`` writes it.

    The optimizer's state_dict may be anywhere in the saved dict: nested, or flattened by
    ``StateDictOptions(flatten_optimizer_state_dict=True)``. Entries of other kinds, such as the
    model's, are not read.
    """

    name: ClassVar[str] = "torch.distributed.checkpoint"
    asked: ClassVar[int] = 1  # it detects those of Megatron, too

    def is_here(self, path: Path) -> bool:
        """Return True for a folder with ``.metadata``, perhaps in the optimizer's within it."""
        return _folder(path) is not None

    def state_dicts(self, path: Path) -> list[StateDict]:
        """See `Reader.state_dicts`."""
        folder = _folder(path) or path
        stored = distributed.contents(folder)
        places = {
            key: list(_places(stored.paths.get(key, (key,))))
            for key in [*stored.tensors, *stored.objects]
        }
        kinds = {(root, kind) for locations in places.values() for root, kind, _ in locations}
        optimizers: dict[Path_, _Optimizer] = {}
        for key, locations in places.items():
            # Something else may be called "state" as well: the dict around, or a parameter.
            in_optimizer = [
                location
                for location in locations
                if all((location[0], kind) in kinds for kind in KINDS)
            ]
            for root, kind, path_within in (in_optimizer or locations)[:1]:
                optimizers.setdefault(root, _Optimizer()).add(kind, path_within, _leaf(stored, key))
        beside = {name for layout in CODED.values() for name in layout.beside}
        for key, path_of in ((key, stored.paths.get(key, (key,))) for key in stored.tensors):
            if path_of[-1] in beside and path_of[:-1] in optimizers:
                optimizers[path_of[:-1]].rest[str(path_of[-1])] = _leaf(stored, key)
        _check_steps(stored)
        with_groups = [
            optimizer for optimizer in optimizers.values() if optimizer.states and optimizer.groups
        ]
        complete = with_groups or [
            optimizer
            for optimizer in optimizers.values()
            if any(str(path[-1]).rpartition(".")[2] in USUAL for path, _ in optimizer.states)
        ]
        if not complete:
            keys = [*stored.tensors, *stored.objects]
            listed = ", ".join(keys[:4]) + (", ..." if len(keys) > 4 else "")
            raise CaptureError(
                f"{str(folder)!r} must hold an optimizer state_dict ('state' and 'param_groups'), "
                f"but holds {listed or 'nothing'}"
            )
        return [refuse_missing_state(folder, optimizer.state_dict()) for optimizer in complete]


def _check_steps(stored: Stored) -> None:
    """Raise if files have parameters of different steps, each file those of one step."""
    by_file: dict[Path, list[float]] = {}
    for key, tensor in stored.tensors.items():
        if key.rpartition(".")[2] == "step" and tensor.shape == () and len(tensor.chunks) == 1:
            step = tensor.read().item()
            by_file.setdefault(tensor.chunks[0].part.path, []).append(step)
    # One parameter may well be behind the others, for example where it had no gradient at first.
    (first, expected), *further = [*by_file.items()] or [(Path(), [])]
    for path, steps in further:
        uniform = len({*expected}) == len({*steps}) == 1 and min(len(expected), len(steps)) > 1
        if uniform and steps[0] != expected[0]:
            raise CaptureError(
                f"{str(path)!r} is of step {steps[0]:.0f}, but {first.name!r} is of step "
                f"{expected[0]:.0f}; files of two checkpoints are mixed"
            )


@dataclass
class _Optimizer:
    """The entries of one state_dict, as they are added."""

    states: list[tuple[Path_, Any]] = field(default_factory=list)
    groups: list[tuple[Path_, Any]] = field(default_factory=list)
    rest: dict[str, Any] = field(default_factory=dict)

    def add(self, kind: str, path: Path_, leaf: Any) -> None:
        (self.states if kind == "state" else self.groups).append((path, leaf))

    def state_dict(self) -> StateDict:
        """The state_dict, with the objects of groups loaded."""
        groups = self._groups()
        names = {name for group in groups for name in group["params"]}
        by_text = {str(name): name for name in names}  # numbers are stored as text
        state: dict[Any, Any] = {}
        for path, leaf in self.states:
            parameter, *state_path = path if len(path) > 1 else split(str(path[0]), by_text.keys())
            parameter = by_text.get(str(parameter), parameter)
            if isinstance(leaf, Part):
                leaf = load_part(leaf)
            put(state.setdefault(parameter, {}), tuple(state_path), leaf)
        state = {parameter: joined(members) for parameter, members in state.items()}
        if not groups:
            groups = [{"params": list(state)}]
        if lost := [name for name in state if all(name not in g["params"] for g in groups)]:
            raise CaptureError(f"the checkpoint has states of {shown(lost[0])}, in no group")
        return {**self.rest, "state": state, "param_groups": groups}

    def _groups(self) -> list[dict[str, Any]]:
        lists = [
            load_part(leaf)
            for group_path, leaf in self.groups
            if not group_path and isinstance(leaf, Part)
        ]
        if lists:
            return [dict(group) for group in lists[0]]
        nested: dict[Any, Any] = {}
        flat: list[tuple[Path_, Any]] = []
        for group_path, leaf in self.groups:
            value = load_part(leaf) if isinstance(leaf, Part) else leaf.read()
            if len(group_path) > 1 and "." not in str(group_path[0]):
                put(nested, group_path, value)
            else:
                flat.append((group_path, value))
        own = options_of(flat)
        if all("params" in options for options in own.values()):
            nested |= own  # keys such as 0.lr, of a list
            return [_listed(nested[key]) for key in sorted(nested, key=int)]
        return grouped(own)


def _folder(path: Path) -> Path | None:
    if not path.is_dir():
        return None
    return next((path / at for at in WITHIN if exists(path / at / distributed.METADATA)), None)


def _places(path: Path_) -> Iterator[tuple[Path_, str, Path_]]:
    """Yield the possible meanings of a key: optimizer, its entry, and the path in it."""
    for number, step in enumerate(path):
        if step in KINDS:
            yield path[:number], str(step), path[number + 1 :]
        else:
            head, dot, tail = str(step).partition(".")
            if head in KINDS and dot:
                yield path[:number], head, (tail, *path[number + 1 :])
    if len(path) == 1 and (match := FLAT.fullmatch(str(path[0]))):
        yield (match[1],), match[2], (match[3],)


def _leaf(stored: Stored, key: str) -> Lazy | Part:
    if key in stored.objects:
        return stored.objects[key]
    tensor = stored.tensors[key]
    return Lazy(tensor.shape, tensor.dtype, partial(tensor.read, know), tensor.store)


def _listed(value: Any) -> Any:
    """`value` with lists in place of dicts with positions as keys."""
    if not isinstance(value, Mapping):
        return value
    members = {key: _listed(member) for key, member in value.items()}
    if members and set(members) == set(range(len(members))):
        return [members[position] for position in range(len(members))]
    return members
