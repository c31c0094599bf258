"""Names for the parameters of a checkpoint.

An optimizer has its parameters in the model's order, or in two groups: those with weight decay and
those without, each in the model's order. A group is identified by its place and its weight decay,
and the group of a parameter by the rules in `RULES`. Parameters outside the optimizer, such as
frozen ones, are left out. Names are accepted only if the shape of every state agrees, and
no other names would agree too. States of other shapes than their parameters, such as flat ones and
those of low rank, agree with a model that has as many parameters.
"""

from __future__ import annotations

import json
import math
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qmaps.capture.model_limits import check_sizes, limited
from qmaps.capture.parameters import Slot, check_unique
from qmaps.capture.readers.base import know
from qmaps.capture.snapshot import Lazy, header_of
from qmaps.errors import BadTypeError, BadValueError
from qmaps.storage import checkpoint
from qmaps.storage.files import content_of, exists

Names = nn.Module | Iterable[str] | str | os.PathLike[str] | None

Shape = tuple[int, ...]

MODELS = (".safetensors", ".bin", ".json", ".pt", ".pth", ".ckpt")
"""Endings of files that hold a model, or name its shards."""


def names_of(
    slots: Sequence[Slot],
    names: Names,
    tensors: Sequence[Mapping[str, Lazy]],
    path: Path,
    *,
    several: bool = False,
    loaded: Any = None,
) -> tuple[list[str], str]:
    """Return the parameters' names in the checkpoint's order, and their source.

    `names` are those of `qmaps.capture.load`, and `tensors` the states of each parameter, by name.
    A model may lie beside `path`, the checkpoint, but not of `several` optimizers. `loaded` is the
    content of a file of ``torch.save``, which may hold the model.
    """
    labels = [slot.label for slot in slots]
    place = _place(names)
    if names is None and any(slot.name is not None for slot in slots):
        source = "the checkpoint"
    elif names is None or isinstance(names, nn.Module) or place is not None:
        model = names if isinstance(names, nn.Module) else place
        labels, source = _by_model(slots, model, tensors, path, several=several, loaded=loaded)
    else:
        source = "a list"
        if isinstance(names, (str, os.PathLike)):
            source = Path(names).name
            names = _names_in_text(Path(names))
        labels = list(names)
        for label in labels:
            if not isinstance(label, str):
                raise BadTypeError(
                    f"names must be a model or strings, got {type(label).__name__} among them"
                )
        if len(labels) != len(slots):
            raise BadValueError(
                f"names has {len(labels)} entries, but {str(path)!r} has {len(slots)} parameters"
            )
        check_unique(labels, "names", BadValueError)
    check_unique(labels, repr(str(path)))
    return labels, source


def _by_model(
    slots: Sequence[Slot],
    model: nn.Module | Path | None,
    tensors: Sequence[Mapping[str, Lazy]],
    path: Path,
    *,
    several: bool,
    loaded: Any,
) -> tuple[list[str], str]:
    """Return names from a model, and their source; numbers if one beside `path` does not fit."""
    by_id: dict[int, Group] = {}
    for slot, states in zip(slots, tensors, strict=True):
        group = by_id.setdefault(id(slot.group), Group([], slot.group.get("weight_decay")))
        group.shapes.append(parameter_shape(states))
    groups = list(by_id.values())
    try:
        if isinstance(model, nn.Module):
            return _of_model(model, groups), "the model"
        if model is not None and not exists(model):
            raise BadValueError(f"names={str(model)!r} does not exist")
        if model is None and several:
            raise Unnamed("there are several optimizers")
        return _by_place(model, groups) if model is not None else _with(path, groups, loaded)
    except Unnamed as error:
        if model is None:
            return [slot.label for slot in slots], f"numbers: {error}"
        if isinstance(model, Path):
            raise BadValueError(
                f"names={str(model)!r}: {error}; give a text file with one name per line in the "
                "optimizer's order"
            ) from None
        raise BadValueError(
            f"names is a model whose parameters do not tell those of {str(path)!r}: {error}; "
            "give the names as a list in the optimizer's order"
        ) from None


def _place(names: Names) -> Path | None:
    """Return the path of a model; None if `names` is anything else."""
    if not isinstance(names, (str, os.PathLike)):
        return None
    place = Path(names)
    return place if place.is_dir() or place.suffix in MODELS else None


@dataclass(frozen=True)
class Known:
    """The parameters of a model in its order, from a source that messages name.

    `shapes` are by name; a tied parameter has its first name. `norms` are the parameters of each
    ``nn.LayerNorm``, as far as known.
    """

    source: str
    shapes: Mapping[str, Shape]
    norms: frozenset[str] = frozenset()

    @classmethod
    def of(cls, model: nn.Module, source: str, *, frozen: bool = False) -> Known:
        """Return the trained parameters of a model, or all; it may be on the meta device."""
        shapes = {
            name: tuple(parameter.shape)
            for name, parameter in model.named_parameters()
            if parameter.requires_grad or frozen
        }
        norms = {
            f"{prefix}.{name}".removeprefix(".")
            for prefix, module in model.named_modules()
            if isinstance(module, nn.LayerNorm)
            for name, _ in module.named_parameters(recurse=False)
        }
        return cls(source, shapes, frozenset(norms))


SHAPED_AS_PARAMETER = (
    *("exp_avg", "exp_avg_sq", "momentum_buffer", "square_avg", "sum"),
    *("state1", "state2"),
)
"""States with the shape of their parameter, in any optimizer."""


class Unnamed(Exception):  # noqa: N818
    """Names cannot be recovered; the message says why."""


@dataclass(frozen=True)
class Group:
    """Shapes of a group's parameters, None where states do not tell, and weight decay."""

    shapes: list[Shape | None]
    weight_decay: Any = None


def parameter_shape(states: Mapping[str, Any]) -> Shape | None:
    """Return the shape of a parameter from its states by name, or None."""
    for name in SHAPED_AS_PARAMETER:
        if name in states:
            return tuple(states[name].shape)
    rows, columns = states.get("exp_avg_sq_row"), states.get("exp_avg_sq_col")
    if rows is None or columns is None:
        return None
    return (*rows.shape, *columns.shape[-1:])


Fits = Callable[[Shape, Shape], bool]
"""Return True if a state of the first shape may belong to a parameter of the second."""


def _may_hold(state: Shape, parameter: Shape) -> bool:
    """Flat states, also of some elements only, and those of fewer rows or columns."""
    if state == parameter:
        return True
    if len(parameter) < 2 or math.prod(state) > math.prod(parameter):
        return False
    if len(state) == 1:
        return True
    pairs = list(zip(state, parameter, strict=False))
    alike = len(state) == len(parameter) and any(a == b for a, b in pairs)
    return alike and all(a <= b for a, b in pairs)


def _of_model(model: nn.Module, groups: Sequence[Group]) -> list[str]:
    """Return the names of a model's trained parameters, or of all if frozen ones are among them.

    If the optimizer has as many parameters, its states may have other shapes than these.
    """
    count = sum(len(group.shapes) for group in groups)
    trained, everything = (Known.of(model, "the model", frozen=frozen) for frozen in (False, True))
    known = [trained, everything] if trained.shapes != everything.shapes else [trained]
    of_count = [candidate for candidate in known if len(candidate.shapes) == count]
    tries: list[tuple[Known, Fits]] = [(candidate, operator.eq) for candidate in of_count]
    tries += [(candidate, operator.eq) for candidate in known if candidate not in of_count]
    tries += [(candidate, _may_hold) for candidate in of_count]
    reasons: list[Unnamed] = []
    for candidate, fits in tries:
        try:
            return fitted(candidate, groups, fits)
        except Unnamed as error:
            reasons.append(error)
    raise reasons[0]


def fitted(model: Known, groups: Sequence[Group], fits: Fits = operator.eq) -> list[str]:
    """Return the name of each parameter in the optimizer's order, if just one order fits."""
    shapes = [shape for group in groups for shape in group.shapes]
    if fits is operator.eq and all(shape is None for shape in shapes):
        raise Unnamed("no state has the shape of its parameter")
    if len(model.shapes) < len(shapes):
        raise Unnamed(
            f"{model.source} has {len(model.shapes)} parameters and the optimizer {len(shapes)}"
        )
    orders = _orders([(list(model.shapes), shapes)], model, fits)
    if len(groups) == 2:
        exempt_first = not groups[0].weight_decay and bool(groups[1].weight_decay)
        for rule in RULES:
            exempt = [name for name in model.shapes if rule(name, model)]
            decaying = [name for name in model.shapes if not rule(name, model)]
            names = (exempt, decaying) if exempt_first else (decaying, exempt)
            parts = [(part, group.shapes) for part, group in zip(names, groups, strict=True)]
            orders |= _orders(parts, model, fits)
    if not orders:
        raise Unnamed(f"the states do not have the shapes of the parameters in {model.source}")
    if len(orders) > 1:
        raise Unnamed(f"the states fit the parameters in {model.source} in several orders")
    return list(orders.pop())


def _orders(
    parts: Sequence[tuple[Sequence[str], Sequence[Shape | None]]], model: Known, fits: Fits
) -> set[tuple[str, ...]]:
    """Return the first and the last choice of names; they differ if there are several.

    Each part has names in the model's order, and the shapes of the parameters among them.
    """
    orders = set()
    for step in (1, -1):
        chosen: list[str] = []
        for names, shapes in parts:
            candidates = iter(names[::step])
            fit = [
                next((n for n in candidates if shape is None or fits(shape, model.shapes[n])), "")
                for shape in shapes[::step]
            ]
            if "" in fit:
                return set()
            chosen += fit[::step]
        orders.add(tuple(chosen))
    return orders


def _by_trainer(name: str, model: Known) -> bool:
    """Biases, and weights of norms by the module's type or name: transformers 5."""
    parts = name.lower().split(".")
    return (
        name in model.norms
        or any(word in name.lower() for word in ("bias", "layernorm", "rmsnorm"))
        or any(part == "norm" or part.endswith("_norm") for part in parts)
    )


def _by_earlier_trainer(name: str, model: Known) -> bool:
    """Biases, and weights of ``nn.LayerNorm``: transformers 4."""
    return name in model.norms or "bias" in name


def _by_dimensions(name: str, model: Known) -> bool:
    """Parameters of fewer than two dimensions, as many training scripts do."""
    return len(model.shapes[name]) < 2


RULES: tuple[Callable[[str, Known], bool], ...] = (_by_trainer, _by_earlier_trainer, _by_dimensions)
"""Rules that return True for parameters exempt from weight decay."""


CONFIG = "config.json"

ADAPTER = "adapter_config.json"
"""File of PEFT beside the weights of an adapter."""

FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "adapter_model.bin",
)
"""Names of a model's file in a checkpoint's folder, in the order of preference."""

MODEL_KEYS = ("state_dict", "model_state_dict", "model")
"""Keys of the model's state_dict in larger files."""

STATISTICS = ("running_mean", "running_var")


def _refuse_adapter(folder: Path) -> None:
    if exists(folder / ADAPTER):
        raise Unnamed(
            f"{ADAPTER} is of PEFT, and names no order; give the model with its adapter as names"
        )


def _with(path: Path, groups: Sequence[Group], loaded: Any) -> tuple[list[str], str]:
    """Return the names from the model in the checkpoint's file, or beside it, and their source."""
    own: Unnamed | None = None
    if path.is_file():
        try:
            held = dict(_held(path) if loaded is None else _in_loaded(loaded))
        except (
            Unnamed,
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
        ):  # it holds the optimizer alone
            held = {}
        if held:
            try:
                return fitted(Known(path.name, held), groups), path.name
            except Unnamed as error:
                own = error
    try:
        return _by_place(path.parent, groups)
    except Unnamed as error:
        raise own or error from None


def _by_place(place: Path, groups: Sequence[Group]) -> tuple[list[str], str]:
    """Return the names from the folder or a file of a model, and their source.

    The files of safetensors and the indices of shards do not keep the model's order. transformers
    makes the model from ``config.json`` beside them, without weights.
    """
    path = place
    if place.is_dir():
        files = (place / name for name in FILES if exists(place / name))
        if (first := next(files, None)) is None:
            _refuse_adapter(place)
            raise Unnamed("there is no model.safetensors or pytorch_model.bin beside the optimizer")
        path = first
    held = dict(_held(path))
    reason = f"{path.name} keeps no order of parameters, and "
    # torch keeps the order of what it saves.
    if path.suffix not in (".safetensors", ".json") or ".bin" in path.suffixes:
        try:
            return fitted(Known(path.name, held), groups), path.name
        except Unnamed as error:  # a model tells what a list of names does not
            reason = f"{error}, and "
    try:
        model = _of_config(path.parent, held, path.name)
    except Unnamed as error:
        raise Unnamed(f"{reason}{error}") from None
    return fitted(model, groups), model.source


def _of_config(folder: Path, held: Mapping[str, Shape], file: str) -> Known:
    """Return the parameters of the model in ``config.json``; `held` are those in a file of it."""
    if not exists(folder / CONFIG):
        _refuse_adapter(folder)
        raise Unnamed(f"there is no {CONFIG} beside it")
    model = model_of_config(folder / CONFIG)
    _compare(model, held, file)
    return Known.of(model, f"{CONFIG} and {file}")


def model_of_config(path: Path) -> nn.Module:
    """Return the model of a ``config.json`` on the meta device; raise `Unnamed` with the reason.

    A class of transformers makes it. Code in a checkpoint is not run.
    """
    try:
        content = json.loads(content_of(path))
        (architecture,) = content["architectures"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        raise Unnamed(f"{path.name} does not name the model's architecture") from None
    try:
        check_sizes(content, path.name)
    except BadValueError as error:
        raise Unnamed(str(error)) from None
    try:
        import transformers
    except ImportError:
        raise Unnamed(
            f"transformers, which makes the model of {path.name}, is not installed"
        ) from None
    cls = getattr(transformers, str(architecture), None)
    if not (isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)):
        raise Unnamed(f"transformers has no model {str(architecture)!r}, which {path.name} names")
    messages: Any = transformers.logging
    verbosity = messages.get_verbosity()
    messages.set_verbosity_error()  # the others are advice on how to train and generate
    try:
        made: Any = cls
        config = made.config_class.from_pretrained(path, local_files_only=True)
        # Initial values of a few layers are drawn on the CPU wherever the model is made.
        with torch.random.fork_rng(devices=[]), torch.device("meta"), limited(path.name):
            model: nn.Module = made(config)
    except BadValueError as error:
        raise Unnamed(str(error)) from None
    except Exception as error:  # what transformers raises on odd configurations
        raise Unnamed(
            f"transformers cannot make the {cls.__name__} of {path.name} ({type(error).__name__})"
        ) from None
    finally:
        messages.set_verbosity(verbosity)
    return model


def _compare(model: nn.Module, held: Mapping[str, Shape], file: str) -> None:
    """Raise unless the file holds the model's parameters, each tied one under any of its names."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    for parameter, tied in names.items():
        shapes = [held[name] for name in tied if name in held]
        if not shapes or any(shape != tuple(parameter.shape) for shape in shapes):
            raise Unnamed(f"{file} does not hold {tied[0]!r} of the model of {CONFIG}")
    odd = held.keys() - {name for tied in names.values() for name in tied}
    odd -= {name for name, _ in model.named_buffers()}
    if odd:
        raise Unnamed(f"{file} holds {min(odd)!r}, which the model of {CONFIG} does not have")


def _names_in_text(path: Path) -> list[str]:
    """Return the names in a text file: one on each line, empty lines left out."""
    try:
        names = [line.strip() for line in content_of(path).decode("utf-8").splitlines()]
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise BadValueError(
            f"names={str(path)!r} cannot be read ({reason}); expected a file of a model, or a text "
            "file with one name per line"
        ) from None
    return [name for name in names if name]


def _held(path: Path) -> Iterator[tuple[str, Shape]]:
    """Name and shape of each tensor of a model's file, or of its shards."""
    try:
        if not path.is_file():  # a pipe would never end
            raise ValueError
        if path.suffix == ".json":
            names = [*json.loads(content_of(path))["weight_map"].values()]
            # A shard lies beside its index: anything else is not what a Trainer wrote.
            if not names or not all(Path(name).name == name for name in names):
                raise ValueError
            for name in sorted(set(names)):
                yield from _held(path.parent / name)
        elif path.suffix == ".safetensors":
            yield from ((name, parts.shape) for name, parts in header_of(path)[1].items())
        else:
            # Names and shapes are verified; the weights are not used.
            yield from _in_loaded(checkpoint.load(path, mmap=True, verify_large=False, know=know))
    except (AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError):
        raise Unnamed(f"{path.name} is missing, damaged, or no file of a model") from None


def _in_loaded(loaded: Any) -> Iterator[tuple[str, Shape]]:
    """Name and shape of each tensor of a model in the content of a file of ``torch.save``."""
    if not isinstance(loaded, Mapping):
        raise ValueError
    state_dict = next((loaded[n] for n in MODEL_KEYS if isinstance(loaded.get(n), Mapping)), loaded)
    seen: set[tuple[int, int, Shape]] = set()
    for name, tensor in state_dict.items():
        if not (isinstance(name, str) and isinstance(tensor, Tensor)):
            raise ValueError
        prefix, _, last = name.rpartition(".")
        if last in STATISTICS and f"{prefix}.num_batches_tracked".lstrip(".") in state_dict:
            continue  # of batch norms; no parameters
        shape = tuple(tensor.shape)
        # Tied parameters share memory; the optimizer has the first of them.
        key = (tensor.untyped_storage().data_ptr(), int(tensor.storage_offset()), shape)
        if tensor.is_floating_point() and (key not in seen or not tensor.numel()):
            seen.add(key)
            yield name, shape
