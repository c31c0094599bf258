"""The page of public names: signatures, summaries and links to the source.

``python -m docsite.api`` writes ``docs/api.md``; a test fails where the file is not up to date.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import sys
from collections.abc import Iterator
from enum import Enum
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import qmaps
from docsite.kinds.reference import exported, modules
from docsite.page import ROOT, first_sentence
from qmaps import figures, maps, normalize, optim

STARS: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}

FILE = ROOT / "docs" / "api.md"
FIRST = (qmaps, optim, maps, normalize)
"""Modules at the top of the page; the remaining ones follow by name."""
LONGEST = 100
"""Characters of a signature."""
LONGEST_DEFAULT = 24
"""Characters of a default value."""
TEXT = """# API

The public names of qmaps, each with a link to its source. Signatures leave out types, long default
values and, where they are long, the last parameters: `help(qmaps.recommend)` shows a whole one with
its docstring, and `qmaps --help` the command line. `python -m docsite.api` writes this page.
"""


def page() -> str:
    """Return the text of the page."""
    remaining = sorted((*modules(), figures), key=_title)
    seen: set[str] = set()
    parts = [TEXT, *(_section(module, seen) for module in (*FIRST, *remaining))]
    integrations = sorted((ROOT / "qmaps" / "integrations").glob("[a-z]*.py"))
    return "\n".join([*filter(None, parts), *map(_of_file, integrations)])


def _section(module: ModuleType, seen: set[str]) -> str:
    """The section of a module; empty if earlier modules have all its names (`seen`)."""
    entries, new = [], False
    for name in _names(module):
        value = getattr(module, name)
        origin = _defined(module, name)
        key = f"{origin} {getattr(value, '__qualname__', name)}"
        signature = _signature(value) if _has_parameters(value) else ""
        entries.append(_entry(name + signature, origin, _about(value, origin, name)))
        if key not in seen and inspect.isclass(value):
            entries += [f"    - `.{text}`: {summary}" for text, summary in _members(value)]
        new |= key not in seen
        seen.add(key)
    title = f"## `{_title(module)}`\n\n{_summary(inspect.getdoc(module))}\n"
    return "\n".join([title, *entries, ""]) if new else ""


def _title(module: ModuleType) -> str:
    """Public name of a module, such as ``qmaps.replay``."""
    short = [name for name in qmaps.__all__ if getattr(qmaps, name) is module]
    return f"qmaps.{short[0]}" if short else module.__name__


def _names(module: ModuleType) -> list[str]:
    """Exported names of a module, and its maps or normalizers, not listed in `__all__`."""
    names = set(exported(module))
    for package, base in ((maps, maps.Map), (normalize, normalize.Normalizer)):
        if module is package:
            names |= {
                name
                for name, value in vars(module).items()
                if name[0] != "_" and inspect.isclass(value) and issubclass(value, base)
            }
    return sorted(names, key=lambda name: (name.lower(), name))


def _members(cls: type) -> Iterator[tuple[str, str]]:
    """Methods and properties added by a class to its bases, with their summaries."""
    inherited = {name for base in cls.__mro__[1:] for name in vars(base)}
    for name, value in vars(cls).items():
        function = getattr(value, "fget", getattr(value, "__func__", value))
        if name[0] == "_" or name in inherited or not inspect.isfunction(function):
            continue
        if summary := _summary(inspect.getdoc(function)):
            of_class = isinstance(value, staticmethod)
            shown = "" if isinstance(value, property) else _signature(function, skip=not of_class)
            yield name + shown, summary


def _signature(value: Any, *, skip: bool = False) -> str:
    """Parameters with short default values, at most `LONGEST` characters of them.

    Args:
        value: a class or a function.
        skip: leave out the first parameter, `self` or `cls`.
    """
    parameters = list(inspect.signature(value).parameters.values())[skip:]
    texts: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not any(text[0] == "*" for text in texts):
            texts.append("*")
        stars = STARS.get(parameter.kind, "")
        default = "" if parameter.default is parameter.empty else f"={_short(parameter.default)}"
        texts.append(f"{stars}{parameter.name}{default}")
    while len(", ".join(texts)) > LONGEST:
        texts[-2:] = ["..."]
    return f"({', '.join(texts)})"


def _is_code(value: object) -> bool:
    return inspect.isclass(value) or inspect.isfunction(value)


def _has_parameters(value: Any) -> bool:
    """True for functions and for classes with a constructor; not for enums and plain exceptions."""
    if inspect.isclass(value):
        made_by = (value.__init__, value.__new__)
        return any(map(inspect.isfunction, made_by)) and not issubclass(value, Enum)
    return inspect.isfunction(value)


def _short(default: object) -> str:
    text = repr(default)
    return text if len(text) <= LONGEST_DEFAULT and text[0] != "<" else "..."


def _defined(module: ModuleType, name: str) -> Path:
    """Path of the file with the definition of a name."""
    value = inspect.unwrap(getattr(module, name))
    if _is_code(value):
        return Path(inspect.getsourcefile(value) or "")
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ImportFrom) and name in (alias.name for alias in node.names):
            return _defined(importlib.import_module(node.module or ""), name)
    return Path(module.__file__ or "")


def _about(value: object, file: Path, name: str) -> str:
    """Summary of a class or a function, or of a constant by the text below it."""
    if _is_code(value):
        return _summary(inspect.getdoc(value))
    body = ast.parse(file.read_text("utf-8")).body
    for node, below in pairwise(body):
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            text = getattr(getattr(below, "value", None), "value", None)
            return _summary(text if isinstance(text, str) else None)
    return ""


def _of_file(path: Path) -> str:
    """Classes and functions of a module, without importing it: it needs another package."""
    tree = ast.parse(path.read_text("utf-8"))
    entries = [
        _entry(
            node.name + ("" if isinstance(node, ast.ClassDef) else f"({ast.unparse(node.args)})"),
            path,
            _summary(ast.get_docstring(node)),
        )
        for node in tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name[0] != "_"
    ]
    title = f"## `qmaps.integrations.{path.stem}`\n\n{_summary(ast.get_docstring(tree))}\n"
    return "\n".join([title, *entries, ""])


def _entry(text: str, file: Path, summary: str) -> str:
    link = os.path.relpath(file, FILE.parent).replace(os.sep, "/")
    return f"- [`{text}`]({link})" + (f": {summary}" if summary else "")


def _summary(docstring: str | None) -> str:
    """First sentence of a docstring, as Markdown."""
    text = " ".join(first_sentence(docstring).split()).replace("``", "`")
    return re.split(r"(?<!\.)\. ", text)[0] + "." if text else ""


def main() -> int:
    """Write the page."""
    FILE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
