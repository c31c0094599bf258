"""Names for the numbered parameters of a checkpoint.

An optimizer has its parameters in the model's order, or in two groups: those with weight decay and
those without, each in the model's order. A group is identified by its place and its weight decay,
and the group of a parameter by the rules in `RULES`. Parameters outside the optimizer, such as
frozen ones, are left out. Names are accepted only if the shape of every state agrees, and
no other names would agree too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from qmaps.errors import BadValueError
from qmaps.storage import checkpoint
from qmaps.storage.files import content_of, exists

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Known:
    """The parameters of a model, in the model's order.

    Attributes:
        source: source of the parameters, for messages.
        shapes: shape of each parameter by its name; a tied parameter has its first name.
        norms: names of the parameters of each ``nn.LayerNorm``, as far as known.
    """

    source: str
    shapes: Mapping[str, Shape]
    norms: frozenset[str] = frozenset()

    @classmethod
    def of(cls, model: nn.Module, source: str) -> Known:
        """Return the trained parameters of a model.

        Args:
            model: the model, also on the meta device.
            source: source of the model, for messages.
        """
        shapes = {
            name: tuple(parameter.shape)
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        norms = {
            f"{prefix}.{name}".removeprefix(".")
            for prefix, module in model.named_modules()
            if isinstance(module, nn.LayerNorm)
            for name, _ in module.named_parameters(recurse=False)
        }
        return cls(source, shapes, frozenset(norms))


SHAPED_AS_PARAMETER = (
    "exp_avg",
    "exp_avg_sq",
    "momentum_buffer",
    "square_avg",
    "sum",
    "state1",
    "state2",
)
"""States with the shape of their parameter, in any optimizer."""


class Unnamed(Exception):  # noqa: N818
    """Names cannot be recovered; the message says why."""


class _Shaped(Protocol):
    @property
    def shape(self) -> Shape: ...


@dataclass(frozen=True)
class Group:
    """A parameter group of an optimizer.

    Attributes:
        shapes: shape of each parameter; None where its states do not tell.
        weight_decay: weight decay of the group; None where the optimizer has none.
    """

    shapes: Sequence[Shape | None]
    weight_decay: Any = None


def parameter_shape(states: Mapping[str, _Shaped]) -> Shape | None:
    """Return the shape of a parameter from its states, or None.

    Args:
        states: the states by name.
    """
    for name in SHAPED_AS_PARAMETER:
        if name in states:
            return tuple(states[name].shape)
    rows, columns = states.get("exp_avg_sq_row"), states.get("exp_avg_sq_col")
    if rows is None or columns is None:
        return None
    return (*rows.shape, *columns.shape[-1:])


def fitted(model: Known, groups: Sequence[Group]) -> list[str]:
    """Return the name of each parameter in the optimizer's order.

    Raises:
        Unnamed: no names agree with all shapes, or several do.
    """
    shapes = [shape for group in groups for shape in group.shapes]
    if all(shape is None for shape in shapes):
        raise Unnamed("no state has the shape of its parameter")
    if len(model.shapes) < len(shapes):
        raise Unnamed(
            f"{model.source} has {len(model.shapes)} parameters and the optimizer {len(shapes)}"
        )
    orders: set[tuple[str, ...]] = set(_ways([_Part(list(model.shapes), shapes)], model))
    if len(groups) == 2:
        first, second = groups[::-1] if _exempt_first(groups) else groups
        for rule in RULES:
            exempt = [name for name in model.shapes if rule(name, model)]
            decaying = [name for name in model.shapes if not rule(name, model)]
            parts = [_Part(decaying, first.shapes), _Part(exempt, second.shapes)]
            orders |= set(_ways(parts if first is groups[0] else parts[::-1], model))
    if not orders:
        raise Unnamed(f"the states do not have the shapes of the parameters in {model.source}")
    if len(orders) > 1:
        raise Unnamed(f"the states fit the parameters in {model.source} in several orders")
    return list(orders.pop())


@dataclass(frozen=True)
class _Part:
    """Names in the model's order, and the shapes of the parameters among them."""

    names: Sequence[str]
    wanted: Sequence[Shape | None]


def _ways(parts: Sequence[_Part], model: Known) -> list[tuple[str, ...]]:
    """The first and the last choice of names for all parts; they differ if there are several."""
    ways = []
    for step in (1, -1):
        chosen: list[str] = []
        for part in parts:
            fit = _first_fit(part.names[::step], part.wanted[::step], model)
            if fit is None:
                return []
            chosen += fit[::step]
        ways.append(tuple(chosen))
    return ways


def _first_fit(
    names: Sequence[str], wanted: Sequence[Shape | None], model: Known
) -> list[str] | None:
    """For each shape in turn the next name of that shape; None if the names do not suffice."""
    candidates = iter(names)
    fit = []
    for shape in wanted:
        name = next((n for n in candidates if shape in (None, model.shapes[n])), None)
        if name is None:
            return None
        fit.append(name)
    return fit


def _exempt_first(groups: Sequence[Group]) -> bool:
    """Return True if the first of two groups is the one without weight decay."""
    return not groups[0].weight_decay and bool(groups[1].weight_decay)


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


def described_by_config(folder: Path, held: Mapping[str, Shape], file: str) -> Known:
    """Return the parameters of the model in ``config.json``, in the model's order.

    The model is made on the meta device, where it takes no memory, by a class of transformers. Code
    in a checkpoint is not run.

    Args:
        folder: the folder of ``config.json``.
        held: shape of each tensor in the model's file, by name.
        file: name of that file, for messages.

    Raises:
        Unnamed: there is no such file, transformers is not installed or cannot make the model, or
            the model has other parameters than its file.
    """
    name = _architecture(folder / CONFIG)
    try:
        import transformers
    except ImportError:
        raise Unnamed(
            f"transformers, which makes the model of {CONFIG}, is not installed"
        ) from None
    cls = getattr(transformers, name, None)
    if not (isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)):
        raise Unnamed(f"transformers has no model {name!r}, which {CONFIG} names")
    messages: Any = transformers.logging
    verbosity = messages.get_verbosity()
    messages.set_verbosity_error()  # the others are advice on how to train and generate
    try:
        model = _made(cls, folder)
    finally:
        messages.set_verbosity(verbosity)
    _compare(model, held, file)
    return Known.of(model, f"{CONFIG} and {file}")


def _architecture(path: Path) -> str:
    if not exists(path):
        raise Unnamed(f"there is no {CONFIG} beside it")
    try:
        config = json.loads(content_of(path))
        (name,) = config["architectures"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        raise Unnamed(f"{CONFIG} does not name the model's architecture") from None
    return str(name)


def _made(cls: Any, folder: Path) -> nn.Module:
    try:
        config = cls.config_class.from_pretrained(folder, local_files_only=True)
        # Initial values of a few layers are drawn on the CPU wherever the model is made.
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            model: nn.Module = cls(config)
    except Exception as error:  # what transformers raises on odd configurations
        raise Unnamed(
            f"transformers cannot make the {cls.__name__} of {CONFIG} ({type(error).__name__})"
        ) from None
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


FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""Names of a model's file in a checkpoint's folder, in the order of preference."""

WRAPPERS = ("state_dict", "model_state_dict", "model")
"""Keys of the model's state_dict in larger files."""

STATISTICS = ("running_mean", "running_var")


def names_in_text(path: Path) -> list[str]:
    """Return the names in a text file: one on each line, empty lines left out.

    Raises:
        BadValueError: the file cannot be read, or has no name.
    """
    try:
        names = [line.strip() for line in content_of(path).decode("utf-8").splitlines()]
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise BadValueError(
            f"names={str(path)!r} cannot be read ({reason}); expected a file of a model, or a text "
            "file with one name per line"
        ) from None
    return [name for name in names if name]


def by_place(place: Path, groups: Sequence[Group]) -> tuple[list[str], str]:
    """Return the name of each parameter in the optimizer's order, and where the names come from.

    The files of safetensors and the indices of shards do not keep the model's order. transformers
    makes the model from ``config.json`` beside them, without weights.

    Args:
        place: the folder or a file of a model.
        groups: groups of the optimizer.

    Raises:
        Unnamed: names cannot be recovered.
    """
    path = _file(place)
    held = dict(_held(path))
    reason = f"{path.name} keeps no order of parameters, and "
    # torch keeps the order of what it saves.
    if path.suffix not in (".safetensors", ".json") or ".bin" in path.suffixes:
        try:
            return fitted(Known(path.name, held), groups), path.name
        except Unnamed as error:  # a model tells what a list of names does not
            reason = f"{error}, and "
    try:
        model = described_by_config(path.parent, held, path.name)
    except Unnamed as error:
        raise Unnamed(f"{reason}{error}") from None
    return fitted(model, groups), model.source


def _file(place: Path) -> Path:
    if not place.is_dir():
        return place
    path = next((place / name for name in FILES if exists(place / name)), None)
    if path is None:
        raise Unnamed("there is no model.safetensors or pytorch_model.bin beside the optimizer")
    return path


def _held(path: Path) -> Iterator[tuple[str, Shape]]:
    """Name and shape of each tensor of a model's file, or of its shards."""
    try:
        if not path.is_file():  # a pipe would never end
            raise ValueError
        if path.suffix == ".json":
            for shard in _shards(path):
                yield from _held(shard)
        elif path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118
                    yield name, tuple(file.get_slice(name).get_shape())
        else:
            yield from _in_torch_file(path)
    except (OSError, SafetensorError, ValueError, RecursionError):
        raise Unnamed(f"{path.name} is missing, damaged, or no file of a model") from None


def _shards(index: Path) -> list[Path]:
    parsed = json.loads(content_of(index))
    weight_map = parsed.get("weight_map") if isinstance(parsed, dict) else None
    names = list(weight_map.values()) if isinstance(weight_map, dict) else []
    # A shard lies beside its index: anything else is not what a Trainer wrote.
    if not names or not all(isinstance(n, str) and Path(n).name == n for n in names):
        raise ValueError
    return [index.parent / name for name in sorted(set(names))]


def _in_torch_file(path: Path) -> Iterator[tuple[str, Shape]]:
    loaded = checkpoint.load(path, mmap=True)
    if not isinstance(loaded, Mapping):
        raise ValueError
    state_dict = next((loaded[n] for n in WRAPPERS if isinstance(loaded.get(n), Mapping)), loaded)
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
