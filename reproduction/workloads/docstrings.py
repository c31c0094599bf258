"""Functions of the Python standard library beside their docstrings."""

from __future__ import annotations

import ast
import functools
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from qmaps.errors import BadValueError
from qmaps.lab.workloads.corpus import files, is_validation

WORDS = 4
"""A docstring's first paragraph with fewer says too little."""
LEAST = 200
"""Smallest number of pairs of a split; a full library has some thousands."""

Pair = tuple[str, str]


@dataclass(frozen=True)
class Pairs:
    """Signatures and docstrings, split by file.

    Attributes:
        train: pairs of about nine files in ten, in the order of their paths.
        validation: pairs of the other files.
    """

    train: tuple[Pair, ...]
    validation: tuple[Pair, ...]


def pairs_of(source: str, module: str) -> Iterator[Pair]:
    """Yield each function's signature, such as ``shutil.move(src, dst)``, and its docstring.

    Only the first paragraph of the docstring is used, if it has at least four words. Source with
    syntax unknown to this Python yields nothing.

    Args:
        source: source of the module.
        module: name of the module.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes of old files
            tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        text = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
        if len(text.split()) >= WORDS:
            arguments = [a.arg for a in node.args.args if a.arg not in ("self", "cls")]
            yield f"{module}.{node.name}({', '.join(arguments)})", text


@functools.lru_cache(maxsize=1)
def load() -> Pairs:
    """All pairs of this Python's library, each docstring once.

    Raises:
        BadValueError: this Python comes without the source of its library.
    """
    root = Path(sysconfig.get_path("stdlib"))
    parts: dict[bool, list[Pair]] = {False: [], True: []}
    seen: set[str] = set()
    for name, path in files(root).items():
        module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for signature, text in pairs_of(path.read_text("utf-8", errors="replace"), module):
            if text not in seen:
                seen.add(text)
                parts[is_validation(name)].append((signature, text))
    if min(map(len, parts.values())) < LEAST:
        raise BadValueError(
            f"the standard library in {str(root)!r} has docstrings of "
            f"{sum(map(len, parts.values()))} functions, which is too few; minilm needs a Python "
            "that is installed with the .py files of its library"
        )
    return Pairs(tuple(parts[False]), tuple(parts[True]))
