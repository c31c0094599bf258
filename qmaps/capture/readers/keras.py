"""Keras 3: ``.keras`` files of models, and ``.weights.h5`` files, with their optimizers."""

from __future__ import annotations

import io
import json
import math
import re
import struct
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, product, takewhile
from pathlib import Path
from typing import Any, ClassVar

from qmaps.capture.readers.base import (
    TRANSPOSED,
    Reader,
    Shape,
    StateDict,
    decimal,
    dtype_of,
    in_file,
    needed,
)
from qmaps.capture.snapshot import Lazy
from qmaps.errors import CaptureError, shown
from qmaps.storage import kinds
from qmaps.storage.files import size_of

WEIGHTS, CONFIG = "model.weights.h5", "config.json"
"""Records of a ``.keras`` file."""

ENDINGS = (".keras", ".weights.h5")

LARGEST = 2**26
"""Bytes of a model's config, at most."""

DEEPEST = 32
"""Groups in one another, at most."""

SAMPLE = 2**16
"""Elements of a state that are looked at for a negative one, at most."""

OPTIMIZER = "optimizer"
"""Group of the optimizer's variables."""

ADAM = ("exp_avg", "exp_avg_sq")

Blocks = Sequence[tuple[str, Sequence[str]]]

STATES: Mapping[str, Blocks] = {
    "Adam": (("", ADAM), ("amsgrad", ("max_exp_avg_sq",))),
    "AdamW": (("", ADAM), ("amsgrad", ("max_exp_avg_sq",))),
    "Lamb": (("", ADAM),),
    "Adamax": (("", ("exp_avg", "exp_inf")),),
    "Lion": (("", ("exp_avg",)),),
    # Momenta of updates: they have the learning rate in them, which torch's do not.
    "SGD": (("momentum", ("momentum",)),),
    "RMSprop": (("", ("square_avg",)), ("momentum", ("momentum",)), ("centered", ("grad_avg",))),
    "Adagrad": (("", ("sum",)),),
}
"""Blocks of variables of each class: an option without which there is none, and the states of each
parameter, side by side."""

SIGNED = frozenset({"exp_avg", "momentum", "grad_avg"})

CLASSES = {
    **{name.lower(): name for name in STATES},
    "adam_w": "AdamW",
    "rm_sprop": "RMSprop",
}
"""Class by the name that Keras gives an optimizer."""

OPTIONS = {"learning_rate": "lr", "epsilon": "eps", "weight_decay": "weight_decay"}
"""Options of Keras, and torch's names."""

NUMBER = re.compile(r"_\d+$")
"""End of the name of a second optimizer of a class."""

SEEDS = "seed_generator/vars"
"""End of groups of random states."""

FROZEN = {"BatchNormalization": 2}
"""Number of variables at the end of a layer that are not trained, by its class."""


class Keras(Reader):
    """A file of ``model.save`` or ``model.save_weights``.

    Keras numbers an optimizer's variables. A ``.keras`` file has the options that tell which is
    which, and the layers, for names such as ``dense.0``. Of a ``.weights.h5`` file the class is
    known by the optimizer's name, and the rest by shapes and signs.
    """

    name: ClassVar[str] = "keras"
    writable: ClassVar[bool] = False
    note: ClassVar[str] = TRANSPOSED

    def is_here(self, path: Path) -> bool:
        """Return True for a file whose name ends as Keras's."""
        return path.name.endswith(ENDINGS) and path.is_file()

    def newest(self, path: Path) -> Path | None:
        """Return the only file of this kind in a folder."""
        files = path.iterdir() if path.is_dir() else ()
        here = [file for file in files if self.is_here(file)]
        return here[0] if len(here) == 1 else None

    def state_dicts(self, path: Path) -> list[StateDict]:
        """See `Reader.state_dicts`."""
        is_model = path.suffix == ".keras"
        if kinds.kind_of(path) != (kinds.KERAS if is_model else kinds.HDF5):
            raise CaptureError(
                kinds.refusal(path) or f"{str(path)!r} is no file of Keras 3, or is damaged"
            )
        config, (start, length) = _records(path) if is_model else ({}, (0, size_of(path)))
        h5py = needed("h5py", "keras", path)
        with _Window(path, start, length) as content, h5py.File(content, "r") as file:
            stored = _Stored(h5py, path, start)
            stored.add(file)
        return [_state_dict(stored, config, path)]


def _records(path: Path) -> tuple[Mapping[str, Any], tuple[int, int]]:
    """The config in a ``.keras`` file, and the place of the file with its variables."""
    with zipfile.ZipFile(path) as archive:
        about, weights = archive.getinfo(CONFIG), archive.getinfo(WEIGHTS)
        if weights.compress_type != zipfile.ZIP_STORED or about.file_size > LARGEST:
            raise CaptureError(
                f"{str(path)!r} has {WEIGHTS} compressed, or a {CONFIG} of {about.file_size} "
                "bytes; save it with Keras"
            )
        config = json.loads(archive.read(about))
    with path.open("rb") as file:
        file.seek(weights.header_offset + 26)  # lengths of what lies before the content
        name, extra = struct.unpack("<HH", file.read(4))
    start = weights.header_offset + 30 + name + extra
    if start + weights.file_size > size_of(path):
        raise ValueError("a record ends after the file")
    return config, (start, weights.file_size)


class _Window(io.RawIOBase):
    """A part of a file, as a file of its own."""

    def __init__(self, path: Path, start: int, length: int) -> None:
        self.file = path.open("rb")
        self.start, self.length, self.at = start, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = (0, self.at, self.length)[whence] + offset
        return self.at

    def tell(self) -> int:
        return self.at

    def readinto(self, buffer: Any) -> int:
        self.file.seek(self.start + self.at)
        view = memoryview(buffer).cast("B")
        read = self.file.readinto(view[: max(0, min(len(view), self.length - self.at))])
        self.at += read
        return read

    def close(self) -> None:
        self.file.close()
        super().close()


@dataclass
class _Stored:
    """Places of the variables in an HDF5 file, by their paths, and names of groups."""

    h5py: Any
    path: Path
    start: int
    tensors: dict[str, Lazy] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)

    def add(self, group: Any, prefix: str = "", deeper: int = DEEPEST) -> None:
        address = self.h5py.h5o.get_info(group.id).addr
        if address in self.seen or not deeper:
            raise CaptureError(f"{str(self.path)!r} has a group within itself, or too deep")
        self.seen.add(address)
        if isinstance(name := group.attrs.get("name"), str):
            self.names[prefix.rstrip("/")] = name
        for key in group:
            at = f"{prefix}{key}"
            # Anything else could lead to files of another owner.
            if not isinstance(group.get(key, getlink=True), self.h5py.HardLink):
                raise CaptureError(f"{str(self.path)!r} has the link {shown(at)}, not a variable")
            member = group[key]
            if isinstance(member, self.h5py.Group):
                self.add(member, f"{at}/", deeper - 1)
            elif member.dtype.kind in "fiuV" and not at.rpartition("/")[0].endswith(SEEDS):
                self.tensors[at] = self._lazy(member, at)

    def numbered(self, group: str) -> list[Lazy]:
        """The variables of a group in the order of their numbers."""
        names = (f"{group}/{number}" for number in count())
        return [self.tensors[name] for name in takewhile(self.tensors.__contains__, names)]

    def model(self) -> Counter[Shape]:
        """Shapes of the variables outside the optimizer."""
        own = (at for at in self.tensors if not at.startswith(OPTIMIZER))
        return Counter(self.tensors[at].shape for at in own)

    def _lazy(self, dataset: Any, at: str) -> Lazy:
        # Keras stores bfloat16 as two bytes without a meaning.
        name = str(dataset.attrs.get("dtype") or dataset.dtype.name)
        dtype = dtype_of(name, at, self.path)
        properties = dataset.id.get_create_plist()
        is_plain = properties.get_layout() == self.h5py.h5d.CONTIGUOUS
        offset = dataset.id.get_offset() if is_plain and not dataset.external else None
        if dataset.dtype.byteorder == ">" or (dataset.size and offset is None):
            raise CaptureError(
                f"{str(self.path)!r} has {shown(at)} in pieces, in another file or in another "
                "order of bytes than Keras writes it"
            )
        place = self.start + (offset or 0)
        return in_file(self.path, place, dataset.nbytes, dtype, tuple(dataset.shape))


@dataclass(frozen=True)
class _Layout:
    """Number and states of the variables of each parameter, by blocks.

    `before` variables belong to no parameter, and `extra` blocks have no states: averages of
    weights, and accumulated gradients.
    """

    before: int
    extra: int
    blocks: Sequence[Sequence[str]]

    def states(self, variables: Sequence[Lazy]) -> list[dict[str, Lazy]] | None:
        """The states of each parameter; None if numbers and shapes do not fit."""
        if not self.blocks:
            return []
        own = variables[self.before :]
        width = self.extra + sum(map(len, self.blocks))
        count, rest = divmod(len(own), width)
        if rest or not count:
            return None
        shapes = [[lazy.shape for lazy in own[n * count :][:count]] for n in range(self.extra)]
        states: list[dict[str, Lazy]] = [{} for _ in range(count)]
        at = self.extra * count
        for block in self.blocks:
            for number in range(count):
                for name in block:
                    states[number][name] = own[at]
                    at += 1
            shapes += [[members[name].shape for members in states] for name in block]
        return states if all(row == shapes[0] for row in shapes) else None


def _state_dict(stored: _Stored, config: Mapping[str, Any], path: Path) -> StateDict:
    place, about = OPTIMIZER, _within(config, "compile_config", "optimizer")
    while f"{place}/inner_optimizer/vars/0" in stored.tensors:  # of one that scales losses
        place, about = f"{place}/inner_optimizer", _within(about, "config", "inner_optimizer")
    variables = stored.numbered(f"{place}/vars")
    if not variables:
        raise CaptureError(
            f"{str(path)!r} is a model of Keras without an optimizer's variables; save a compiled "
            "model after a step of training"
        )
    own_name = stored.names.get(f"{place}/vars", "")
    usual = CLASSES.get(NUMBER.sub("", own_name), own_name)
    name = str(about["class_name"]) if about else usual
    if name not in STATES:
        remedy = "" if about else "; give the .keras file, which has the class"
        raise CaptureError(
            f"{str(path)!r} has the optimizer {shown(name)}; those of Keras that are "
            f"read are {', '.join(STATES)}{remedy}"
        )
    options = _within(about, "config")
    if about:
        states = _layout(STATES[name], options).states(variables)
    else:
        states = _guessed(STATES[name], variables, stored.model())
    if states is None:
        remedy = "" if about else "; give the .keras file, which has its options"
        raise CaptureError(
            f"{str(path)!r} has {len(variables)} variables of {name}, whose order cannot be told "
            f"from {'its options' if about else 'shapes and signs'}{remedy}"
        )
    batches = int(variables[0].read().item())
    step = batches // int(options.get("gradient_accumulation_steps") or 1)
    keys: list[Any] = _labels(stored, config, list(map(_shape, states))) or list(range(len(states)))
    numbers = {new: options.get(old) for old, new in OPTIONS.items()}
    group: dict[str, Any] = {new: x for new, x in numbers.items() if isinstance(x, float)}
    if "lr" in group:
        group["lr"] = decimal(group["lr"])
    if {"beta_1", "beta_2"} <= options.keys():
        group["betas"] = (options["beta_1"], options["beta_2"])
    state = {key: {**members, "step": step} for key, members in zip(keys, states, strict=True)}
    return {"state": state, "param_groups": [{**group, "params": keys}]}


def _within(config: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """A part of a config; empty where there is none."""
    for key in keys:
        config = config.get(key) or {}
    return config


def _layout(blocks: Blocks, options: Mapping[str, Any]) -> _Layout:
    """The layout that options of Keras make."""
    return _Layout(
        1 if isinstance(options.get("learning_rate"), Mapping) else 2,  # a schedule is no variable
        bool(options.get("use_ema")) + bool(options.get("gradient_accumulation_steps")),
        [names for option, names in blocks if not option or options.get(option)],
    )


def _guessed(
    blocks: Blocks, variables: Sequence[Lazy], model: Counter[Shape]
) -> list[dict[str, Lazy]] | None:
    """The states by the only layout that shapes and signs allow, if it has no further blocks."""
    optional = [(True,) if not option else (False, True) for option, _ in blocks]
    rates = (1, 2) if len(variables) > 1 and variables[1].shape == () else (1,)
    found = []
    for before, extra, chosen in product(rates, range(3), product(*optional)):
        names = [names for (_, names), taken in zip(blocks, chosen, strict=True) if taken]
        states = _Layout(before, extra, names).states(variables)
        if states and Counter(map(_shape, states)) <= model and _has_signs(states):
            found.append((extra, states))
    return found[0][1] if len(found) == 1 and not found[0][0] else None


def _shape(states: Mapping[str, Lazy]) -> Shape:
    return next(iter(states.values())).shape


def _has_signs(states: Sequence[Mapping[str, Lazy]]) -> bool:
    """True if averages have negative elements, and averages of squares none."""
    return all(any(_is_signed(m[name]) for m in states) == (name in SIGNED) for name in states[0])


def _is_signed(lazy: Lazy) -> bool:
    return bool((lazy.opened()(0, min(math.prod(lazy.shape), SAMPLE)) < 0).any())


def _labels(
    stored: _Stored, config: Mapping[str, Any], shapes: Sequence[Shape]
) -> list[str] | None:
    """Names such as ``dense.0`` of the trained variables in the model's order; None if unknown."""
    groups = {at.rpartition("/")[0] for at in stored.tensors if not at.startswith(OPTIMIZER)}
    by_name = {stored.names.get(group): group for group in groups}
    labels, found = [], []
    for layer in _layers(config, DEEPEST):
        own = layer["config"]
        if (group := by_name.pop(own["name"], None)) is None:
            continue
        groups.discard(group)
        held = stored.numbered(group)
        is_frozen = not own.get("trainable", True)
        trained = 0 if is_frozen else len(held) - FROZEN.get(layer["class_name"], 0)
        for number, lazy in enumerate(held[:trained]):
            labels.append(f"{own['name']}.{number}")
            found.append(lazy.shape)
    # Variables of a group that is no layer's, as within attention, have an order of their own.
    return labels if found == list(shapes) and not groups else None


def _layers(config: Mapping[str, Any], deeper: int) -> Iterator[Mapping[str, Any]]:
    """Yield every layer of a model, and of models in it, in its order."""
    for layer in _within(config, "config").get("layers") or ():
        yield layer
        if deeper:
            yield from _layers(layer, deeper - 1)
