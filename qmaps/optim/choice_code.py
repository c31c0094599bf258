"""Python code of an optimizer with chosen quantizers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from textwrap import fill
from typing import Any

from qmaps.optim.groups import grouped

WIDTH = 100
"""Characters of a line."""
OPTIONS = "# Give lr, weight_decay and the other options as before."
IN_GROUPS = "# Give the options that all groups share as before."
GROUPED = ("lr", "betas", "eps", "weight_decay")
FILL = """\
for name, param in model.named_parameters():
    number = next((n for pattern, n in patterns.items() if fnmatchcase(name, pattern)), {default})
    groups[number]["params"].append((name, param))
"""


def of(
    optimizer: str,
    state_quantizers: Any,
    overrides: Mapping[str, Any],
    codebooks: Mapping[str, Mapping[str, Any]],
    options: Mapping[str, int],
    of_parameters: Mapping[str, Mapping[str, Any]],
) -> str:
    """Return the code."""
    groups = _groups(of_parameters)
    lines = [f"from qmaps.optim import {optimizer}", ""]
    if groups:
        lines = ["from fnmatch import fnmatchcase", "", *lines]
    if codebooks:
        lines = ["import qmaps", *lines, "codebooks = ["]
        for label, book in codebooks.items():
            lines += _codebook(label, book)
        lines += ["]", ""]
    labels = {label.lower() for label in codebooks}
    lines += [*groups, IN_GROUPS if groups else OPTIONS, f"optimizer = {optimizer}("]
    lines.append("    groups," if groups else "    model.named_parameters(),")
    lines += _entry("state_quantizers=", _written(state_quantizers, labels), 4)
    if overrides:
        chosen = {pattern: _written(named, labels) for pattern, named in overrides.items()}
        lines += _entry("overrides=", chosen, 4)
    lines += [f"    {name}={value}," for name, value in options.items()]
    return "\n".join([*lines, ")"])


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
        *("patterns = {", *_entries(named, 4), "}"),
        *FILL.format(default=default).splitlines(),
        "",
    ]


def _codebook(label: str, book: Mapping[str, Any]) -> list[str]:
    values = fill(
        ", ".join(map(repr, book["values"])) + ",",
        WIDTH,
        initial_indent=" " * 12,
        subsequent_indent=" " * 12,
        break_on_hyphens=False,
    )
    options = f"bits={book['bits']}, signed={book['signed']}, label={_quoted(label)}"
    return [
        "    qmaps.Codebook(",
        "        [",
        values,
        "        ],",
        f"        {options},",
        "    ),",
    ]


def _written(quantizers: Any, labels: set[str]) -> Any:
    """Code of each quantizer, in the structure of `quantizers`."""
    if isinstance(quantizers, Mapping):
        return {state: _quantizer(q, labels) for state, q in quantizers.items()}
    return "None" if quantizers is None else _quoted(quantizers)


def _quantizer(q: Any, labels: set[str]) -> str:
    if q is None:
        return "None"
    label = getattr(q.map, "label", "")
    spec = _quoted(q.spec)
    return f"qmaps.quantizer({spec}, codebooks)" if label.lower() in labels else spec


def _entries(value: Mapping[str, Any], indent: int) -> list[str]:
    """``"key": member,`` of each member."""
    return [
        line
        for key, member in value.items()
        for line in _entry(f"{_quoted(key)}: ", member, indent)
    ]


def _entry(start: str, value: Any, indent: int) -> list[str]:
    """The start and the value on one line, or on several if that is too long."""
    start = " " * indent + start
    line = f"{start}{_flat(value)},"
    if len(line) <= WIDTH or not isinstance(value, Mapping):
        return [line]
    return [f"{start}{{", *_entries(value, indent + 4), f"{' ' * indent}}},"]


def _flat(value: Any) -> str:
    if isinstance(value, Mapping):
        members = [f"{_quoted(key)}: {_flat(member)}" for key, member in value.items()]
        return f"{{{', '.join(members)}}}"
    return str(value)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
