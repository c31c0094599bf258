"""States of parallel ranks of DeepSpeed: slices by its own description of the cut, and experts."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qmaps.capture.readers.base import StateDict, equal, opened_spans, step_of
from qmaps.capture.snapshot import Lazy, Part
from qmaps.errors import CaptureError, shown

INFO = "universal_checkpoint_info"
AFFINE = ("affine_map", "params")
REFUSED = ("parameter_to_average_patterns", "autotp_unsupported_parameter_patterns")

CHARACTER = r"(?:[^]\\^$|?*+()[{}]|\\[^0-9A-Za-z]|\\[dDsSwW]|\[(?!\^\])(?:[^]\\[]|\\.)+\])"
"""One character in a regular expression, or a class of characters; of each in one way only."""

PATTERN = re.compile(rf"\^?((?:{CHARACTER}(?:[*+?]\??)?)*)(\$?)")
PIECE = re.compile(rf"({CHARACTER})([*+?])\??|((?:{CHARACTER}(?![*+?]))+)")
"""One character that may be repeated, or several that are not."""


@dataclass(frozen=True)
class Column:
    """All data-parallel ranks of one model-parallel rank.

    `saved` is the content of the `model` file besides the weights, and `state_dict` has the states
    of its parameters, or of its slices of them.
    """

    model: Path
    saved: Mapping[str, Any]
    state_dict: StateDict


@dataclass(frozen=True)
class Span:
    """A range of `width` indices from `start` on, of one dimension of the slice of this number."""

    slice: int
    start: int
    width: int


@dataclass(frozen=True)
class Cut:
    """Partition of a parameter along `dim`: its parts in order, and its size before padding."""

    dim: int
    spans: tuple[Span, ...]
    size: int


def merged(columns: Sequence[Column]) -> StateDict:
    """Return the state_dict of all model-parallel ranks together, in the order of the columns.

    A parameter of one rank alone is taken as it is: pipeline stages divide the parameters. For one
    of several ranks, ``universal_checkpoint_info`` says whether it is cut, and how.
    """
    if len(columns) == 1:
        return columns[0].state_dict
    holders: dict[str, list[Column]] = {}
    for column in columns:
        for name in column.state_dict["state"]:
            holders.setdefault(name, []).append(column)
    state = {
        name: _states(name, columns_of_name, columns[0])
        for name, columns_of_name in holders.items()
    }
    groups: dict[str, dict[str, Any]] = {}
    for column in columns:
        for number, group in enumerate(column.state_dict["param_groups"]):
            options = {name: value for name, value in group.items() if name != "params"}
            alike = groups.setdefault(f"{number} {options!r}", {**options, "params": []})
            alike["params"] += [name for name in group["params"] if name not in alike["params"]]
    return {"state": state, "param_groups": list(groups.values())}


def _states(name: str, holders: Sequence[Column], first: Column) -> dict[str, Any]:
    parts = [column.state_dict["state"][name] for column in holders]
    if len(holders) == 1:
        return dict(parts[0])
    if any({*part} != {*parts[0]} for part in parts):
        raise CaptureError(
            f"{str(holders[0].model.parent)!r}: model-parallel ranks have different states of "
            f"{name!r}; files of two checkpoints are mixed"
        )
    states: dict[str, Any] = {}
    for key, value in parts[0].items():
        slices = [part[key] for part in parts]
        if key == "step":
            states[key] = step_of(slices)
        elif all(isinstance(part, Lazy) for part in slices):
            states[key] = _joined(name, slices, holders, first)
        else:
            states[key] = value
    return states


def _joined(name: str, slices: Sequence[Lazy], holders: Sequence[Column], first: Column) -> Lazy:
    cut = _cut(name, [lazy.shape for lazy in slices], holders, first)
    if cut is None:
        read = partial(_same, name, slices, first.model.parent)
        copies: Lazy = step_of(slices)
        return replace(copies, read=read, parts=None)
    shape_of_all = list(slices[0].shape)
    shape_of_all[cut.dim] = cut.size
    expected = (first.saved.get(INFO) or {}).get(AFFINE[0]) or {}
    for pattern, entry in (expected.get(AFFINE[1]) or {}).items():
        shape = tuple(entry["logical_shape"])
        if matches(pattern, name) and shape != tuple(shape_of_all):
            raise CaptureError(
                f"{str(first.model)!r} says that {name!r} has the shape {shape}, but its slices "
                f"make up {tuple(shape_of_all)}"
            )
    return Lazy(
        tuple(shape_of_all),
        slices[0].dtype,
        partial(_read, slices, cut),
        partial(_store, slices, cut) if all(lazy.store for lazy in slices) else None,
        partial(_opened, slices, cut) if cut.dim == 0 else None,
    )


def _cut(
    name: str, shapes: Sequence[tuple[int, ...]], holders: Sequence[Column], first: Column
) -> Cut | None:
    """Partition of a parameter of several ranks; None if each rank has all of it."""
    model = str(first.model)
    info = first.saved.get(INFO)
    degrees = first.saved.get("checkpoint_parallel_dimensions") or {}
    if info is None and degrees.get("tp_degree") == 1:
        return None  # stages of a pipeline share what is tied
    if info is None:
        raise CaptureError(
            f"{model!r} does not say how {name!r} was cut among {len(holders)} model-parallel "
            f"ranks (it has no {INFO}); make the checkpoint universal with DeepSpeed's "
            "ds_to_universal"
        )

    def listed(kind: str) -> bool:
        return any(matches(pattern, name) for pattern in info.get(kind) or ())

    for kind in REFUSED:
        if listed(kind):
            raise CaptureError(
                f"{model!r} lists {name!r} in {kind}; such parameters of model-parallel ranks are "
                "not read"
            )
    if listed("tp_replicated_parameter_patterns"):
        return None
    if degrees.get("tp_degree", len(holders)) != len(holders):
        raise CaptureError(
            f"{model!r} is of {degrees['tp_degree']} tensor-parallel ranks, but "
            f"{len(holders)} ranks have slices of {name!r}; parameters that are both cut and tied "
            "are not read"
        )
    dim, widths = 0, None
    if listed("parameter_with_row_parallelism_patterns"):
        dim = 1
    elif listed("parameter_with_2_sub_params_cat_dim_0"):
        widths = [[shape[0] // 2 for shape in shapes]] * 2
    else:
        for sub in info.get("parameter_with_sub_params") or ():
            for pattern in sub["patterns"]:
                if matches(pattern, name):
                    dim = int(sub["partition_dim"])
                    widths = (info.get("sub_param_shard_widths") or {}).get(pattern)
                    if widths is None or len(sub["shape"]) != len(shapes[0]):
                        raise CaptureError(
                            f"{model!r} does not say how the parts of {name!r} were cut among "
                            "model-parallel ranks (it has no sub_param_shard_widths of its "
                            "dimensions)"
                        )
    if widths is None:
        widths = [[shape[dim] for shape in shapes]]
    cross_sections = {(*shape[:dim], *shape[dim + 1 :]) for shape in shapes}
    covered = [sum(widths_of_part) for widths_of_part in zip(*widths, strict=True)]
    if len(cross_sections) != 1 or covered != [shape[dim] for shape in shapes]:
        raise CaptureError(
            f"{str(first.model.parent)!r}: slices of {name!r} have the shapes "
            f"{', '.join(map(str, shapes))}, which do not fit together along dimension {dim}"
        )
    spans = []
    starts = [0] * len(shapes)
    for widths_of_part in widths:
        for number, width in enumerate(widths_of_part):
            spans.append(Span(number, starts[number], width))
            starts[number] += width
    size = sum(covered)
    if listed("vocabulary_parameter_patterns"):
        size = min(size, int(info["original_vocab_size"]))
    return Cut(dim, tuple(spans), size)


def matches(pattern: str, name: str) -> bool:
    """``bool(re.match(pattern, name))``, in at most as many steps as the product of their lengths.

    The pattern is the checkpoint's, and `re` could take years for one of a few characters.
    Patterns with groups, alternatives or counts are refused.
    """
    whole = PATTERN.fullmatch(pattern)
    try:
        pieces = [
            (re.compile(a or b), repeat)
            for a, repeat, b in PIECE.findall(whole[1] if whole else "")
        ]
    except re.error:  # of a class, such as [z-a]
        whole = None
    if whole is None:
        raise CaptureError(
            f"the pattern {shown(pattern)} of parameter names is not read; only characters, "
            "classes, '.', '*', '+', '?', '^' and '$' are"
        )
    ends = {0}
    for piece, repeat in pieces:
        after = {match.end() for at in ends if (match := piece.match(name, at))}
        ends = ends | after if repeat in ("*", "?") else after
        while after and repeat in ("*", "+"):
            after = {at + 1 for at in after if piece.match(name, at)} - ends
            ends |= after
    return len(name) in ends if whole[2] else bool(ends)


def _same(name: str, slices: Sequence[Lazy], folder: Path) -> Tensor:
    tensor, *copies = (lazy.read() for lazy in slices)
    if not all(equal(tensor, copy) for copy in copies):
        raise CaptureError(
            f"{str(folder)!r}: model-parallel ranks differ in {name!r}, of which each should have "
            "the same copy; files of two checkpoints are mixed, or stages do not share it"
        )
    return tensor


def _read(lazies: Sequence[Lazy], cut: Cut) -> Tensor:
    slices = [lazy.read() for lazy in lazies]
    parts = [slices[s.slice].narrow(cut.dim, s.start, s.width) for s in cut.spans]
    return torch.cat(parts, dim=cut.dim).narrow(cut.dim, 0, cut.size).contiguous()


def _store(lazies: Sequence[Lazy], cut: Cut, tensor: Tensor) -> None:
    """Write the slices; padding stays as it is."""
    slices = [lazy.read().clone() for lazy in lazies]
    at = 0
    for span in cut.spans:
        width = min(span.width, cut.size - at)
        if width > 0:
            target = slices[span.slice].narrow(cut.dim, span.start, width)
            target.copy_(tensor.narrow(cut.dim, at, width))
        at += span.width
    for lazy, values in zip(lazies, slices, strict=True):
        assert lazy.store
        lazy.store(values)


def _opened(lazies: Sequence[Lazy], cut: Cut) -> Part:
    """Open a parameter cut along its first dimension."""
    row = math.prod(lazies[0].shape[1:])
    return opened_spans([(lazies[s.slice], row * s.start, row * s.width) for s in cut.spans])


EXPERT_FILE = re.compile(r"layer_\d+_expert_\d+_mp_rank_\d+_model_states\.pt")
EXPERT_NAME = re.compile(r"(.*deepspeed_moe\.experts\.deepspeed_experts\.)(\d+)(\..*)")
AUTOMATIC = ("ds_autoep_layers", "autoep_layers")


@dataclass(frozen=True)
class Experts:
    """The experts of one checkpoint: the model's file, and the numbers of experts of its layers."""

    model: Path
    numbers: Sequence[int]

    @classmethod
    def of(cls, model: Path, saved: Mapping[str, Any], *, several: bool) -> Experts | None:
        """The experts; None if there are none."""
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
        """Return the names of some ranks' experts among all experts, by the ranks' own names.

        `parameters` are the names in a group of part number `part` of `parts` expert-parallel
        ranks, and `every` those in all groups, as DeepSpeed may divide a layer's experts.
        """
        matches = {name: EXPERT_NAME.fullmatch(name) for name in parameters}
        if parts > 1 and (odd := [name for name, match in matches.items() if match is None]):
            raise CaptureError(
                f"{str(self.model)!r} has {odd[0]!r} in a group whose ranks have different "
                "experts, and it is no expert's"
            )
        experts = {name: match for name, match in matches.items() if match is not None}
        local: dict[str, int] = {}
        for match in filter(None, map(EXPERT_NAME.fullmatch, every)):
            local[match[1]] = max(local.get(match[1], 0), int(match[2]) + 1)
        for count in {local[match[1]] for match in experts.values()}:
            if count * parts not in self.numbers:
                numbers = ", ".join(map(str, self.numbers)) or "no"
                raise CaptureError(
                    f"{str(self.model)!r} is of layers with {numbers} experts, but {parts} ranks "
                    f"have {count} of one layer each"
                )
        return {
            name: f"{match[1]}{part * local[match[1]] + int(match[2])}{match[3]}"
            for name, match in experts.items()
        }
