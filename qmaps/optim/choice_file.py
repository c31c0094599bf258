"""A choice of quantizers as a file, JSON or YAML where PyYAML is installed, and as code."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import fill
from types import ModuleType
from typing import Any

import numpy as np
import torch

from qmaps.algebra.quantizer import Quantizer, quantizer
from qmaps.errors import DAMAGE, BadTypeError, BadValueError, QmapsError, shown
from qmaps.maps.base import table
from qmaps.maps.codebook import Codebook
from qmaps.optim.choice import StateQuantizers
from qmaps.optim.groups import grouped
from qmaps.optim.presets import preset
from qmaps.storage import __version__, settings
from qmaps.storage.files import json_text, write_text

FORMAT = 1
KEYS = (
    *("format", "optimizer", "state_quantizers", "overrides", "min_quantized_size"),
    *("codebooks", "provenance"),
)

IN_32_BITS = ("32-bit", "32bit")
"""What files, and the dicts of a `Choice`, call the absence of a quantizer; None does too."""

WIDTH = 100
"""Characters of a line of code."""
OPTIONS = "# Give lr, weight_decay and the other options as before."
IN_GROUPS = "# Give the options that all groups share as before."
GROUPED = ("lr", "betas", "eps", "weight_decay")
FILL = """\
for name, param in model.named_parameters():
    number = next((n for pattern, n in patterns.items() if fnmatchcase(name, pattern)), {default})
    groups[number]["params"].append((name, param))
"""

Chosen = str | dict[str, Quantizer | None] | None
"""A preset's name, quantizers by state name, or None for 32 bits."""


@dataclass(frozen=True)
class Choice:
    """The quantizers of an optimizer's states, as a file can hold them.

    Args:
        state_quantizers: as the optimizers of `qmaps.optim` accept them: a preset's name, a dict
            from state names to specs or quantizers, or None for 32 bits. ``"32-bit"`` in a dict
            means 32 bits, as None does.
        overrides: the same by parameter name, or pattern of names with ``*``, ``?`` and ``[...]``.
            The first matching pattern decides.
        provenance: where the choice comes from, in values that JSON has, such as
            ``{"checkpoint": "checkpoint-500", "step": 500}``. `versions`, of qmaps and torch, is
            added if it is missing.
        optimizer: the class of `qmaps.optim` that `code` shows.
        min_quantized_size: as the optimizers accept it: states of at most this many elements stay
            in 32 bits. None leaves the optimizer's own value, 4096.

    Raises:
        BadValueError, BadTypeError, SpecError: a value is not allowed, two codebooks have one
            label, or a codebook belongs to one tensor.

    >>> choice = Choice({"exp_avg": "B128/DE-sym@4s+sr", "exp_avg_sq": "B128/DE-0@4u"},
    ...                 overrides={"lm_head.*": None})
    >>> print(choice.code)
    from qmaps.optim import AdamW
    <BLANKLINE>
    # Give lr, weight_decay and the other options as before.
    optimizer = AdamW(
        model.named_parameters(),
        state_quantizers={"exp_avg": "B128/DE-sym@4s+sr", "exp_avg_sq": "B128/DE-0@4u"},
        overrides={"lm_head.*": None},
    )
    """

    state_quantizers: StateQuantizers
    overrides: Mapping[str, StateQuantizers] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    optimizer: str = "AdamW"
    min_quantized_size: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.overrides, Mapping):
            raise BadTypeError(
                f"overrides={shown(self.overrides)} must be a dict from parameter names, or "
                "patterns of names, to quantizers"
            )
        overrides = {}
        for pattern, quantizers in self.overrides.items():
            if not isinstance(pattern, str):
                raise BadTypeError(f"overrides has the key {shown(pattern)}; a key must be a str")
            overrides[pattern] = _chosen(quantizers, f"overrides[{pattern!r}]")
        if not (isinstance(self.optimizer, str) and self.optimizer.isidentifier()):
            raise BadValueError(f"optimizer={shown(self.optimizer)} must be the name of a class")
        minimum = self.min_quantized_size
        if minimum is not None and (isinstance(minimum, bool) or not isinstance(minimum, int)):
            raise BadTypeError(f"min_quantized_size={shown(minimum)} must be an int or None")
        if minimum is not None and not 0 <= minimum <= 2**53:
            raise BadValueError(f"min_quantized_size={shown(minimum)} must be 0 to 2**53")
        quantizers = _chosen(self.state_quantizers, "state_quantizers")
        provenance = _plain(self.provenance)
        self.__dict__.update(  # as the dataclass is frozen
            state_quantizers=quantizers, overrides=overrides, provenance=provenance
        )
        self.codebooks()  # raises if they cannot be told apart

    @property
    def kwargs(self) -> dict[str, Any]:
        """Keyword arguments of an optimizer: ``AdamW(params, **choice.kwargs)``."""
        overrides = {"overrides": self.overrides} if self.overrides else {}
        return {"state_quantizers": self.state_quantizers, **overrides, **self._least()}

    @property
    def code(self) -> str:
        """Python code of the optimizer, to paste; it needs no file."""
        return self.code_for({})

    def code_for(self, options: Mapping[str, Mapping[str, Any]]) -> str:
        """Python code of the optimizer with groups, from options by the parameter's name.

        Those of lr, betas, eps and weight_decay that differ are given to the groups.
        """
        books, groups = self.codebooks(), _groups(options)
        lines = [f"from qmaps.optim import {self.optimizer}", ""]
        if groups:
            lines = ["from fnmatch import fnmatchcase", "", *lines]
        if books:
            made = [_codebook(label, _described(book)) for label, book in books.items()]
            lines = ["import qmaps", *lines, "codebooks = [", *made, "]", ""]
        labels = {label.lower() for label in books}
        lines += [*groups, IN_GROUPS if groups else OPTIONS, f"optimizer = {self.optimizer}("]
        lines.append("    groups," if groups else "    model.named_parameters(),")
        lines += _entry("state_quantizers=", self.state_quantizers, labels)
        if self.overrides:
            lines += _entry("overrides=", self.overrides, labels)
        lines += [f"    {name}={value}," for name, value in self._least().items()]
        return "\n".join([*lines, ")"])

    def codebooks(self) -> dict[str, Codebook]:
        """The user's codebooks by label."""
        books: dict[str, Codebook] = {}
        for q in self._quantizers():
            if not isinstance(q.map, Codebook):
                continue
            label = q.map.label
            if q.map.per_tensor:
                raise BadValueError(
                    f"{q.spec} has a codebook that was fitted to one tensor; a choice accepts "
                    "qmaps.Codebook(values, label=...)"
                )
            by_lower_label = {name.lower(): book for name, book in books.items()}
            if by_lower_label.get(label.lower(), q.map) != q.map:
                raise BadValueError(
                    f"two codebooks have the label {label!r}; each needs its own label"
                )
            books[label] = q.map
        return books

    def to_json(self) -> str:
        """The choice as JSON text, as in a file for `load_choice`."""
        return json_text(self._plain())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the choice to a file; it appears whole or not at all.

        Args:
            path: a file ending in ``.json``, ``.yaml`` or ``.yml``; an existing one is replaced.

        Raises:
            BadValueError: another ending, or YAML without PyYAML.
            OutputError: the file cannot be written.
        """
        yaml = settings.yaml_of(target := Path(path))
        if yaml is not None:
            write_text(target, yaml.safe_dump(self._plain(), sort_keys=False))
        else:
            write_text(target, self.to_json() + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Choice:
        """Read a file of `save`, or one written by hand with `state_quantizers`.

        Args:
            path: a file ending in ``.json``, ``.yaml`` or ``.yml``.

        Raises:
            BadValueError: the file is missing, damaged, of a later format, no choice, or has a key
                twice; or YAML without PyYAML.
        """
        source = Path(path)
        yaml = settings.yaml_of(source)
        try:
            return cls._of(_content(source, yaml))
        except QmapsError as error:
            raise BadValueError(f"{str(source)!r}: {error}") from None
        except DAMAGE:
            raise BadValueError(
                f"{str(source)!r} is damaged: its parts do not fit together"
            ) from None

    @classmethod
    def _of(cls, plain: Mapping[str, Any]) -> Choice:
        books = [
            Codebook(
                [float(value) for value in book["values"]],
                bits=book.get("bits"),
                signed=book.get("signed"),
                label=label,
            )
            for label, book in (plain.get("codebooks") or {}).items()
        ]
        overrides = plain.get("overrides") or {}
        if isinstance(overrides, Mapping):
            overrides = {
                pattern: _chosen(specs, f"overrides[{pattern!r}]", books)
                for pattern, specs in overrides.items()
            }
        return cls(
            _chosen(plain["state_quantizers"], "state_quantizers", books),
            overrides,
            # Nobody knows the versions behind a file that does not say.
            {"versions": {}, **(plain.get("provenance") or {})},
            plain.get("optimizer", "AdamW"),
            plain.get("min_quantized_size"),
        )

    def _plain(self) -> dict[str, Any]:
        books = self.codebooks()
        parts = {
            "overrides": {name: _written(value) for name, value in self.overrides.items()},
            "codebooks": {label: _described(book) for label, book in books.items()},
            "provenance": dict(self.provenance),
        }
        return {
            "format": FORMAT,
            "optimizer": self.optimizer,
            "state_quantizers": _written(self.state_quantizers),
            **self._least(),
            **{name: value for name, value in parts.items() if value},
        }

    def _least(self) -> dict[str, int]:
        """`min_quantized_size` as an argument, where it is given."""
        minimum = self.min_quantized_size
        return {} if minimum is None else {"min_quantized_size": minimum}

    def _quantizers(self) -> Iterator[Quantizer]:
        for quantizers in (self.state_quantizers, *self.overrides.values()):
            if isinstance(quantizers, Mapping):
                yield from (q for q in quantizers.values() if isinstance(q, Quantizer))


def load_choice(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a choice of quantizers as keyword arguments of an optimizer.

    ``AdamW(model.named_parameters(), **qmaps.load_choice("choice.json"))`` equals the optimizer
    that is made of the same quantizers, bit for bit.

    Args:
        path: as for `Choice.load`, which has the errors too.

    Returns:
        `state_quantizers`, and `overrides` and `min_quantized_size` if the file has them.
    """
    return Choice.load(path).kwargs


def is_file(quantizers: object) -> bool:
    """True if an option names a file of a choice in place of quantizers.

    >>> is_file("runs/mine/choice.json"), is_file("8bit")
    (True, False)
    """
    is_path = isinstance(quantizers, (str, os.PathLike))
    return is_path and Path(quantizers).suffix in settings.SUFFIXES  # type: ignore[arg-type]


def without_files(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of an optimizer or a group, choice files replaced by their contents.

    Overrides in a file come after those that are given, and its `min_quantized_size` counts
    where none is given. A file in `overrides` has no overrides of its own.

    Raises:
        BadValueError: as `Choice.load`, and where a file in `overrides` has overrides.
    """
    resolved, overrides = dict(options), options.get("overrides")
    if isinstance(overrides, Mapping):
        resolved["overrides"] = overrides = {
            pattern: _of_pattern(quantizers, f"overrides[{pattern!r}]")
            for pattern, quantizers in overrides.items()
        }
    if is_file(resolved.get("state_quantizers")):
        read = _opened(resolved["state_quantizers"], "state_quantizers")
        resolved["state_quantizers"] = read.pop("state_quantizers")
        if "overrides" in read:
            first = dict(overrides or {})  # as the first matching pattern decides
            resolved["overrides"] = {**first, **read["overrides"], **first}
        resolved = {**read, **resolved}
    return resolved


def _of_pattern(quantizers: Any, option: str) -> Any:
    """Quantizers of a pattern's parameters, from a file where they name one."""
    if not is_file(quantizers):
        return quantizers
    read = _opened(quantizers, option)
    if "overrides" in read:
        raise BadValueError(
            f"{option}={str(quantizers)!r} has overrides of its own; give such a file as "
            "state_quantizers"
        )
    return read["state_quantizers"]


def _opened(path: Any, option: str) -> dict[str, Any]:
    """The contents of a file, as keyword arguments; an error names the option."""
    try:
        return load_choice(path)
    except BadValueError as error:
        raise BadValueError(f"{option}={error}") from None


def _chosen(quantizers: StateQuantizers, option: str, books: Sequence[Codebook] = ()) -> Chosen:
    """Quantizers in place of specs; presets keep their names."""
    if quantizers is None or (isinstance(quantizers, str) and quantizers in IN_32_BITS):
        return None
    if isinstance(quantizers, str):
        preset(quantizers, option)  # raises an error that lists the presets
        return quantizers
    if not isinstance(quantizers, Mapping):
        raise BadTypeError(
            f"{option}={shown(quantizers)} must be a preset's name, a dict from state names to "
            "specs, or None"
        )
    by_state = {}
    for state, spec in quantizers.items():
        if not isinstance(state, str):
            raise BadTypeError(f"{option} has the key {shown(state)}; a key must be a state's name")
        absent = spec is None or (isinstance(spec, str) and spec in IN_32_BITS)
        by_state[state] = None if spec is None or absent else quantizer(spec, books)
    return by_state


def _written(quantizers: Any) -> Any:
    """The form of `quantizers` in a file."""
    if quantizers is None:
        return IN_32_BITS[0]
    if isinstance(quantizers, str):
        return quantizers
    return {state: IN_32_BITS[0] if q is None else q.spec for state, q in quantizers.items()}


def _described(book: Codebook) -> dict[str, Any]:
    values = [_short(value) for value in table(book).tolist()]
    return {"bits": book.bits, "signed": book.signed, "values": values}


def _short(value: float) -> float:
    """The number of fewest digits for the same float32."""
    short = float(str(np.float32(value)))
    return short if float(np.float32(short)) == value else value


def _plain(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """A provenance as JSON has it, with versions."""
    versions = {"qmaps": __version__, "torch": str(torch.__version__)}
    try:
        plain: dict[str, Any] = json.loads(json_text({"versions": versions, **provenance}))
    except (TypeError, ValueError, RecursionError):
        raise BadTypeError(
            f"provenance={shown(provenance)} must be a dict of values that JSON has"
        ) from None
    return plain


def _content(path: Path, yaml: ModuleType | None) -> Mapping[str, Any]:
    """The dict in a file, with the keys of a choice."""
    plain = settings.read(path, yaml, "choice of quantizers")
    if "state_quantizers" not in plain:
        raise BadValueError("it is no choice of quantizers; 'state_quantizers' is missing")
    version = plain.get("format", FORMAT)
    if version != FORMAT:
        raise BadValueError(f"format={shown(version)} is not supported; {FORMAT} is")
    settings.check_keys(plain, KEYS)
    return plain


def _groups(options: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Lines for parameter groups of a model; none if `GROUPED` options are all equal."""

    def option(name: str, key: str) -> str:
        value = options[name].get(key)
        if key == "lr":  # which a schedule has changed
            value = options[name].get("initial_lr", value)
        shown = tuple(value) if isinstance(value, list) else value
        return "" if value is None else f', "{key}": {shown!r}'

    differing = [key for key in GROUPED if len({option(name, key) for name in options}) > 1]
    code = {name: "".join(option(name, key) for key in differing) for name in options}
    groups = list(dict.fromkeys(code.values()))
    if len(groups) < 2:
        return []
    patterns = grouped({name: groups.index(text) for name, text in code.items()}, code)
    numbers = list(patterns.values())
    default = max(range(len(groups)), key=numbers.count)  # which has the most patterns
    named = {pattern: number for pattern, number in patterns.items() if number != default}
    return [
        f"# Parameter groups of the checkpoint. Names without a pattern are in groups[{default}].",
        "groups = [",
        *(f'    {{"params": []{text}}},' for text in groups),
        "]",
        "patterns = {",
        *(f"    {_quoted(pattern)}: {number}," for pattern, number in named.items()),
        "}",
        *FILL.format(default=default).splitlines(),
        "",
    ]


def _codebook(label: str, book: Mapping[str, Any]) -> str:
    values = ", ".join(map(repr, book["values"]))
    options = f"bits={book['bits']}, signed={book['signed']}, label={_quoted(label)}"
    return fill(
        f"qmaps.Codebook([{values}], {options}),",
        WIDTH,
        initial_indent="    ",
        subsequent_indent="        ",
        break_long_words=False,  # such as a label
        break_on_hyphens=False,
    )


def _code(value: Any, labels: set[str]) -> str:
    """Code of quantizers on one line; codebooks with these labels are in a list of their own."""
    if isinstance(value, Mapping):
        members = [f"{_quoted(key)}: {_code(member, labels)}" for key, member in value.items()]
        return f"{{{', '.join(members)}}}"
    if isinstance(value, Quantizer):
        spec, label = _quoted(value.spec), getattr(value.map, "label", "")
        return f"qmaps.quantizer({spec}, codebooks)" if label.lower() in labels else spec
    return "None" if value is None else _quoted(value)


def _entry(start: str, value: Any, labels: set[str], indent: int = 4) -> list[str]:
    """The start and the value on one line, or on several if that is too long."""
    start = " " * indent + start
    line = f"{start}{_code(value, labels)},"
    if len(line) <= WIDTH or not isinstance(value, Mapping):
        return [line]
    lines = [f"{start}{{"]
    for key, member in value.items():
        lines += _entry(f"{_quoted(key)}: ", member, labels, indent + 4)
    return [*lines, f"{' ' * indent}}},"]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
