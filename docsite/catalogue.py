"""Facts for `qmaps maps` and `qmaps memory`, printed without importing torch.

``python -m docsite.catalogue`` writes ``qmaps/cli/catalogue.json``; a test fails where the file is
not up to date.
"""

from __future__ import annotations

import sys
from typing import Any

from qmaps import optim
from qmaps.cli.catalogue import FILE, listing, modules, states_of
from qmaps.cli.memory import measured
from qmaps.cli.sizes import COLUMNS
from qmaps.errors import BadValueError
from qmaps.storage.files import json_text

SIZES = ((2, 1), (3, 0), (4096, 4095), (4097, 7), (10**6, 100), (10**8, 0))
"""Rows of matrices and elements of vectors for the check of linear growth."""


def states(optimizer: str) -> dict[str, Any] | None:
    """The entry of an optimizer; None unless each row of a matrix adds equal bytes of states."""

    def bytes_of(rows: int, extra: int = 0) -> tuple[dict[str, int], int]:
        model = measured(str(rows * COLUMNS + extra), optimizer)
        return model.states, model.in_adamw

    try:
        (two, _), (three, _), (vector, in_adamw) = bytes_of(2), bytes_of(3), bytes_of(2, 1)
    except BadValueError:  # the states depend on shapes
        return None
    first = next(iter(two))
    form = {
        "presets": {
            name: [three[name] - two[name], 3 * two[name] - 2 * three[name]] for name in two
        },
        "vector": vector[first] - two[first],
        "vector_in_adamw": bool(in_adamw),
    }
    linear = all(states_of(*size, form) == bytes_of(*size) for size in SIZES)
    return form if linear else None


def text() -> str:
    """Content of the file, with one line for each entry."""
    forms = {name: form for name in optim.rules() if (form := states(name)) is not None}
    facts = {"modules": modules(), **listing(), "states": forms}
    lines = []
    for name, entries in facts.items():
        if isinstance(entries, dict):
            parts = [f"  {json_text(key)}: {_line(value)}" for key, value in entries.items()]
            lines.append(f"{json_text(name)}: {{\n" + ",\n".join(parts) + "\n}")
        elif name == "maps":
            parts = [f"  {_line(value)}" for value in entries]
            lines.append(f"{json_text(name)}: [\n" + ",\n".join(parts) + "\n]")
        else:
            lines.append(f"{json_text(name)}: {_line(entries)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _line(value: Any) -> str:
    return " ".join(json_text(value).split())


def main() -> int:
    """Write the file."""
    FILE.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
